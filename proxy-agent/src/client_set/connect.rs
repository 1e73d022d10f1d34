//! One attempt to connect to a server: resolve, dial (optionally through an HTTP proxy), TLS handshake, open the stream, read
//! the server's answer.
//!
//! Every attempt starts from the beginning: the name may lead to another replica, and the token or certificate may have been
//! rotated. Every step has its own time limit. Never retries.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use grpc::capabilities::{self, Capabilities};
use grpc::live_streams::LiveStreams;
use grpc::{Code, KeepaliveFlags, Wire, WireError};
use net::env_proxy::{self, EnvProxy, Proxy, ProxyUrlError};
use net::host_port::HostPort;
use net::kernel::{TcpPeer, bound_silence};
use net::listen::{HANDSHAKE_TIMEOUT, LinkSocket, tune};
use net::tls::{self, ClientTls, HandshakeError, Validity};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::metadata::{self, AgentMetadata};
use super::{Address, ConnectedStream, Connector, Resolved, ServerInfo};
use crate::endpoint::{DialError, Dialer, Failure, Resolve};
use crate::link::{CLOSE_TIMEOUT, GrpcStream};

/// Time limit for resolving and dialing together.
pub const SERVER_DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for the lookup of a name's addresses: the second name server is asked after 1.5 s, and search domains need several
/// questions. A name that takes longer is dialed as one address, within [`SERVER_DIAL_TIMEOUT`].
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the server's answer to the stream. A Go server first reviews the token by the Kubernetes API, by default for
/// five agents per second. After its restart 2,000 agents wait up to seven minutes, and an agent that gives up leaves its
/// review in the queue. (Go's agent waits forever; pings detect a server that hangs within a minute.)
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1800);

/// The path of the agents' gRPC method.
const PATH: &str = "/AgentService/Connect";

/// The fix if another port than the agent port answers.
const AGENT_PORT: &str = "--proxy-server-port must lead to the server's --agent-port";

/// The fixes if nothing listens at an address of a server, or at a proxy.
const LISTENER: &str = "check that the server runs, and that --proxy-server-host and --proxy-server-port lead to its --agent-port";
const PROXY: &str = "check HTTPS_PROXY and NO_PROXY";

/// Alerts of a server about the agent's certificate, and the fix.
const REFUSALS: [(&str, &str); 3] = [
    ("UnsupportedCertificate", "its extended key usage must allow client authentication"),
    ("UnknownCA", "its --cluster-ca-cert must contain the issuer"),
    (
        "DecryptError",
        "its --cluster-ca-cert has another key of the issuer, or a certificate of the chain is signed with SHA-1",
    ),
];

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ConnectError {
    /// The stage that failed.
    pub stage: ConnectStage,
    text: String,
    /// The probable cause in words, for an operator.
    pub hint: Option<String>,
}

serve::label! {
    /// The stage at which an attempt to connect to a server failed.
    pub enum ConnectStage in "stage" {
        /// Reading the token, or making the request.
        Prepare => "prepare",
        /// The lookup of the server's name.
        Lookup => "lookup",
        /// The TCP connection, or the tunnel of an HTTP proxy.
        Dial => "dial",
        /// The TLS handshake.
        Tls => "tls",
        /// The server, or a proxy before it, refused the stream or answered nonsense.
        Stream => "stream",
        /// Unknown, because the attempt's task panicked.
        Task => "task",
    }
}

impl ConnectError {
    /// An error without a hint.
    pub fn at(stage: ConnectStage, error: impl Display) -> Self {
        Self { stage, text: error.to_string(), hint: None }
    }

    /// No TCP connection to the server, or to the HTTP proxy in front of it. `fix`: what to do if nothing listens there.
    fn dial(error: DialError, fix: &str) -> Self {
        let (stage, hint) = match &error.failure {
            Failure::Lookup(_) => (ConnectStage::Lookup, None),
            Failure::Os { error, .. } if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                (ConnectStage::Dial, Some(format!("nothing listens there: {fix}")))
            }
            _ => (ConnectStage::Dial, None),
        };
        Self { hint, ..Self::at(stage, error) }
    }

    fn tls(error: &HandshakeError, address: &str, tls: &ClientTls) -> Self {
        let hint = match error {
            HandshakeError::UnknownIssuer { authorities, .. } => Some(format!("--ca-cert {authorities}")),
            _ => tls_hint(&error.to_string(), address, tls),
        };
        Self { hint, ..Self::at(ConnectStage::Tls, format_args!("TLS with {address}: {error}")) }
    }

    /// The server, or a proxy before it, refused the stream.
    fn stream(error: &WireError, tls: &ClientTls) -> Self {
        let hint = match error.code {
            Code::Unimplemented => {
                Some(format!("is it the agent port? A gRPC frontend answers like this; {AGENT_PORT}"))
            }
            // In TLS 1.3 the server verifies the certificate after the client's handshake.
            _ => refused_certificate(&error.message, tls)
                .or_else(|| refused_token(&error.message).map(str::to_owned)),
        };
        Self { hint, ..Self::at(ConnectStage::Stream, format_args!("stream to the server: {error}")) }
    }
}

