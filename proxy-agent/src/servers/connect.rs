//! One try to reach a server: resolve, dial, perhaps through a proxy, shake hands, open the stream, read its
//! answer.
//!
//! Everything is done anew each time: a name may lead to another replica, a token or certificate may have
//! been rotated. Every step has a bound of its own. Never retries.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use transport::env_proxy::{self, EnvProxy, ProxyUrlError};
use transport::kernel::{TcpPeer, bound_silence};
use transport::listen::{HANDSHAKE_LIMIT, KeepAlive, LinkSocket, tune};
use transport::tls::{self, ClientTls, HandshakeError, Rotating, Validity};
use transport::wire::capabilities::{self, Capabilities};
use transport::wire::{self, ClientSettings, Keepalive, Wire, WireError};

use super::metadata::{self, AgentMetadata};
use super::{CLOSE_WITHIN, ConnectedStream, Connector, GrpcStream};
use crate::endpoint::{DestinationPolicy, DialError, Dialer, Resolve};

/// Resolving and dialling, in all.
const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// The server's answer to the stream. A Go server asks the Kubernetes API about the token first, and by default for five agents a second:
/// after its restart two thousand stand in that line for seven minutes, and who leaves it keeps the place taken. (Go's agent waits for
/// ever; a server that hangs is found by pings, within a minute.)
const ANSWER_LIMIT: Duration = Duration::from_secs(1800);

/// The gRPC method of agents.
const PATH: &str = "/AgentService/Connect";

/// A Go server tolerates pings every 30 s; the third that comes sooner ends the connection.
const GO_PING_INTERVAL: Duration = Duration::from_secs(35);

const GO_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Pings to a server that is not known to be ours.
const fn pings(interval: Duration) -> Keepalive {
    Keepalive { interval, timeout: GO_PING_TIMEOUT, while_idle: true }
}

