//! Connections, faults, and a port that can be closed and opened.

use std::io;
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep};
use tokio_rustls::TlsAcceptor;

use crate::answer::{Answer, json_answer, status};
use crate::leases;
use crate::state::{Fault, Seen, State};

type Shared = Arc<Mutex<State>>;

/// Accepts while `up` is true; otherwise the port is closed.
pub(crate) async fn run(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    state: Shared,
    mut up: watch::Receiver<bool>,
) {
    let Ok(address) = listener.local_addr() else { return };
    let mut listener = Some(listener);
    loop {
        let mut connections = JoinSet::new();
        if let Some(listener) = &listener {
            loop {
                tokio::select! {
                    Ok((stream, _)) = listener.accept() => {
                        let _ = stream.set_nodelay(true);
                        let (tls, state) = (tls.clone(), Arc::clone(&state));
                        connections.spawn(async move {
                            match tls {
                                None => serve(stream, state).await,
                                Some(config) => {
                                    if let Ok(stream) = TlsAcceptor::from(config).accept(stream).await {
                                        serve(stream, state).await;
                                    }
                                }
                            }
                        });
                    }
                    changed = up.changed() => match changed {
                        Ok(()) if *up.borrow() => {}
                        _ => break,
                    }
                }
            }
        }
        drop(listener.take());
        connections.shutdown().await;
        if up.wait_for(|up| *up).await.is_err() {
            return;
        }
        while listener.is_none() {
            listener = TcpListener::bind(address).await.ok();
            if listener.is_none() {
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn serve<IO: AsyncRead + AsyncWrite + Unpin>(stream: IO, state: Shared) {
    let service = service_fn(|request| handle(request, Arc::clone(&state)));
    // An error is an injected fault, or a client that has left.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Counts one running request until it is dropped.
struct UnderWay(Shared);

impl UnderWay {
    fn enter(state: &Shared) -> Self {
        let mut guard = state.lock();
        guard.at_once += 1;
        guard.most_at_once = guard.most_at_once.max(guard.at_once);
        Self(Arc::clone(state))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.lock().at_once -= 1;
    }
}

async fn handle(request: Request<Incoming>, state: Shared) -> io::Result<Response<Answer>> {
    let (head, body) = request.into_parts();
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let path_and_query = head.uri.path_and_query().map_or("", |path| path.as_str());
    let line = format!("{} {path_and_query}", head.method);
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    let seen = Seen {
        line: line.clone(),
        authorization: text("authorization").to_owned(),
        headers: headers.collect(),
        at: Instant::now(),
    };
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let (fault, allowed) = {
        let mut state = state.lock();
        let fault = state.faults.iter().find(|(what, _)| line.contains(what)).map(|(_, fault)| fault.clone());
        let allowed =
            state.bearer.as_ref().is_none_or(|token| seen.authorization == format!("Bearer {token}"));
        state.seen.push(seen);
        (fault, allowed)
    };
    let _under_way = UnderWay::enter(&state);
    let mut lost = false;
    match fault {
        Some(Fault::Slow(by)) => sleep(by).await,
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Close) => return Err(io::ErrorKind::ConnectionReset.into()),
        Some(Fault::Status(code, reason)) => return Ok(status(code, reason, "a fault on purpose")),
        Some(Fault::LostAnswer) => lost = true,
        Some(Fault::Nonsense) => return Ok(json_answer(200, &"nonsense".into())),
        None => {}
    }
    if !allowed {
        return Ok(status(401, "Unauthorized", "Unauthorized"));
    }
    let mut state = state.lock();
    let query = head.uri.query().unwrap_or_default();
    let answer = leases::answer(&mut state, &head.method, head.uri.path(), query, &body);
    if lost { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(answer) }
}