fn tls_hint(error: &str, address: &str, tls: &ClientTls) -> Option<String> {
    if error.contains("InvalidContentType") {
        return Some(format!(
            "the answer is not TLS; is {address} the agent port? Health and admin ports speak plain HTTP; {AGENT_PORT}"
        ));
    }
    if error.contains("fatal alert: NoApplicationProtocol") {
        return Some(format!(
            "the peer speaks other protocols; is {address} the agent port? An HTTP CONNECT frontend answers like this; {AGENT_PORT}"
        ));
    }
    refused_certificate(error, tls)
}

/// The hint for Go's texts about the agent's token.
fn refused_token(text: &str) -> Option<&'static str> {
    if text.contains("Authentication context was not found in metadata") {
        return Some("the server requires a token: set --service-account-token-path");
    }
    if text.contains("Failed to authenticate request") {
        return Some(
            "the server could not review the token, which may be valid: its log has the reason (--kubeconfig, the right to create \
             tokenreviews), or many agents at this address wait",
        );
    }
    text.contains("Failed to validate authentication token").then_some(
        "the token of --service-account-token-path must suit --authentication-audience, --agent-namespace and \
         --agent-service-account of the server, and must not be expired",
    )
}

/// The hint for an alert about the agent's certificate.
fn refused_certificate(text: &str, tls: &ClientTls) -> Option<String> {
    let (_, alert) = text.split_once("received fatal alert: ")?;
    if alert.starts_with("CertificateRequired") {
        return Some(match tls.certificates().into_iter().rfind(|cert| cert.presented) {
            None => "the server requires a client certificate: set --agent-cert and --agent-key".to_owned(),
            Some(own) => format!(
                "the agent did not send --agent-cert: the server's --cluster-ca-cert does not contain its issuer {}",
                own.issuer
            ),
        });
    }
    if alert.starts_with("CertificateExpired") {
        return Some("the server says that --agent-cert is expired or not valid yet: replace it, or correct the clocks".to_owned());
    }
    let known = REFUSALS.iter().find(|(name, _)| alert.starts_with(name)).map(|(_, why)| *why);
    // Go's server sends BadCertificate for most reasons.
    let any = "check its issuer, dates and extended key usage (client authentication)";
    let why = known.or(alert.contains("Certificate").then_some(any))?;
    Some(format!("the server does not accept --agent-cert: {why}; its log has the reason"))
}

/// An address of servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl ServerAddress {
    /// The host as an authority without a port; an IPv6 address in brackets.
    fn bare_host(&self) -> String {
        let text = self.to_string();
        text.strip_suffix(&format!(":{}", self.port)).unwrap_or(&text).to_owned()
    }
}

impl Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        HostPort(&self.host, self.port).fmt(f)
    }
}

/// Opens streams over TLS and HTTP/2.
pub struct GrpcConnector<R> {
    /// The entries of `--proxy-server-host`, in the order of [`net::tls::ClientTlsOptions::server_names`].
    pub servers: Vec<ServerAddress>,
    /// See [`Dialer::to_servers`], within [`SERVER_DIAL_TIMEOUT`].
    pub dialer: Dialer<R>,
    /// The HTTP proxy of the environment.
    pub proxy: EnvProxy,
    /// The TLS configuration.
    pub tls: ClientTls,
    /// The request headers.
    pub agent: AgentMetadata,
    /// The pings to servers.
    pub keepalive: KeepaliveFlags,
}

