//! What a command line means, once it was read and found sound.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use flags::{Bind, FlowOptions, LogOptions};

use transport::tls::{CipherSuites, TlsVersion};

/// Everything that the proxy-server is told at its start.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where kube-apiserver connects.
    pub frontend: FrontendListener,
    /// How kube-apiserver speaks there.
    pub mode: Mode,
    /// Where agents connect.
    pub agent_listener: AgentListener,
    /// Health, readiness and metrics.
    pub health: Bind,
    /// Metrics and profiles.
    pub admin: Bind,
    /// Idle time before a ping to an agent; at least a second.
    pub keepalive_time: Duration,
    /// `--unresponsive-timeout`.
    pub unresponsive_timeout: Duration,
    /// Idle time before a ping to a frontend; at least a second.
    pub frontend_keepalive_time: Duration,
    /// Serve profiles on the admin port.
    pub profiling: bool,
    /// This replica among its peers: printable ASCII, not empty.
    pub server_id: String,
    /// Replicas that agents should look for; at least 1.
    pub server_count: u32,
    /// Ways to choose an agent, in the order in which they are tried; not empty.
    pub strategies: Vec<ProxyStrategy>,
    /// The TLS 1.2 suites of both TLS listeners.
    pub cipher_suites: CipherSuites,
    /// The least version that both TLS listeners accept.
    pub tls_min_version: TlsVersion,
    /// Time between looks at the files of both TLS listeners; `None`: they are not looked at again.
    pub certificate_reload_interval: Option<Duration>,
    /// What must be connected for the server to be ready.
    pub readiness_policy: ReadinessPolicy,
    /// How long connections may finish after the first signal; zero: not at all.
    pub graceful_shutdown_timeout: Duration,
    /// The deadline of one dial, retries included, if the operator set one.
    pub dial_timeout: Option<Duration>,
    /// Authentication of agents by their service account's token.
    pub token_auth: Option<TokenAuth>,
    /// What is done about claims that do not follow from an agent's identity.
    pub identity_binding: IdentityBinding,
    /// The address that an agent's connection comes from is one that it may claim where claims are bound.
    pub trust_source_address: bool,
    /// Names of agents' certificates that may come in; empty: all.
    pub agent_names: Vec<String>,
    /// Names of agents that may claim wide routes where claims are bound.
    pub default_route_names: Vec<String>,
    /// Names of frontends' certificates that may come in; empty: all.
    pub frontend_names: Vec<String>,
    /// How payload that waits for slow readers is bounded.
    pub flow: FlowOptions,
    /// Leases that count the replicas.
    pub leases: Leases,
    /// How to reach the Kubernetes API.
    pub kube: KubeClient,
    /// How and where to log.
    pub log: LogOptions,
    /// One line for each flag, to log at the start.
    pub flag_lines: Vec<String>,
    /// Lines to log once at the start: flags given in vain, deprecated or insecure.
    pub notices: Vec<String>,
}

/// Where kube-apiserver connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontendListener {
    /// A Unix socket, without TLS.
    Unix {
        /// The socket's path.
        path: PathBuf,
        /// Remove what is there under that name first.
        delete_existing: bool,
    },
    /// A port with TLS, client certificates required.
    Tcp {
        /// Host and port.
        bind: Bind,
        /// Our certificate chain, PEM.
        cert: PathBuf,
        /// Its key, PEM.
        key: PathBuf,
        /// Authorities of client certificates, PEM.
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
    /// Authorities of agents' certificates, PEM. `None`: no client certificate is asked for.
    pub client_ca: Option<PathBuf>,
}

/// How kube-apiserver speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A gRPC stream of packets for each connection.
    Grpc,
    /// HTTP/1.1 CONNECT.
    HttpConnect,
}

/// A way to choose an agent for a dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyStrategy {
    /// Any agent, by chance.
    Default,
    /// The agent that named the target's host among its identifiers.
    DestHost,
    /// An agent that said `default-route=true`.
    DefaultRoute,
}

impl ProxyStrategy {
    /// The name, as flags and metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::DestHost => "destHost",
            Self::DefaultRoute => "defaultRoute",
        }
    }

    /// The strategy of that name; case counts.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Default, Self::DestHost, Self::DefaultRoute].into_iter().find(|known| known.name() == name)
    }
}

/// Which strategies must have an agent for the server to be ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadinessPolicy {
    /// The first one, as in Go.
    #[default]
    FirstStrategy,
    /// Whichever.
    Any,
    /// Every one.
    All,
}

/// What is done about claims that do not follow from an agent's identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityBinding {
    /// Nothing; they are not looked at.
    Off,
    /// They are logged and counted.
    #[default]
    Log,
    /// The agent is refused.
    Enforce,
}

/// Whose tokens let an agent in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAuth {
    /// The agents' namespace.
    pub namespace: String,
    /// The agents' service account.
    pub service_account: String,
    /// The audience that a token must be for.
    pub audience: String,
    /// How often the tokens of long streams are reviewed again; `None`: never.
    pub review_every: Option<Duration>,
}

/// Leases by which agents count the replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// Publish our own lease and delete expired ones.
    pub enabled: bool,
    /// Where leases live.
    pub namespace: String,
    /// What marks them.
    pub labels: BTreeMap<String, String>,
}

/// How to reach the Kubernetes API.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeClient {
    /// A kubeconfig; `None`: the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// Requests a second; 0 is the client's own default.
    pub qps: f32,
    /// Requests at once; 0 is the client's own default.
    pub burst: i64,
    /// The form of requests, as a media type.
    pub content_type: String,
}
