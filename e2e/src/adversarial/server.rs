//! A server that accepts agents and that a test controls packet by packet.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result};
use proto::Packet;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::metadata::MetadataMap;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::stream::CONNECT;
use crate::pki::Pki;
use crate::wait::within;

/// The receive windows of a connection and of its streams in bytes: so large that a message's size is the sender's own choice.
const WINDOW: u32 = 16 << 20;

/// A server with only the agent port.
pub struct AdversarialServer {
    address: SocketAddr,
    links: mpsc::Receiver<AdversarialLink>,
    tasks: [AbortHandle; 2],
}

/// One agent's stream, seen from the server.
pub struct AdversarialLink {
    /// The metadata of the agent's Connect.
    pub metadata: MetadataMap,
    out: Option<mpsc::Sender<Result<Packet, Status>>>,
    inbound: Streaming<Packet>,
}

impl AdversarialServer {
    /// Listens on a free port; announces `id` and `count` to every agent.
    pub async fn start(pki: &Pki, id: &str, count: usize) -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST, pki, id, count).await
    }

    /// The same; sends GOAWAY on connections that are this old. Their streams continue.
    pub async fn start_with_age(pki: &Pki, id: &str, count: usize, age: Duration) -> Result<Self> {
        Self::serve(Ipv4Addr::LOCALHOST, pki, id, count, Server::builder().max_connection_age(age)).await
    }

    /// The same as [`AdversarialServer::start`] at another address than the loopback interface's.
    pub async fn start_at(at: Ipv4Addr, pki: &Pki, id: &str, count: usize) -> Result<Self> {
        Self::serve(at, pki, id, count, Server::builder()).await
    }

    async fn serve(at: Ipv4Addr, pki: &Pki, id: &str, count: usize, server: Server) -> Result<Self> {
        let listener = TcpListener::bind((at, 0)).await?;
        let address = listener.local_addr()?;
        let acceptor = TlsAcceptor::from(pki.agent_server()?);
        let (accepted, sockets) = mpsc::channel(8);
        let accepting = tokio::spawn(accept(listener, acceptor, accepted)).abort_handle();
        let (found, links) = mpsc::channel(64);
        let service = Service { id: id.to_owned(), count, links: found };
        let serving = server
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .add_service(service)
            .serve_with_incoming(ReceiverStream::new(sockets));
        let serving = tokio::spawn(async move {
            let _ = serving.await;
        })
        .abort_handle();
        Ok(Self { address, links, tasks: [accepting, serving] })
    }

    /// Refuses further connections. Open ones continue.
    pub fn stop_listening(&self) {
        self.tasks[0].abort();
    }

    /// The address for agents.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port for agents.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The next agent's stream.
    pub async fn link(&mut self) -> Result<AdversarialLink> {
        within("an agent's Connect", self.links.recv())
            .await?
            .ok_or_else(|| anyhow::anyhow!("the server ended"))
    }
}

impl Drop for AdversarialServer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl AdversarialLink {
    /// Sends a packet.
    pub async fn send(&mut self, packet: Packet) -> Result<()> {
        let out = self.out.as_ref().context("the stream was finished")?;
        within("sending a packet", out.send(Ok(packet)))
            .await?
            .map_err(|_| anyhow::anyhow!("the agent is gone"))
    }

    /// Ends the stream with OK, as a server does at shutdown.
    pub fn finish(&mut self) {
        self.out = None;
    }

    /// The next packet; the end of the stream is an error.
    pub async fn expect(&mut self, what: &str) -> Result<Packet> {
        within(what, self.inbound.message())
            .await?
            .map_err(|status| anyhow::anyhow!("{what}: the stream ended with {status:?}"))?
            .ok_or_else(|| anyhow::anyhow!("{what}: the agent ended its stream"))
    }

    /// Waits for the end of the agent's direction; returns the packets before it.
    pub async fn end(&mut self) -> Result<Vec<Packet>> {
        let mut packets = Vec::new();
        while let Ok(Some(packet)) = within("the end of the agent's stream", self.inbound.message()).await? {
            packets.push(packet);
        }
        Ok(packets)
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    accepted: mpsc::Sender<std::io::Result<Socket>>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let (acceptor, accepted) = (acceptor.clone(), accepted.clone());
        tokio::spawn(async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                let _ = accepted.send(Ok(Socket(stream))).await;
            }
        });
    }
}

#[derive(Clone)]
struct Service {
    id: String,
    count: usize,
    links: mpsc::Sender<AdversarialLink>,
}

impl NamedService for Service {
    const NAME: &'static str = "AgentService";
}

impl tonic::codegen::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != CONNECT {
                return Ok(Status::unimplemented("another method").into_http());
            }
            Ok(Grpc::new(ProstCodec::default()).streaming(service, request).await)
        })
    }
}

impl StreamingService<Packet> for Service {
    type Response = Packet;
    type ResponseStream = ReceiverStream<Result<Packet, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<Packet>>) -> Self::Future {
        let Self { id, count, links } = self.clone();
        Box::pin(async move {
            let metadata = request.metadata().clone();
            let (out, queue) = mpsc::channel(16);
            let link = AdversarialLink { metadata, out: Some(out), inbound: request.into_inner() };
            links.send(link).await.map_err(|_| Status::unavailable("the test is over"))?;
            let mut response = Response::new(ReceiverStream::new(queue));
            let headers = response.metadata_mut();
            let bad = |_| Status::internal("a server id that is no metadata");
            headers.insert("serverid", id.parse().map_err(bad)?);
            headers.insert("servercount", count.to_string().parse().map_err(bad)?);
            Ok(response)
        })
    }
}

/// tonic needs peer information from every socket; this socket has none.
struct Socket(TlsStream<TcpStream>);

impl Connected for Socket {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
