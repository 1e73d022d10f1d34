//! The accept loop of one port: few connections, short time-outs, an orderly end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flags::{Bind, GoDuration};
use http_body_util::{BodyExt, Limited};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use net::listen::{AcceptLoop, bind_tcp};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{spawn_blocking, yield_now};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Routes;
use super::local::Body;
use super::routes::Request;

/// The connection limit of one port: a new connection closes the oldest one. A prober and two scrapers need three. A new one
/// never waits, because a probe gives up after a second.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// The time-out for a request's head, from the accept or the end of the previous answer on.
pub(super) const REQUEST_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest head, in bytes.
const HEAD_BYTES: usize = 16 * 1024;
/// The longest body of a PUT, in bytes: a verbosity.
const BODY_BYTES: usize = 64;
/// The first and the longest pause between attempts to listen.
const BIND_RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A port that is served, or whose bind is retried. Dropping it ends both at once.
#[derive(Debug)]
pub struct ServerHandle {
    bound: watch::Receiver<Option<SocketAddr>>,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

/// Serves the routes on this runtime as soon as the port is bound. `name` is for the log.
pub fn serve(runtime: &Handle, name: &'static str, bind: Bind, routes: Routes) -> ServerHandle {
    let (bound_tx, bound) = watch::channel(None);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = runtime.spawn(async move {
        let listener = tokio::select! {
            listener = bind_or_retry(name, &bind) => listener,
            () = stopped.cancelled() => return,
        };
        // A listening socket has an address.
        let address = listener.local_addr().ok();
        bound_tx.send_replace(address);
        let address = address.as_ref().map(tracing::field::display);
        tracing::info!(target: "v0", port = name, address, "Listening");
        accept(AcceptLoop::new(listener, name), Arc::new(routes), stopped).await;
    });
    ServerHandle { bound, stop, task: AbortOnDropHandle::new(task) }
}

impl ServerHandle {
    /// The address, `None` until the port is bound.
    pub fn address(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.bound.clone()
    }

    /// Stops listening, waits up to `within` for pending answers, and closes everything.
    pub async fn stop(mut self, within: Duration) {
        self.stop.cancel();
        // After the time-out, dropping the task aborts the rest.
        let _ = tokio::time::timeout(within, &mut self.task).await;
    }
}

/// Listens. Logs each failure, and retries until it succeeds.
async fn bind_or_retry(name: &'static str, bind: &Bind) -> TcpListener {
    let mut pause = BIND_RETRY_PAUSES.0;
    loop {
        let bind = bind.clone();
        // A name server may not answer, and this thread serves the other ports.
        let bound = spawn_blocking(move || bind_tcp(bind.host.text(), bind.port).map_err(io::Error::other));
        match bound.await.map_err(io::Error::from).flatten() {
            Ok(listener) => return listener,
            Err(error) => {
                let retry_in = GoDuration::from(pause);
                tracing::error!(port = name, %error, %retry_in, "Cannot listen, trying again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(BIND_RETRY_PAUSES.1);
            }
        }
    }
}

/// Accepts until stopped; returns when all connections have ended.
async fn accept(mut listener: AcceptLoop<TcpListener>, routes: Arc<Routes>, stop: CancellationToken) {
    // Dropping one closes the connection.
    let mut open = VecDeque::<AbortOnDropHandle<()>>::new();
    let graceful = GracefulShutdown::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS {
            // Without notice: a client that sends half a head would not react.
            open.pop_front();
        }
        let served = tokio::spawn(connection(stream, peer, Arc::clone(&routes), graceful.watcher()));
        open.push_back(AbortOnDropHandle::new(served));
    }
    drop(listener);
    // The caller of `stop` sets the time-out.
    graceful.shutdown().await;
}

async fn connection(stream: TcpStream, peer: SocketAddr, routes: Arc<Routes>, graceful: Watcher) {
    // Answers are small and written at once; a failure here costs only milliseconds.
    let _ = stream.set_nodelay(true);
    let half_close = routes.half_close;
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let routes = Arc::clone(&routes);
        async move {
            // hyper answers all requests that have arrived in one turn; a liveness probe must not wait for hundreds of them.
            yield_now().await;
            Ok::<_, Infallible>(routes.answer(&head(request, peer).await).await)
        }
    });
    let connection = http1::Builder::new()
        // Without a timer the time-out for heads has no effect.
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_READ_TIMEOUT)
        .half_close(half_close)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // A failed connection concerns only its client.
    let _ = graceful.watch(connection).await;
}

/// The head, with the peer's address and, for a PUT, the [`Body`] in its extensions. Other bodies are not read.
async fn head(request: http::Request<hyper::body::Incoming>, peer: SocketAddr) -> Request {
    let (mut head, body) = request.into_parts();
    head.extensions.insert(peer);
    if head.method == http::Method::PUT {
        let body = tokio::time::timeout(REQUEST_READ_TIMEOUT, Limited::new(body, BODY_BYTES).collect()).await;
        if let Ok(Ok(body)) = body {
            head.extensions.insert(Body(body.to_bytes()));
        }
    }
    head
}
