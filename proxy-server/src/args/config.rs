//! The checked meaning of a command line.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use flags::{Bind, FlowOptions, LogOptions, ProfilingFlags, RecordOptions};

use grpc::KeepaliveFlags;
use net::host_port::HostPort;

use super::table::{AccessFlags, AgentFlags, FrontendFlags, KubeFlags, PortFlags, ReplicaFlags};
use crate::frontend::Protocol;

/// The configuration of a proxy-server: what follows from several flags, and the flags.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where kube-apiserver connects: different addresses, at least one.
    pub frontends: Vec<FrontendConfig>,
    /// The TLS of the frontends' ports, if there is a port.
    pub frontend_tls: Option<TlsFiles>,
    /// The TLS of the agent port.
    pub agent_tls: TlsFiles,
    /// Pings to an agent; [`KeepaliveFlags::time`] is at least 1 s.
    pub keepalive: KeepaliveFlags,
    /// Authentication of agents by service account tokens.
    pub token_auth: Option<TokenAuth>,
    /// The flags of frontends.
    pub frontend: FrontendFlags,
    /// The flags of agents; TLS is that of both TLS listeners.
    pub agents: AgentFlags,
    /// What agents may claim.
    pub access: AccessFlags,
    /// This replica (its id is printable ASCII, not empty; the count at least 1) and its choice of agents.
    pub replica: ReplicaFlags,
    /// Health and administration.
    pub ports: PortFlags,
    /// What the admin port shows.
    pub profiling: ProfilingFlags,
    /// Limits of the payload that waits for slow readers.
    pub flow: FlowOptions,
    /// The leases from which agents learn the number of replicas, and the Kubernetes API.
    pub kube: KubeFlags,
    /// Where to record connections.
    pub records: RecordOptions,
    /// How and where to log.
    pub log: LogOptions,
    /// One line for each flag, to log at the start.
    pub flag_lines: Vec<String>,
    /// The flags that differ from their defaults, with their values.
    pub changed_flags: Vec<(&'static str, String)>,
    /// Lines to log once at the start: flags without effect, deprecated flags and insecure settings.
    pub warnings: Vec<String>,
}

/// A frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendConfig {
    /// The protocol that kube-apiserver speaks there.
    pub protocol: Protocol,
    /// Where kube-apiserver connects.
    pub listener: FrontendListener,
}

/// As `--frontend` names it.
impl fmt::Display for FrontendConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.name();
        match &self.listener {
            FrontendListener::Unix(path) => write!(f, "{protocol}+unix:{}", path.display()),
            FrontendListener::Tcp(Bind { host, port }) => match host.text() {
                "" => write!(f, "{protocol}+tcp:{port}"),
                host => write!(f, "{protocol}+tcp:{}", HostPort(host, *port)),
            },
        }
    }
}

/// Where kube-apiserver connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontendListener {
    /// A Unix socket of this path, without TLS.
    Unix(PathBuf),
    /// A TLS port that requires client certificates.
    Tcp(Bind),
}

/// The TLS files of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Our certificate chain, PEM.
    pub cert: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// Certificate authorities for client certificates, PEM. `None`: the server requests no client certificate.
    pub client_ca: Option<PathBuf>,
}

/// The service account whose tokens admit an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAuth {
    /// The agents' namespace.
    pub namespace: String,
    /// The agents' service account.
    pub service_account: String,
    /// The audience that a token must have.
    pub audience: String,
    /// Interval at which the tokens of open streams are reviewed again; `None`: never.
    pub review_every: Option<Duration>,
}
