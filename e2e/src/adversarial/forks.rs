//! Peers of public forks: messages as bytes, with fields and packet types that this project's schema does not have.
//!
//! A fork's packet type 7 with field 9 of Packet means DATA_ACK in one fork and WINDOW_UPDATE in another; field 4 of DialRequest
//! and DialResponse is an int64 there, and repeated elsewhere.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use prost::Message;
use prost::encoding::encode_varint;
use proto::Packet;
use proto::packet::Payload;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use super::frames::{framed, message};
use crate::frontend::tls_over;
use crate::pki::Pki;
use crate::wait::within;

/// Both meanings of field 4 of DialRequest and DialResponse: a small window as int64, and a repeated field, packed and not.
pub const FIELD_4: [&[u8]; 3] = [&[0x20, 16], &[0x22, 2, 1, 2], &[0x20, 1, 0x20, 2]];

/// A packet of type 7 with field 9: connection id 1 and a number, which one fork reads as acknowledged bytes and another as a
/// larger window.
pub fn acknowledgment(number: u64) -> Vec<u8> {
    let mut body = vec![0x08, 1, 0x10];
    encode_varint(number, &mut body);
    let mut packet = vec![0x08, 7, 0x4a, body.len() as u8];
    packet.extend(body);
    packet
}

/// Type 7 in all its forms: with field 9, without a payload, and with an empty one.
pub fn acknowledgments() -> [Vec<u8>; 4] {
    [acknowledgment(1), acknowledgment(u64::MAX), vec![0x08, 7], vec![0x08, 7, 0x4a, 0]]
}

/// A packet whose dial request or response has these further bytes; other packets are encoded as they are.
pub fn with_field_4(packet: &Packet, field: &[u8]) -> Vec<u8> {
    let (tag, mut body) = match &packet.payload {
        Some(Payload::DialRequest(request)) => (0x12, request.encode_to_vec()),
        Some(Payload::DialResponse(response)) => (0x1a, response.encode_to_vec()),
        _ => return packet.encode_to_vec(),
    };
    body.extend_from_slice(field);
    let mut bytes = vec![0x08, packet.r#type as u8, tag];
    encode_varint(body.len() as u64, &mut bytes);
    bytes.extend(body);
    bytes
}

/// A packet followed by field 9.
pub fn with_field_9(packet: &Packet) -> Vec<u8> {
    [packet.encode_to_vec(), vec![0x4a, 2, 0x08, 1]].concat()
}

/// A stream of messages in both directions. Dropping it ends the connection.
pub struct ForkStream {
    out: SendStream<Bytes>,
    inbound: RecvStream,
    arrived: BytesMut,
    connection: AbortHandle,
}

impl ForkStream {
    /// A frontend's stream.
    pub async fn frontend(socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Self> {
        Self::open(socket, Request::post("http://localhost/ProxyService/Proxy")).await
    }

    /// An agent's stream.
    pub async fn agent(port: u16, pki: &Pki, id: &str) -> Result<Self> {
        let socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        let socket = tls_over(socket, pki.agent_client()?).await?;
        Self::open(socket, Request::post("https://localhost/AgentService/Connect").header("agentid", id))
            .await
    }

    async fn open(
        socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: http::request::Builder,
    ) -> Result<Self> {
        let (client, connection) = h2::client::handshake(socket).await?;
        let connection = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        let request = request.header("content-type", "application/grpc").header("te", "trailers").body(())?;
        let (response, out) = client.ready().await?.send_request(request, false)?;
        let inbound = within("the response headers", response).await??.into_body();
        Ok(Self { out, inbound, arrived: BytesMut::new(), connection })
    }

    /// Sends one message.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.out.send_data(framed(message), false)?)
    }

    /// The next message as bytes.
    pub async fn next(&mut self, what: &str) -> Result<Bytes> {
        loop {
            if let Some(message) = message(&mut self.arrived) {
                return Ok(message);
            }
            let bytes =
                within(what, self.inbound.data()).await?.with_context(|| format!("{what}: the end"))??;
            self.inbound.flow_control().release_capacity(bytes.len())?;
            self.arrived.extend_from_slice(&bytes);
        }
    }

    /// The next packet. It must contain nothing but what this project's schema has for upstream peers.
    pub async fn expect(&mut self, what: &str) -> Result<Packet> {
        let message = self.next(what).await?;
        let packet = Packet::decode(message.clone())?;
        ensure!(packet.encoded_len() == message.len(), "{what}: unknown fields in {message:?}");
        ensure!((0..=6).contains(&packet.r#type), "{what}: {packet:?}");
        Ok(packet)
    }
}

impl Drop for ForkStream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// A fork's server, for one agent after the other.
pub struct ForkServer {
    listener: TcpListener,
    config: Arc<ServerConfig>,
}

impl ForkServer {
    /// Listens on a free port.
    pub async fn start(pki: &Pki) -> Result<Self> {
        Ok(Self { listener: TcpListener::bind("127.0.0.1:0").await?, config: pki.agent_server()? })
    }

    /// The port for agents.
    pub fn port(&self) -> Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// The stream of the next agent.
    pub async fn link(&self) -> Result<ForkStream> {
        let (socket, _) = within("an agent", self.listener.accept()).await??;
        let socket = TlsAcceptor::from(self.config.clone()).accept(socket).await?;
        let mut connection = h2::server::handshake(socket).await?;
        let (request, mut respond) =
            within("an agent's Connect", connection.accept()).await?.context("no Connect")??;
        let response = Response::builder()
            .header("content-type", "application/grpc")
            .header("serverid", "fork")
            .header("servercount", "1")
            .body(())?;
        let out = respond.send_response(response, false)?;
        let connection =
            tokio::spawn(async move { while connection.accept().await.is_some() {} }).abort_handle();
        Ok(ForkStream { out, inbound: request.into_body(), arrived: BytesMut::new(), connection })
    }
}
