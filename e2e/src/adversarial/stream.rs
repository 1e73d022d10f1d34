//! One gRPC stream of packets from the client's side: a frontend's or an agent's.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::{Result, ensure};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proto::Packet;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::PollSender;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::frontend::Io;
use crate::wait::within;

/// The RPC of agents.
pub const CONNECT: &str = "/AgentService/Connect";
/// Packets that may wait for HTTP/2's flow-control window.
const QUEUE: usize = 4;
/// The windows of [`channel`], in bytes. h2 ends a connection that queues small frames beyond its window, so they are large.
pub const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Largest message; both programs accept it.
const MESSAGE_LIMIT: usize = 16 << 20;

/// Speaks HTTP/2 over a connected socket.
pub async fn channel(socket: Box<dyn Io>) -> Result<Channel> {
    channel_with(socket, STREAM_WINDOW, CONNECTION_WINDOW).await
}

/// Like [`channel`], with these flow-control windows, in bytes.
pub async fn channel_with(
    socket: Box<dyn Io>,
    stream_window: u32,
    connection_window: u32,
) -> Result<Channel> {
    let endpoint = Endpoint::from_static("http://localhost")
        .initial_stream_window_size(stream_window)
        .initial_connection_window_size(connection_window)
        .connect_timeout(Duration::from_secs(30));
    let once = Once(Arc::new(Mutex::new(Some(socket))));
    Ok(within("the HTTP/2 preface", endpoint.connect_with_connector(once)).await??)
}

/// A connector with only one socket, so that a lost connection is not re-established without the test's knowledge.
#[derive(Clone)]
struct Once(Arc<Mutex<Option<Box<dyn Io>>>>);

impl Service<Uri> for Once {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = std::io::Error;
    type Future = std::future::Ready<std::io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let socket = self.0.lock().take();
        std::future::ready(socket.map(TokioIo::new).ok_or_else(|| std::io::ErrorKind::NotConnected.into()))
    }
}

/// A stream of packets in both directions. Dropping it resets the stream.
pub struct PacketStream {
    out: Option<PollSender<Packet>>,
    inbound: Inbound,
    headers: Option<MetadataMap>,
}

type Opened = Result<Response<Streaming<Packet>>, Status>;

enum Inbound {
    /// The server has not sent its headers yet; a Go server sends them with its first packet.
    Opening(JoinHandle<Opened>),
    Open(Box<Streaming<Packet>>),
    Ended,
}

impl PacketStream {
    /// Opens the stream of a frontend.
    pub fn proxy(channel: Channel) -> Self {
        Self::open(channel, "/ProxyService/Proxy", MetadataMap::new())
    }

    /// Opens the stream of an agent with this metadata.
    pub fn connect(channel: Channel, metadata: MetadataMap) -> Self {
        Self::open(channel, CONNECT, metadata)
    }

    fn open(channel: Channel, path: &'static str, metadata: MetadataMap) -> Self {
        let (out, queue) = mpsc::channel(QUEUE);
        let mut request = Request::new(ReceiverStream::new(queue));
        *request.metadata_mut() = metadata;
        let opening = tokio::spawn(async move {
            let mut client = Grpc::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
            client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
            client.streaming(request, PathAndQuery::from_static(path), ProstCodec::default()).await
        });
        Self { out: Some(PollSender::new(out)), inbound: Inbound::Opening(opening), headers: None }
    }

    /// Sends a packet; waits for flow-control window if necessary.
    pub async fn send(&mut self, packet: Packet) -> Result<()> {
        let sent = within("sending a packet", std::future::poll_fn(|cx| self.poll_ready(cx))).await?;
        ensure!(sent.is_ok() && self.start_send(packet), "the stream does not take packets any more");
        Ok(())
    }

    /// The next packet; `None` at the orderly end of the stream, a status at any other end.
    pub async fn next(&mut self) -> Result<Option<Packet>, Status> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next packet; the end of the stream is an error.
    pub async fn expect(&mut self, what: &str) -> Result<Packet> {
        let next = within(what, self.next()).await?;
        next.map_err(|status| anyhow::anyhow!("{what}: the stream ended with {status:?}"))?
            .ok_or_else(|| anyhow::anyhow!("{what}: the stream ended with OK"))
    }

    /// Reads to the end of the stream; returns the packets and the final status.
    pub async fn end(&mut self, what: &str) -> Result<(Vec<Packet>, Option<Status>)> {
        let mut packets = Vec::new();
        loop {
            match within(what, self.next()).await? {
                Ok(Some(packet)) => packets.push(packet),
                Ok(None) => return Ok((packets, None)),
                Err(status) => return Ok((packets, Some(status))),
            }
        }
    }

    /// Waits for the response headers.
    pub async fn headers(&mut self) -> Result<MetadataMap, Status> {
        std::future::poll_fn(|cx| self.poll_open(cx)).await?;
        Ok(self.headers.clone().unwrap_or_default())
    }

    /// Ends our direction of the stream in order (END_STREAM).
    pub fn half_close(&mut self) {
        self.out = None;
    }

    /// Whether a packet could be sent now.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let closed = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let Some(out) = &mut self.out else { return Poll::Ready(Err(closed())) };
        out.poll_reserve(cx).map_err(|_| closed())
    }

    /// Sends after [`PacketStream::poll_ready`]; false when the stream is gone.
    pub fn start_send(&mut self, packet: Packet) -> bool {
        self.out.as_mut().is_some_and(|out| out.send_item(packet).is_ok())
    }

    /// The next packet, polled.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Packet>, Status>> {
        ready!(self.poll_open(cx))?;
        let Inbound::Open(stream) = &mut self.inbound else { return Poll::Ready(Ok(None)) };
        let next = ready!(Pin::new(stream.as_mut()).poll_next(cx)).transpose();
        if !matches!(next, Ok(Some(_))) {
            self.inbound = Inbound::Ended;
        }
        Poll::Ready(next)
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let Inbound::Opening(opening) = &mut self.inbound else { return Poll::Ready(Ok(())) };
        let opened = ready!(Pin::new(opening).poll(cx))
            .unwrap_or_else(|error| Err(Status::unknown(error.to_string())));
        match opened {
            Ok(response) => {
                self.headers = Some(response.metadata().clone());
                self.inbound = Inbound::Open(Box::new(response.into_inner()));
                Poll::Ready(Ok(()))
            }
            Err(status) => {
                self.inbound = Inbound::Ended;
                Poll::Ready(Err(status))
            }
        }
    }
}

impl Drop for PacketStream {
    fn drop(&mut self) {
        if let Inbound::Opening(opening) = &self.inbound {
            opening.abort();
        }
    }
}
