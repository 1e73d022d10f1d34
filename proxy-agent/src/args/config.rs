//! The checked meaning of a command line.

use std::path::PathBuf;
use std::time::Duration;

use flags::{Bind, FlowOptions, LogOptions, RecordOptions};
use grpc::KeepaliveFlags;

use crate::client_set::{CountSource, Identifiers, ServerAddress};
use crate::endpoint::DestinationRule;
use crate::leases::LabelSelector;

/// The configuration of a proxy-agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Names or addresses of the proxy-servers (or of their load balancer), which their certificates must contain, and agent
    /// ports. Never empty.
    pub proxy_servers: Vec<ServerAddress>,
    /// The client certificate; `None`: the agent presents none.
    pub certificate: Option<CertPair>,
    /// Certificate authorities for the servers' certificates, PEM; `None`: the system's.
    pub ca: Option<PathBuf>,
    /// ALPN protocols to offer before `h2`, each of 1 to 255 bytes.
    pub alpn_protos: Vec<String>,
    /// Pings to a server; [`KeepaliveFlags::time`] has no effect on them.
    pub keepalive: KeepaliveFlags,
    /// A file with the bearer token, read again for each connect.
    pub service_account_token_path: Option<PathBuf>,
    /// Time between checks of the certificate, key and CA files; `None`: the files are read once.
    pub certificate_reload_interval: Option<Duration>,
    /// The name of this agent: printable ASCII, not empty.
    pub agent_id: String,
    /// Hosts and networks that this agent serves.
    pub agent_identifiers: Identifiers,
    /// Time between tries to reach missing servers; above 0.
    pub sync_interval: Duration,
    /// Upper limit to which that time backs off; not below [`Self::sync_interval`].
    pub sync_interval_cap: Duration,
    /// Whether to look for further servers after the known number is connected.
    pub sync_forever: bool,
    /// The source of the number of servers.
    pub server_count_source: CountSource,
    /// Wanted streams to each server, from 1 to 4.
    pub lanes: usize,
    /// Whether servers may reach the metadata services of clouds.
    pub allow_cloud_metadata: bool,
    /// Destinations that servers must not reach.
    pub deny_destinations: Vec<DestinationRule>,
    /// Destinations that servers may reach; empty: all others.
    pub allow_destinations: Vec<DestinationRule>,
    /// Port for health, readiness and metrics.
    pub health: Bind,
    /// Port for metrics (by redirection) and profiles.
    pub admin: Bind,
    /// Number of connected servers for the agent to be ready; above 0.
    pub min_ready_servers: usize,
    /// Time limit of the drain after the first signal; `None`: the drain lasts until the second signal.
    pub drain_timeout: Option<Duration>,
    /// Whether the admin port serves profiles.
    pub profiling: bool,
    /// Whether the admin port serves the status on an address that is not a loopback address.
    pub status_on_any_address: bool,
    /// Limits of the payload that waits for slow readers.
    pub flow: FlowOptions,
    /// The leases from which the agent learns the number of servers.
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

/// A certificate chain and its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertPair {
    /// The chain.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// The leases from which the agent learns the number of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// Whether leases are counted.
    pub counted: bool,
    /// The namespace of the leases.
    pub namespace: String,
    /// The label selector of the leases.
    pub selector: LabelSelector,
}

/// How to reach the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeClient {
    /// A kubeconfig; `None`: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The media type of request bodies.
    pub content_type: String,
}
