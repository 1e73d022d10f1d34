//! One attempt to connect to a server: resolve, dial (optionally through an HTTP proxy), TLS handshake, open the stream, read
//! the server's answer.
//!
//! Every attempt starts from the beginning: the name may lead to another replica, and the token or certificate may have been
//! rotated. Every step has its own time limit. Never retries.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use transport::env_proxy::{self, EnvProxy, ProxyUrlError};
use transport::host_port::Joined;
use transport::kernel::{TcpPeer, bound_silence};
use transport::listen::{HANDSHAKE_LIMIT, LinkSocket, SocketKeepalive, tune};
use transport::tls::{self, ClientTls, HandshakeError, Rotating, Validity};
use transport::wire::capabilities::{self, Capabilities};
use transport::wire::{self, ClientSettings, Code, Keepalive, Wire, WireError};

use super::metadata::{self, AgentMetadata};
use super::{CLOSE_WITHIN, ConnectedStream, Connector, GrpcStream};
use crate::endpoint::{DialError, Dialer, Resolve};

/// Time limit for resolving and dialing together.
pub const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for the server's answer to the stream. A Go server first reviews the token by the Kubernetes API, by default for
/// five agents per second. After its restart 2,000 agents wait up to seven minutes, and an agent that gives up leaves its
/// review in the queue. (Go's agent waits forever; pings detect a server that hangs within a minute.)
const ANSWER_LIMIT: Duration = Duration::from_secs(1800);

/// The path of the agents' gRPC method.
const PATH: &str = "/AgentService/Connect";

/// A Go server permits a ping every 30 s; the third earlier ping ends the connection (`too_many_pings`).
const GO_PING_INTERVAL: Duration = Duration::from_secs(35);

const GO_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Keepalive for a server that is not known to be a native peer.
const fn pings(interval: Duration) -> Keepalive {
    Keepalive { interval, timeout: GO_PING_TIMEOUT, while_idle: true }
}

/// Until the server has answered, it is pinged as often as every server permits: a server that hangs here keeps the agent from
/// the others.
fn settings() -> ClientSettings {
    ClientSettings { keepalive: pings(GO_PING_INTERVAL), ..ClientSettings::for_agents() }
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TCP connection to the server, or to the HTTP proxy in front of it.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The environment names an unusable proxy.
    #[error(transparent)]
    ProxyUrl(#[from] ProxyUrlError),
    /// The proxy opened no tunnel.
    #[error(transparent)]
    Proxy(#[from] env_proxy::ConnectError),
    /// Setting a socket option failed, most likely because the connection is gone.
    #[error("socket: {0}")]
    Socket(#[source] io::Error),
    /// TLS failed.
    #[error("TLS with {address}: {source}")]
    Tls {
        /// `host:port` of the server.
        address: String,
        /// The TLS error.
        source: HandshakeError,
    },
    /// The TLS handshake timed out.
    #[error("TLS with {address}: no handshake within {} s", HANDSHAKE_LIMIT.as_secs())]
    TlsTimeout {
        /// `host:port` of the server.
        address: String,
    },
    /// The token file cannot be read.
    #[error("--service-account-token-path {}: {source}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The agent id or the identifiers contain characters that metadata cannot carry.
    #[error("{name} {text:?} holds characters that metadata cannot carry")]
    Metadata {
        /// The name of the field.
        name: &'static str,
        /// The text, escaped.
        text: String,
    },
    /// The server, or a proxy before it, refused the stream.
    #[error("stream to the server: {0}")]
    Stream(#[from] WireError),
    /// The server's response headers are invalid.
    #[error("the server's answer: {0}")]
    Answer(String),
}

impl ConnectError {
    /// The probable cause in words, for an operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Tls { source: HandshakeError::UnknownIssuer { authorities, .. }, .. } => {
                Some(format!("--ca-cert {authorities}"))
            }
            Self::Tls { address, source } => tls_hint(&source.to_string(), address),
            Self::Stream(error) if error.code == Code::Unimplemented => {
                Some("is it the agent port? A gRPC frontend answers like this".to_owned())
            }
            // In TLS 1.3 the server verifies the certificate after the client's handshake.
            Self::Stream(error) => refused_certificate(&error.message),
            _ => None,
        }
    }
}

fn tls_hint(error: &str, address: &str) -> Option<String> {
    if error.contains("InvalidContentType") {
        return Some(format!(
            "the answer is not TLS; is {address} the agent port? Health and admin ports speak plain HTTP"
        ));
    }
    if error.contains("fatal alert: NoApplicationProtocol") {
        return Some(format!(
            "the peer speaks other protocols; is {address} the agent port? An HTTP CONNECT frontend answers like this"
        ));
    }
    refused_certificate(error)
}

/// The hint for an alert about the agent's certificate.
fn refused_certificate(text: &str) -> Option<String> {
    let (_, alert) = text.split_once("received fatal alert: ")?;
    if alert.starts_with("CertificateRequired") {
        return Some("the server requires a client certificate: set --agent-cert and --agent-key".to_owned());
    }
    // DecryptError: the issuer has the name of a trusted authority, and another key.
    let refused = alert.contains("Certificate")
        || ["UnknownCA", "DecryptError"].iter().any(|name| alert.starts_with(name));
    refused.then(|| {
        "the server does not accept --agent-cert: its --cluster-ca-cert must contain the issuer; its log has the reason"
            .to_owned()
    })
}

/// The address of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// `--proxy-server-host`: a name or an address.
    pub host: String,
    /// `--proxy-server-port`.
    pub port: u16,
}

