//! What a command line means, once it was read and found sound.

use std::path::PathBuf;
use std::time::Duration;

use flags::{Bind, FlowOptions, LogOptions};

use super::{Identifiers, LabelSelector};
use crate::endpoint::DestinationRule;

/// Everything that the proxy-agent is told at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name or address of the proxy-servers (or of what stands before them), which their certificate must bear.
    pub proxy_server_host: String,
    /// Their port for agents.
    pub proxy_server_port: u16,
    /// What we show; `None`: nothing.
    pub certificate: Option<CertPair>,
    /// Authorities of the servers' certificates, PEM; `None`: the system's.
    pub ca: Option<PathBuf>,
    /// Protocols to offer ahead of `h2`, each of 1 to 255 bytes.
    pub alpn_protos: Vec<String>,
    /// Idle time before a ping to a server; at least 10 s.
    pub keepalive_time: Duration,
    /// `--unresponsive-timeout`.
    pub unresponsive_timeout: Duration,
    /// A file with a token to show, read anew for each connect.
    pub service_account_token_path: Option<PathBuf>,
    /// Time between looks at the files of certificate, key and authorities; `None`: they are not looked at again.
    pub certificate_reload_interval: Option<Duration>,
    /// This agent among its peers: printable ASCII, not empty.
    pub agent_id: String,
    /// Hosts that this agent serves best.
    pub agent_identifiers: Identifiers,
    /// Time between looks for missing servers; above 0.
    pub sync_interval: Duration,
    /// What that time may back off to; not below [`Self::sync_interval`].
    pub sync_interval_cap: Duration,
    /// Keep looking for servers when as many are connected as there should be.
    pub sync_forever: bool,
    /// Whose count of servers counts.
    pub server_count_source: ServerCountSource,
    /// Servers may reach the metadata services of clouds.
    pub allow_cloud_metadata: bool,
    /// What servers must not reach.
    pub deny_destinations: Vec<DestinationRule>,
    /// What servers may reach, apart from that; empty: everything.
    pub allow_destinations: Vec<DestinationRule>,
    /// Health, readiness and metrics.
    pub health: Bind,
    /// Metrics (by redirection) and profiles.
    pub admin: Bind,
    /// Servers that must be connected for the agent to be ready; above 0.
    pub min_ready_servers: usize,
    /// How long the first signal's drain may take before the agent exits; `None`: until the second signal.
    pub drain_timeout: Option<Duration>,
    /// Serve profiles on the admin port.
    pub profiling: bool,
    /// How payload that waits for slow readers is bounded.
    pub flow: FlowOptions,
    /// Leases by which servers are counted.
    pub leases: Leases,
    /// How to reach the Kubernetes API.
    pub kube: KubeClient,
    /// How and where to log.
    pub log: LogOptions,
    /// One line for each flag, to log at the start.
    pub flag_lines: Vec<String>,
    /// Lines to log once at the start: flags given in vain, deprecated or remarkable.
    pub notices: Vec<String>,
}

/// A certificate chain and its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertPair {
    /// The chain.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// How the count from leases and the count from servers make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerCountSource {
    /// Leases when they are counted, else what the last new server said.
    Default,
    /// The larger of the two.
    Max,
}

/// Leases by which servers are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// Count them.
    pub counted: bool,
    /// Where they live.
    pub namespace: String,
    /// Which of them count.
    pub selector: LabelSelector,
}

/// How to reach the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeClient {
    /// A kubeconfig; `None`: the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// The form of requests, as a media type.
    pub content_type: String,
}
