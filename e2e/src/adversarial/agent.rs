//! An agent that a test controls packet by packet, correct or adversarial.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use proto::packet::Payload;
use proto::{DialRequest, Packet};
use tokio::net::TcpStream;
use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};

use super::packets::dial_rsp;
use super::stream::{PacketStream, channel};
use crate::frontend::tls_over;
use crate::pki::Pki;
use crate::wait::within;

/// The metadata of an agent's Connect: every pair is sent unchanged, repeated keys included.
#[derive(Clone, Debug, Default)]
pub struct AgentMeta(Vec<(&'static str, String)>);

impl AgentMeta {
    /// The usual metadata: an id and identifiers.
    pub fn new(id: &str, identifiers: &str) -> Self {
        Self::default().with("agentid", id).with("agentidentifiers", identifiers)
    }

    /// Adds a pair; keys are lower case on the wire.
    pub fn with(mut self, key: &'static str, value: &str) -> Self {
        self.0.push((key, value.to_owned()));
        self
    }

    fn map(&self) -> Result<MetadataMap> {
        let mut map = MetadataMap::new();
        for (key, value) in &self.0 {
            map.append(*key, MetadataValue::try_from(value.as_str())?);
        }
        Ok(map)
    }
}

/// A connected agent.
pub struct AdversarialAgent {
    /// Its stream.
    pub stream: PacketStream,
    /// The server's id and count, from the response headers.
    pub server: (String, String),
}

impl AdversarialAgent {
    /// Connects to a server's agent port and waits for its headers.
    pub async fn connect(port: u16, pki: &Pki, meta: &AgentMeta) -> Result<Self> {
        match Self::try_connect(port, pki, meta).await? {
            Ok(agent) => Ok(agent),
            Err(status) => bail!("the Connect was refused: {status:?}"),
        }
    }

    /// Like [`AdversarialAgent::connect`]; a refusal is the inner error.
    pub async fn try_connect(port: u16, pki: &Pki, meta: &AgentMeta) -> Result<Result<Self, Status>> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect(address).await.context("cannot reach the agent port")?;
        Self::over(stream, pki, meta).await
    }

    /// Like [`AdversarialAgent::try_connect`], over an existing connection to the agent port.
    pub async fn over(stream: TcpStream, pki: &Pki, meta: &AgentMeta) -> Result<Result<Self, Status>> {
        let socket = tls_over(stream, pki.agent_client()?).await?;
        let mut stream = PacketStream::connect(channel(Box::new(socket)).await?, meta.map()?);
        let headers = match within("the headers of Connect", stream.headers()).await? {
            Ok(headers) => headers,
            Err(status) => return Ok(Err(status)),
        };
        let one = |key: &str| -> Result<String> {
            let values: Vec<_> = headers.get_all(key).iter().collect();
            let [value] = values.as_slice() else { bail!("{} values of {key}", values.len()) };
            Ok(value.to_str()?.to_owned())
        };
        Ok(Ok(Self { server: (one("serverid")?, one("servercount")?), stream }))
    }

    /// Waits for a DIAL_REQ; any other packet is an error.
    pub async fn expect_dial(&mut self) -> Result<DialRequest> {
        match self.stream.expect("a DIAL_REQ").await? {
            Packet { payload: Some(Payload::DialRequest(request)), .. } => Ok(request),
            other => bail!("not a DIAL_REQ: {other:?}"),
        }
    }

    /// Waits for a DIAL_REQ and answers it with success.
    pub async fn accept(&mut self, connect_id: i64) -> Result<DialRequest> {
        let request = self.expect_dial().await?;
        self.stream.send(dial_rsp(request.random, connect_id, "")).await?;
        Ok(request)
    }
}