impl ServerAddress {
    /// The host as an authority without a port; an IPv6 address in brackets.
    fn bare_host(&self) -> String {
        let text = self.to_string();
        text.strip_suffix(&format!(":{}", self.port)).unwrap_or(&text).to_owned()
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bare = self.host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        Joined(bare.unwrap_or(&self.host), self.port).fmt(f)
    }
}

/// Opens streams over TLS and HTTP/2.
#[derive(Debug)]
pub struct GrpcConnector<R> {
    /// The address of the servers.
    pub server: ServerAddress,
    /// See [`Dialer::to_servers`], within [`DIAL_LIMIT`].
    pub dialer: Dialer<R>,
    /// The HTTP proxy of the environment.
    pub proxy: EnvProxy,
    /// The TLS configuration.
    pub tls: ClientTls,
    /// The request headers.
    pub agent: AgentMetadata,
    /// `--keepalive-time`: idle time before a ping, within the limit of the server.
    pub keepalive: Duration,
    /// `--unresponsive-timeout`: how long a stream to a native server is kept while the server answers no ping.
    pub unresponsive_timeout: Duration,
}

impl<R: Resolve> GrpcConnector<R> {
    /// Dials; returns the connection, and a handle to ask the kernel about its peer.
    async fn dial(&self, address: &str) -> Result<(TcpStream, Option<TcpPeer>), ConnectError> {
        let stream = match self.proxy.proxy_for(&self.server.host, self.server.port)? {
            None => self.dialer.dial("tcp", address).await?.stream,
            Some(proxy) => {
                let at = Joined(proxy.host(), proxy.port()).to_string();
                let stream = self.dialer.dial("tcp", &at).await?.stream;
                env_proxy::tunnel(stream, proxy, address).await?
            }
        };
        tune(&stream, SocketKeepalive::default(), None).map_err(ConnectError::Socket)?;
        let kernel = bound_silence(&stream).map_err(ConnectError::Socket)?;
        Ok((stream, kernel))
    }

    async fn open(&self) -> Result<ConnectedStream<GrpcStream>, ConnectError> {
        let metadata = self.agent.headers()?;
        let address = self.server.to_string();
        let (tcp, kernel) = self.dial(&address).await?;
        let presented = self.certificate_validity();
        let mut socket = LinkSocket::new(tcp);
        socket.bound_unsent();
        let handshake = self.tls.connect(tls::ReadAhead::new(socket));
        let Ok(shaken) = timeout(HANDSHAKE_LIMIT, handshake).await else {
            return Err(ConnectError::TlsTimeout { address });
        };
        let mut io = shaken.map_err(|source| ConnectError::Tls { address: address.clone(), source })?;
        io.get_mut().0.begin(tls::READ_AHEAD);
        let deadline = Instant::now() + ANSWER_LIMIT;
        let io = tls::Gathering::new(io);
        let authority =
            if self.tls.validities().own.is_some() { self.server.bare_host() } else { address.clone() };
        let connected = wire::connect(io, &settings(), &authority, PATH, metadata, deadline).await?;
        let (server_id, server_count) = metadata::server(&connected.metadata)?;
        let answer = Capabilities::read(&connected.metadata);
        if let Some(kernel) = kernel {
            connected.connection.keepalive.watch_kernel(Arc::new(kernel));
        }
        connected.connection.set_keepalive(match answer.pings {
            true => capabilities::keepalive(self.keepalive, self.unresponsive_timeout),
            false => pings(self.keepalive.max(GO_PING_INTERVAL)),
        });
        connected.connection.keepalive.measure(if answer.pings { capabilities::RTT_PROBES } else { 1 });
        let negotiated = self.agent.offer.negotiated(answer);
        let stream = GrpcStream {
            wire: connected.stream,
            native: answer.pings,
            negotiated,
            connection: connected.connection,
        };
        Ok(ConnectedStream { server_id, server_count, presented, stream })
    }
}

impl<R: Resolve> Connector for GrpcConnector<R> {
    type Stream = GrpcStream;

    async fn connect(&self) -> Result<ConnectedStream<GrpcStream>, ConnectError> {
        Box::pin(self.open()).await
    }

    async fn close(&self, stream: GrpcStream) {
        let GrpcStream { mut wire, connection, .. } = stream;
        wire.finish();
        drop(wire);
        connection.close(CLOSE_WITHIN).await;
    }

    fn certificate_validity(&self) -> Option<Validity> {
        self.tls.validities().own
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