/// A try that failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TCP connection to the server, or to the proxy before it.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The environment names a proxy that cannot be used.
    #[error(transparent)]
    ProxyUrl(#[from] ProxyUrlError),
    /// The proxy opened no tunnel.
    #[error(transparent)]
    Proxy(#[from] env_proxy::ConnectError),
    /// An option of the socket was refused: it is most likely gone.
    #[error("socket: {0}")]
    Socket(#[source] io::Error),
    /// TLS failed.
    #[error("TLS with {address}: {source}")]
    Tls {
        /// `host:port` of the server.
        address: String,
        /// Why.
        source: HandshakeError,
    },
    /// TLS took too long.
    #[error("TLS with {address}: no handshake within {} s", HANDSHAKE_LIMIT.as_secs())]
    TlsTimeout {
        /// `host:port` of the server.
        address: String,
    },
    /// The token's file cannot be used.
    #[error("--service-account-token-path {}: {source}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An id or identifiers that no header can carry.
    #[error("{name} {text:?} holds characters that metadata cannot carry")]
    Metadata {
        /// Which.
        name: &'static str,
        /// Its text, escaped.
        text: String,
    },
    /// The server, or the way to it, refused the stream.
    #[error("stream to the server: {0}")]
    Stream(#[from] WireError),
    /// The server's response headers make no sense.
    #[error("the server's answer: {0}")]
    Answer(String),
}

/// Where the servers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// `--proxy-server-host`: a name or an address, without brackets.
    pub host: String,
    /// `--proxy-server-port`.
    pub port: u16,
}

impl ServerAddress {
    /// The host as an authority without a port, an IPv6 address in brackets.
    fn bare_host(&self) -> String {
        let text = self.to_string();
        text.strip_suffix(&format!(":{}", self.port)).unwrap_or(&text).to_owned()
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port } = self;
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if bare.contains(':') { write!(f, "[{bare}]:{port}") } else { write!(f, "{bare}:{port}") }
    }
}

/// Opens streams over TLS and HTTP/2.
#[derive(Debug)]
pub struct GrpcConnector<R> {
    server: ServerAddress,
    dialer: Dialer<R>,
    proxy: EnvProxy,
    tls: ClientTls,
    agent: AgentMetadata,
    /// `--keepalive-time`.
    keepalive: Duration,
    /// `--unresponsive-timeout`.
    unresponsive_timeout: Duration,
}

impl<R: Resolve> GrpcConnector<R> {
    /// `keepalive` is `--keepalive-time`: how often a silent server is pinged, within what it tolerates.
    pub fn new(
        server: ServerAddress,
        resolver: R,
        proxy: EnvProxy,
        tls: ClientTls,
        agent: AgentMetadata,
        keepalive: Duration,
    ) -> Self {
        // The destination policy is for what servers ask for, not for where they are.
        let dialer = Dialer::new(resolver, DestinationPolicy::unrestricted())
            .with_timeout(DIAL_LIMIT)
            .spreading()
            .without_unsent_bound();
        let unresponsive_timeout = capabilities::UNRESPONSIVE_TIMEOUT;
        Self { server, dialer, proxy, tls, agent, keepalive, unresponsive_timeout }
    }

    /// How long a native server that answers no ping keeps its stream: `--unresponsive-timeout`.
    pub fn unresponsive_timeout(self, unresponsive_timeout: Duration) -> Self {
        Self { unresponsive_timeout, ..self }
    }

    /// A connection, and what its kernel is asked about the other end.
    async fn dial(&self, address: &str) -> Result<(TcpStream, Option<TcpPeer>), ConnectError> {
        let stream = match self.proxy.proxy_for(&self.server.host, self.server.port)? {
            None => self.dialer.dial("tcp", address).await?.stream,
            Some(proxy) => {
                let at = ServerAddress { host: proxy.host().to_owned(), port: proxy.port() };
                let stream = self.dialer.dial("tcp", &at.to_string()).await?.stream;
                env_proxy::tunnel(stream, proxy, address).await?
            }
        };
        tune(&stream, KeepAlive::default(), None).map_err(ConnectError::Socket)?;
        let kernel = bound_silence(&stream).map_err(ConnectError::Socket)?;
        Ok((stream, kernel))
    }

    /// Until the server has answered, it is pinged as often as any tolerates: one that hangs keeps the agent from all others.
    fn settings(&self) -> ClientSettings {
        ClientSettings { keepalive: pings(GO_PING_INTERVAL), ..ClientSettings::for_agents() }
    }

    async fn open(&self) -> Result<ConnectedStream<GrpcStream>, ConnectError> {
        let metadata = self.agent.headers()?;
        let address = self.server.to_string();
        let (tcp, kernel) = self.dial(&address).await?;
        let shown = self.own_validity();
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
        let settings = self.settings();
        let authority =
            if self.tls.validities().own.is_some() { self.server.bare_host() } else { address.clone() };
        let connected = wire::connect(io, &settings, &authority, PATH, metadata, deadline).await?;
        let (server_id, server_count) = metadata::server(&connected.metadata)?;
        let answer = Capabilities::read(&connected.metadata);
        if let Some(kernel) = kernel {
            connected.connection.pulse.watch_kernel(Arc::new(kernel));
        }
        connected.connection.set_keepalive(match answer.pings {
            true => capabilities::keepalive(self.keepalive, self.unresponsive_timeout),
            false => pings(self.keepalive.max(GO_PING_INTERVAL)),
        });
        connected.connection.pulse.measure(if answer.pings { capabilities::WAY_PINGS } else { 1 });
        let terms = self.agent.offer().terms(answer);
        let stream =
            GrpcStream { wire: connected.stream, own: answer.pings, terms, connection: connected.connection };
        Ok(ConnectedStream { server_id, server_count, shown, stream })
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

    fn own_validity(&self) -> Option<Validity> {
        self.tls.validities().own
    }
}

impl<C: Connector> Connector for Arc<C> {
    type Stream = C::Stream;

    async fn connect(&self) -> Result<ConnectedStream<C::Stream>, ConnectError> {
        C::connect(self).await
    }

    async fn close(&self, stream: C::Stream) {
        C::close(self, stream).await;
    }

    fn own_validity(&self) -> Option<Validity> {
        C::own_validity(self)
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
