//! Endpoints with one simple behavior each, on free ports of the loopback interface.
//!
//! Dropping an endpoint's handle ends it and all of its connections. An endpoint counts accepted and open connections.

mod dead;

use std::future::Future;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustls::ServerConfig;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

pub use self::dead::{FullQueue, Refusing};
use crate::netns::Namespace;
use crate::payload::{Digest, Digester, Payload};
use crate::wait::{DEADLINE, until};

/// A page that [`Endpoint::page`] serves.
pub const PAGE: &str = "Hello from behind the tunnel.\n";

/// A listening endpoint.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

/// The end of the input of one connection.
#[derive(Clone, Debug)]
pub struct Received {
    /// The digest of the received bytes.
    pub digest: Digest,
    /// Whether it ended by FIN (and not by a reset).
    pub clean: bool,
}

#[derive(Debug, Default)]
struct Shared {
    accepted: AtomicUsize,
    open: AtomicUsize,
    received: Mutex<Vec<Received>>,
    released: Notify,
}

/// Counts a connection as open until it is dropped.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Endpoint {
    /// Echoes everything, and sends its FIN after the peer's.
    pub async fn echo() -> Result<Self> {
        Self::echo_at(Ipv4Addr::LOCALHOST.into()).await
    }

    /// The same at an address in a test's own network.
    pub async fn echo_at(at: IpAddr) -> Result<Self> {
        Self::echo_on(TcpListener::bind((at, 0)).await.context("cannot bind an endpoint")?, drop)
    }

    /// The same on a listener; `seen` is told the peer of each connection.
    pub fn echo_on(listener: TcpListener, seen: impl Fn(SocketAddr) + Send + 'static) -> Result<Self> {
        Self::serve_on(listener, move |mut stream, _| {
            let _ = stream.peer_addr().map(&seen);
            async move {
                let (mut input, mut output) = stream.split();
                let _ = tokio::io::copy_buf(
                    &mut tokio::io::BufReader::with_capacity(64 * 1024, &mut input),
                    &mut output,
                )
                .await;
                let _ = output.shutdown().await;
            }
        })
    }

    /// Sends `payload` once it has accepted, then a FIN, then reads to the end.
    pub async fn source(payload: Payload) -> Result<Self> {
        Self::serve(move |mut stream, shared| async move {
            pour(payload, &mut stream).await;
            digest_to_end(&mut stream, &shared).await;
        })
        .await
    }

    /// Like [`Endpoint::source`], but waits for the peer's first byte.
    pub async fn asked(payload: Payload) -> Result<Self> {
        Self::serve(move |mut stream, shared| async move {
            if stream.read_u8().await.is_ok() {
                pour(payload, &mut stream).await;
            }
            digest_to_end(&mut stream, &shared).await;
        })
        .await
    }

    /// Sends `payload` once it has accepted, and then holds the connection until the peer closes it.
    pub async fn greeter(payload: Payload) -> Result<Self> {
        Self::serve(move |mut stream, shared| async move {
            let _ = payload.send(&mut stream).await;
            digest_to_end(&mut stream, &shared).await;
        })
        .await
    }

    /// Reads to the end and keeps the digest.
    pub async fn sink() -> Result<Self> {
        Self::serve(|mut stream, shared| async move { digest_to_end(&mut stream, &shared).await }).await
    }

    /// The same inside a namespace.
    pub async fn sink_in(side: &Namespace) -> Result<Self> {
        Self::serve_on(side.listen((side.address, 0).into())?, |mut stream, shared| async move {
            digest_to_end(&mut stream, &shared).await;
        })
    }

    /// Does not read until [`Endpoint::release`]; then behaves as a sink.
    pub async fn stalled() -> Result<Self> {
        Self::serve(|mut stream, shared| async move {
            // A small receive buffer, so that the stall takes effect soon.
            let _ = SockRef::from(&stream).set_recv_buffer_size(16 * 1024);
            shared.released.notified().await;
            digest_to_end(&mut stream, &shared).await;
        })
        .await
    }

    /// Reads one byte, then resets the connection.
    pub async fn resetting() -> Result<Self> {
        Self::serve(|mut stream, _| async move {
            let _ = stream.read_u8().await;
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        })
        .await
    }

    /// Serves one plain page over HTTP/1.1, one request for each connection.
    pub async fn page() -> Result<Self> {
        Self::serve(|mut stream, _| async move {
            if read_request(&mut stream).await.is_none() {
                return;
            }
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{PAGE}",
                PAGE.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        })
        .await
    }

    /// Serves a page of `length` bytes over TLS and HTTP/1.0, and sends `behind` after its close_notify, all in one write.
    pub async fn tls_page(config: Arc<ServerConfig>, length: usize, behind: &'static [u8]) -> Result<Self> {
        Self::serve(move |stream, _| {
            let acceptor = TlsAcceptor::from(config.clone());
            async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                if read_request(&mut stream).await.is_none() {
                    return;
                }
                let (mut socket, mut tls) = stream.into_inner();
                tls.set_buffer_limit(None);
                let answer = format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(length));
                let _ = tls.writer().write_all(answer.as_bytes());
                tls.send_close_notify();
                let mut bytes = Vec::new();
                while tls.wants_write() && tls.write_tls(&mut bytes).is_ok() {}
                bytes.extend_from_slice(behind);
                let _ = socket.write_all(&bytes).await;
                let _ = socket.shutdown().await;
            }
        })
        .await
    }

    /// Serves every accepted connection by `habit`, each in its own task.
    async fn serve<F, Fut>(habit: F) -> Result<Self>
    where
        F: Fn(TcpStream, Arc<Shared>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        Self::serve_on(listener.context("cannot bind an endpoint")?, habit)
    }

    fn serve_on<F, Fut>(listener: TcpListener, habit: F) -> Result<Self>
    where
        F: Fn(TcpStream, Arc<Shared>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let counted = shared.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                counted.accepted.fetch_add(1, Ordering::Relaxed);
                counted.open.fetch_add(1, Ordering::Relaxed);
                let open = Open(counted.clone());
                let serving = habit(stream, counted.clone());
                connections.spawn(async move {
                    let _open = open;
                    serving.await;
                });
                while connections.try_join_next().is_some() {}
            }
        })
        .abort_handle();
        Ok(Self { address, shared, accepting })
    }

    /// The address to dial.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as `host:port`.
    pub fn target(&self) -> String {
        self.address.to_string()
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// The number of open connections.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// The ended inputs so far, in the order of their ends.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().clone()
    }

    /// Lets stalled connections read.
    pub fn release(&self) {
        self.shared.released.notify_waiters();
    }

    /// Waits until exactly `count` connections are open.
    pub async fn wait_open(&self, count: usize) -> Result<()> {
        let what = format!("{count} connections at the endpoint");
        until(&what, DEADLINE, || async { (self.open() == count).then_some(()) })
            .await
            .with_context(|| format!("there are {}", self.open()))
    }

    /// Waits until the inputs of `count` connections have ended, and returns them.
    pub async fn wait_received(&self, count: usize) -> Result<Vec<Received>> {
        let what = format!("the end of {count} connections at the endpoint");
        until(&what, DEADLINE, || async { Some(self.received()).filter(|all| all.len() >= count) })
            .await
            .with_context(|| format!("{} ended", self.received().len()))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Reads the head of one HTTP request; `None` if it does not end within 16 KiB.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) if request.len() < 16 * 1024 => request.push(byte),
            _ => return None,
        }
    }
    Some(())
}

/// Sends all of `payload`, then a FIN.
///
/// The send buffer is small: a thousand sources with stalled readers would use up the kernel's TCP memory and slow every other
/// connection of this machine.
async fn pour(payload: Payload, stream: &mut TcpStream) {
    let _ = SockRef::from(&*stream).set_send_buffer_size(64 * 1024);
    let _ = payload.send(stream).await;
    let _ = stream.shutdown().await;
}

async fn digest_to_end(stream: &mut TcpStream, shared: &Shared) {
    let mut digester = Digester::default();
    let mut chunk = vec![0; 64 * 1024];
    let clean = loop {
        match stream.read(&mut chunk).await {
            Ok(0) => break true,
            Ok(count) => digester.update(chunk.get(..count).unwrap_or_default()),
            Err(_) => break false,
        }
    };
    shared.received.lock().push(Received { digest: digester.finish(), clean });
}
