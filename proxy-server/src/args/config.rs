//! The checked meaning of a command line.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flags::{Bind, BindHost, FlowOptions, LogOptions, RecordOptions};

use grpc::KeepaliveFlags;
use net::host_port::Joined;
use net::tls::{CipherSuites, TlsVersion};

use crate::agent_stream::IdentityBinding;
use crate::backends::{ReadinessPolicy, Selection, Strategy};
use crate::frontend::Protocol;

/// The configuration of a proxy-server.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where kube-apiserver connects: different addresses, at least one.
    pub frontends: Vec<FrontendConfig>,
    /// Where agents connect.
    pub agent_listener: AgentListener,
    /// Port for health, readiness and metrics.
    pub health: Bind,
    /// Port for metrics and profiles.
    pub admin: Bind,
    /// Pings to an agent; [`KeepaliveFlags::time`] is at least 1 s.
    pub keepalive: KeepaliveFlags,
    /// Idle time before the server pings a frontend; at least 1 s.
    pub frontend_keepalive_time: Duration,
    /// Whether the admin port serves profiles.
    pub profiling: bool,
    /// Whether the admin port dials through an agent that a request names.
    pub allow_probe_dials: bool,
    /// Whether the admin port serves the status on an address that is not a loopback address.
    pub status_on_any_address: bool,
    /// The name of this replica: printable ASCII, not empty.
    pub server_id: String,
    /// Number of replicas that agents should look for; at least 1.
    pub server_count: u32,
    /// A file with that number, read again when it changes.
    pub server_count_file: Option<PathBuf>,
    /// Strategies to choose an agent, in the order in which they are tried; not empty.
    pub strategies: Vec<Strategy>,
    /// How one of several suitable agents is chosen.
    pub agent_selection: Selection,
    /// The zone whose agents are preferred.
    pub prefer_zone: Option<Arc<str>>,
    /// The TLS 1.2 suites of both TLS listeners.
    pub cipher_suites: CipherSuites,
    /// The lowest TLS version that both TLS listeners accept.
    pub tls_min_version: TlsVersion,
    /// Time between checks of the certificate files of both TLS listeners; `None`: the files are read once.
    pub certificate_reload_interval: Option<Duration>,
    /// Which strategies must have an agent for the server to be ready.
    pub readiness_policy: ReadinessPolicy,
    /// How long connections may continue after the first signal; zero: the server stops at once.
    pub graceful_shutdown_timeout: Duration,
    /// The deadline of one dial including its retry, if the operator set one.
    pub dial_timeout: Option<Duration>,
    /// Authentication of agents by service account tokens.
    pub token_auth: Option<TokenAuth>,
    /// What the server does about claims that do not follow from an agent's identity.
    pub identity_binding: IdentityBinding,
    /// Whether an agent may claim the source address of its connection (`--agent-identity-source-address`).
    pub trust_source_address: bool,
    /// Names of agent certificates that are admitted; empty: all.
    pub agent_names: Vec<String>,
    /// Names of agents that may claim wide routes under `--agent-identity-binding`.
    pub default_route_names: Vec<String>,
    /// Names of frontend certificates that are admitted; empty: all.
    pub frontend_names: Vec<String>,
    /// Limits of the payload that waits for slow readers.
    pub flow: FlowOptions,
    /// The leases from which agents learn the number of replicas.
    pub leases: Leases,
    /// How to reach the Kubernetes API.
    pub kube: KubeClient,
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
            FrontendListener::Unix { path, .. } => write!(f, "{protocol}+unix:{}", path.display()),
            FrontendListener::Tcp { bind, .. } if bind.host == BindHost::All => {
                write!(f, "{protocol}+tcp:{}", bind.port)
            }
            FrontendListener::Tcp { bind, .. } => {
                write!(f, "{protocol}+tcp:{}", Joined(&bind.host.text(), bind.port))
            }
        }
    }
}

/// Where kube-apiserver connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontendListener {
    /// A Unix socket, without TLS.
    Unix {
        /// The socket's path.
        path: PathBuf,
        /// Remove an existing file of that name first.
        delete_existing: bool,
    },
    /// A TLS port that requires client certificates.
    Tcp {
        /// Host and port.
        bind: Bind,
        /// Our certificate chain, PEM.
        cert: PathBuf,
        /// Its key, PEM.
        key: PathBuf,
        /// Certificate authorities for client certificates, PEM.
        ca: PathBuf,
    },
}

/// Where agents connect: always TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentListener {
    /// Host and port.
    pub bind: Bind,
    /// Our certificate chain, PEM.
    pub cert: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// Certificate authorities for agent certificates, PEM. `None`: the server requests no client certificate.
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

/// The leases from which agents learn the number of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// Publish our own lease and delete expired ones.
    pub enabled: bool,
    /// The namespace of the leases.
    pub namespace: String,
    /// The labels of the leases.
    pub labels: BTreeMap<String, String>,
    /// `HOST:PORT` where agents reach this replica directly.
    pub advertise_address: Option<String>,
}

/// How to reach the Kubernetes API.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeClient {
    /// A kubeconfig; `None`: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Requests per second; 0: the client's default.
    pub qps: f32,
    /// Requests in one burst; 0: the client's default.
    pub burst: i64,
    /// The media type of request bodies.
    pub content_type: String,
}