impl<R: Resolve> GrpcConnector<R> {
    /// The addresses of an entry: of a name with several addresses these, otherwise the entry itself, which is looked up again
    /// when it is dialed. An HTTP proxy looks up names itself.
    async fn addresses(&self, index: usize, entry: &ServerAddress) -> Resolved {
        let found = match self.proxy.proxy_for(&entry.host, entry.port) {
            Ok(None) => match timeout(LOOKUP_TIMEOUT, self.dialer.addresses(&entry.host)).await {
                Ok(found) => found.map_err(|error| error.to_string()),
                Err(_) => Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())),
            },
            _ => Ok(Vec::new()),
        };
        let (several, error) = found.map_or_else(|error| (Vec::new(), Some(error)), |found| (found, None));
        let of = |ip: IpAddr| ServerAddress { host: ip.to_string(), port: entry.port };
        let dials =
            if several.len() > 1 { several.into_iter().map(of).collect() } else { vec![entry.clone()] };
        Resolved { addresses: dials.into_iter().map(|dial| Address { dial, entry: index }).collect(), error }
    }

    /// The proxy for an address. NO_PROXY may name the entry, or the address itself if a lease tells it.
    fn proxy_for(&self, to: &Address, entry: &ServerAddress) -> Result<Option<&Proxy>, ProxyUrlError> {
        match self.proxy.proxy_for(&entry.host, entry.port) {
            Ok(None) => Ok(None),
            _ => self.proxy.proxy_for(&to.dial.host, to.dial.port),
        }
    }

    /// Dials; returns the connection, and a handle to ask the kernel about its peer.
    async fn dial(
        &self,
        to: &Address,
        entry: &ServerAddress,
    ) -> Result<(TcpStream, Option<TcpPeer>), ConnectError> {
        let address = to.dial.to_string();
        let proxy =
            self.proxy_for(to, entry).map_err(|error| ConnectError::at(ConnectStage::Prepare, error))?;
        let failed = |error: &dyn Display| ConnectError::at(ConnectStage::Dial, error);
        let dial = async |address, fix| {
            self.dialer.dial("tcp", address).await.map_err(|error| ConnectError::dial(error, fix))
        };
        let stream = match proxy {
            None => dial(&address, LISTENER).await?.stream,
            Some(proxy) => {
                let stream = dial(&proxy.to_string(), PROXY).await?.stream;
                env_proxy::tunnel(stream, proxy, &address).await.map_err(|error| failed(&error))?
            }
        };
        let kernel = tune(&stream, None).and_then(|()| bound_silence(&stream));
        let kernel = kernel.map_err(|error| failed(&format_args!("socket: {error}")))?;
        Ok((stream, kernel))
    }

    async fn open(
        &self,
        to: &Address,
        streams: &LiveStreams,
    ) -> Result<ConnectedStream<GrpcStream>, ConnectError> {
        let metadata = self.agent.headers(streams)?;
        let entry = &self.servers[to.entry];
        let address = to.dial.to_string();
        let (tcp, kernel) = self.dial(to, entry).await?;
        let presented = self.certificate_validity();
        let mut socket = LinkSocket::new(tcp);
        socket.bound_unsent();
        let handshake = self.tls.connect(to.entry, tls::ReadAhead::new(socket));
        let shaken = timeout(HANDSHAKE_TIMEOUT, handshake).await;
        let shaken = shaken.unwrap_or(Err(HandshakeError::Timeout(HANDSHAKE_TIMEOUT)));
        let mut io = shaken.map_err(|error| ConnectError::tls(&error, &address, &self.tls))?;
        io.get_mut().0.begin(tls::READ_AHEAD);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let io = tls::Gathering::new(io);
        let authority = match self.tls.validities().own {
            Some(_) => entry.bare_host(),
            None => entry.to_string(),
        };
        let keepalive = self.keepalive.connecting();
        let connected =
            grpc::connect(io, keepalive, (authority.as_str(), PATH), metadata, None, deadline).await;
        let connected = connected.map_err(|error| ConnectError::stream(&error, &self.tls))?;
        let (server_id, server_count) = metadata::server(&connected.metadata).map_err(|error| {
            ConnectError::at(ConnectStage::Stream, format_args!("the server's answer: {error}"))
        })?;
        let answer = Capabilities::read(&connected.metadata);
        if let Some(kernel) = kernel {
            connected.connection.keepalive.watch_kernel(Arc::new(kernel));
        }
        connected.connection.keepalive.set_keepalive(match answer.pings {
            true => self.keepalive.to_native_server(),
            false => self.keepalive.to_upstream_server(),
        });
        let probes = if answer.pings { capabilities::RTT_PROBES } else { 1 };
        connected.connection.keepalive.measure(probes, self.agent.offer.lanes);
        let negotiated = self.agent.offer.negotiated(answer);
        let stream = GrpcStream {
            wire: connected.stream,
            native: answer.pings,
            address,
            negotiated,
            connection: connected.connection,
        };
        let lanes = answer.lanes.filter(|_| self.agent.offer.lanes.is_some()).unwrap_or(1);
        let info =
            ServerInfo { servers: server_count, lanes: usize::try_from(lanes).unwrap_or(usize::MAX).max(1) };
        Ok(ConnectedStream { server_id, info, presented, stream })
    }
}

impl<R: Resolve> Connector for GrpcConnector<R> {
    type Stream = GrpcStream;

    fn entries(&self) -> Vec<Address> {
        let entries = self.servers.iter().enumerate();
        entries.map(|(entry, dial)| Address { dial: dial.clone(), entry }).collect()
    }

    async fn resolve(&self) -> Vec<Resolved> {
        let entries = self.servers.iter().enumerate();
        join_all(entries.map(|(index, entry)| self.addresses(index, entry))).await
    }

    async fn connect(
        &self,
        address: &Address,
        streams: LiveStreams,
    ) -> Result<ConnectedStream<GrpcStream>, ConnectError> {
        Box::pin(self.open(address, &streams)).await
    }

    async fn close(&self, stream: GrpcStream) {
        let GrpcStream { mut wire, connection, .. } = stream;
        wire.finish();
        drop(wire);
        connection.close(CLOSE_TIMEOUT).await;
    }

    fn certificate_validity(&self) -> Option<Validity> {
        self.tls.validities().own
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
