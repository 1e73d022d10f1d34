//! The checked meaning of a command line.

use std::path::PathBuf;
use std::time::Duration;

use flags::{FlowOptions, LogOptions, ProfilingFlags, RecordOptions};
use grpc::KeepaliveFlags;

use super::table::{KubeFlags, PortFlags, ServerFlags};
use crate::client_set::ServerAddress;

/// The configuration of a proxy-agent: what follows from several flags, and the flags.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Names or addresses of the proxy-servers (or of their load balancer), which their certificates must contain, and agent
    /// ports. Never empty.
    pub proxy_servers: Vec<ServerAddress>,
    /// The client certificate and its key, PEM; `None`: the agent presents none.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Pings to a server; [`KeepaliveFlags::time`] has no effect on them.
    pub keepalive: KeepaliveFlags,
    /// Time between tries to reach missing servers; above 0.
    pub sync_interval: Duration,
    /// Upper limit to which that time backs off; not below [`Self::sync_interval`].
    pub sync_interval_cap: Duration,
    /// The servers, this agent (its id is printable ASCII, not empty) and its endpoints.
    pub servers: ServerFlags,
    /// Health and administration.
    pub ports: PortFlags,
    /// What the admin port shows.
    pub profiling: ProfilingFlags,
    /// Limits of the payload that waits for slow readers.
    pub flow: FlowOptions,
    /// The leases by which servers are counted, and the Kubernetes API.
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
