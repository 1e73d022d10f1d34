//! The wire over in-memory transports with paused time, and against tonic over loopback.

mod backlog;
mod buffered;
mod connection;
mod floods;
mod framing;
mod going_away;
mod interop;
mod keepalive;
mod lingering;
mod packet;
mod stream;
mod turns;

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;
use std::{future::Future, io};

use bytes::Bytes;
use http::HeaderMap;
use mux::{ConnectId, DialId, Packet, TraceContext};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::{
    Connected, ConnectionError, Incoming, Keepalive, Request, ServerSettings, Wire, WireError, WireStream,
    connect, serve_connection,
};

/// Counts its wake-ups.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// One packet of each type.
fn packets() -> Vec<Packet<Bytes>> {
    let (id, random) = (ConnectId(i64::MIN), DialId(i64::MAX));
    vec![
        Packet::DialReq {
            random,
            protocol: "tcp".into(),
            address: "kubernetes.default:443".into(),
            trace: None,
        },
        Packet::DialReq { random: DialId(0), protocol: String::new(), address: String::new(), trace: None },
        Packet::DialReq {
            random,
            protocol: "tcp".into(),
            address: "a:1".into(),
            trace: TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        },
        Packet::DialRsp { random, outcome: Ok(id) },
        Packet::DialRsp { random, outcome: Err("dial tcp: größer".into()) },
        Packet::CloseReq { id },
        Packet::CloseRsp { id: ConnectId(1), error: String::new() },
        Packet::CloseRsp { id, error: "unrecognized connectID".into() },
        Packet::Data { id, payload: Bytes::from_static(b"x") },
        Packet::Data { id: ConnectId(7), payload: vec![5; 100_000].into() },
        Packet::DialCls { random },
        Packet::Drain,
        Packet::Grant { id: ConnectId(7), offset: 1 << 40 },
        Packet::Fin { id: ConnectId(i64::MAX) },
    ]
}

fn data(bytes: impl Into<Bytes>) -> Packet<Bytes> {
    Packet::Data { id: ConnectId(1), payload: bytes.into() }
}

/// The longest wait of these tests.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(3600), what).await.expect("within an hour of paused time")
}

async fn next(stream: &mut WireStream) -> Option<Result<Incoming, WireError>> {
    soon(poll_fn(|cx| stream.poll_packet(cx))).await
}

async fn packet(stream: &mut WireStream) -> Packet<Bytes> {
    match next(stream).await {
        Some(Ok(Incoming::Packet(packet))) => packet,
        other => panic!("a packet was expected: {other:?}"),
    }
}

async fn failure(stream: &mut WireStream) -> WireError {
    match next(stream).await {
        Some(Err(error)) => error,
        other => panic!("an error was expected: {other:?}"),
    }
}

async fn ready(stream: &mut WireStream) -> Result<usize, WireError> {
    soon(poll_fn(|cx| stream.poll_ready(cx))).await
}

/// A served connection, and its requests.
struct Served {
    requests: mpsc::UnboundedReceiver<Request>,
    serving: JoinHandle<Result<(), ConnectionError>>,
}

fn serve<IO>(io: IO, settings: ServerSettings) -> Served
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, requests) = mpsc::unbounded_channel();
    let serving = tokio::spawn(async move {
        let on_stream = |request| drop(sender.send(request));
        serve_connection(io, &settings, on_stream, pending()).await
    });
    Served { requests, serving }
}

impl Served {
    async fn accept(&mut self) -> WireStream {
        soon(self.requests.recv()).await.unwrap().accept(HeaderMap::new()).unwrap()
    }
}

async fn dial<IO>(io: IO, metadata: HeaderMap) -> Result<Connected, WireError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let deadline = Instant::now() + Duration::from_secs(60);
    connect(io, Keepalive::DEFAULT, ("server:8091", "/AgentService/Connect"), metadata, None, deadline).await
}

/// Both ends of a stream, on transports that can be frozen.
struct Pair {
    client: Connected,
    server: WireStream,
    served: Served,
    frozen: Arc<AtomicBool>,
}

async fn pair() -> Pair {
    pair_with(ServerSettings::for_agents()).await
}

async fn pair_with(settings: ServerSettings) -> Pair {
    let (client_io, server_io) = duplex(1 << 20);
    let frozen = Arc::new(AtomicBool::new(false));
    let freezing = |io| Freezing { io, frozen: Arc::clone(&frozen) };
    let mut served = serve(freezing(server_io), settings);
    let (client, server) = tokio::join!(dial(freezing(client_io), HeaderMap::new()), served.accept());
    Pair { client: client.unwrap(), server, served, frozen }
}

/// A transport whose peer can be silenced: while frozen, nothing is read.
struct Freezing {
    io: DuplexStream,
    frozen: Arc<AtomicBool>,
}

impl AsyncRead for Freezing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.frozen.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Freezing {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
