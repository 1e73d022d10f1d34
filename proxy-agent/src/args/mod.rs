//! The command line of the proxy-agent: parses it into a typed [`Config`], or refuses it with one line.
//!
//! `table` has one row for each flag and the checks of single values; the checks of several flags together are here. Parsing
//! binds, connects and logs nothing; it checks only that files exist. Outside this module no flag is a string, unless it is free
//! text.
//!
//! Names, defaults, spellings and errors are those of the Go proxy-agent (v0.30 to its current main branch).

mod table;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use flags::{
    Exit, FlagError, FlagSet, FlowOptions, Given, GoDuration, LogOptions, ProfilingFlags, RecordOptions,
    identity, pair,
};
use grpc::KeepaliveFlags;
use uuid::Uuid;

use table::{KubeFlags, PortFlags, ServerFlags};

use crate::client_set::{CountSource, ServerAddress, identifiers};

/// Shorter intervals would be busy loops, as in Go.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

const ABOUT: &str = "dials a cluster's endpoints on behalf of the proxy-servers it connects to.";

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

/// Parses a command line, starting with the program name, and its environment.
pub fn parse(
    argv: impl Iterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Config, Exit> {
    let set = FlagSet::new("proxy-agent", env!("CARGO_PKG_VERSION"), ABOUT).usage(commands::AGENT_USAGE);
    let set = set.group::<ServerFlags>().group::<FlowOptions>();
    let set = set.group::<PortFlags>().group::<ProfilingFlags>().group::<KubeFlags>();
    let set = set.group::<RecordOptions>().group::<LogOptions>();
    set.parse(argv, |given| config(given, environment("PROXY_AGENT_ID")))
}

/// The configuration that the flags give. `inherited_id` is the environment's agent id.
fn config(given: Given, inherited_id: Option<OsString>) -> Result<Config, FlagError> {
    let (mut servers, ports): (ServerFlags, PortFlags) = (given.group()?, given.group()?);
    let certificate =
        pair(("agent-cert", servers.agent_cert.take()), ("agent-key", servers.agent_key.take()))?;
    let profiling = given.group::<ProfilingFlags>()?.check()?;
    let (flow, kube, log): (_, KubeFlags, LogOptions) = (given.group()?, given.group()?, given.group()?);
    let records = given.group()?;
    if kube.count_server_leases && kube.lease_label_selector.is_empty() {
        let fix = "every lease of the namespace would count as a server";
        return Err(FlagError::empty("lease-label-selector (or --lease-label)", fix));
    }
    servers.agent_id = identity("agent-id", servers.agent_id, inherited_id, || Uuid::new_v4().to_string())?;

    let mut warnings: Vec<String> = given.warnings.iter().cloned().chain(given.ignored()).collect();
    if servers.ca_cert.is_none() {
        warnings.push("--ca-cert is empty: servers are trusted by the system's authorities".to_owned());
    }
    let (sync_interval, sync_interval_cap) =
        intervals(servers.sync_interval, servers.sync_interval_cap, &mut warnings)?;
    if servers.allow_cloud_metadata {
        let risk = "servers can get at this host's cloud credentials and link-local services";
        warnings.push(format!("--allow-cloud-metadata: {risk}"));
    }
    if given.values.iter().any(|(flag, value)| *flag == "proxy-server-host" && value.is_empty()) {
        warnings.push("--proxy-server-host is empty: it counts as localhost".to_owned());
    }
    let unmatched = identifiers::unmatched(&servers.agent_identifiers);
    warnings.extend(unmatched.into_iter().map(|what| format!("--agent-identifiers has {what}")));
    warnings.extend(log.warnings());
    let shown_identifiers = servers.agent_identifiers.replace('&', ",");
    let address = |(host, own): &(String, Option<u16>)| ServerAddress {
        host: host.clone(),
        port: own.unwrap_or(servers.proxy_server_port),
    };
    let mut config = Config {
        proxy_servers: servers.proxy_server_host.iter().map(address).collect(),
        certificate,
        keepalive: KeepaliveFlags {
            time: servers.keepalive_time.or_zero(),
            half_open_timeout: servers.keepalive_timeout,
            unresponsive_timeout: servers.unresponsive_timeout,
        },
        sync_interval,
        sync_interval_cap,
        flag_lines: given
            .announce(&[("agent-id", &servers.agent_id), ("agent-identifiers", &shown_identifiers)]),
        changed_flags: given.changed,
        servers,
        ports,
        profiling,
        flow,
        kube,
        records,
        log,
        warnings,
    };
    config.warnings.extend(useless(&config));
    Ok(config)
}

/// Warnings about flags that have no effect beside the others.
fn useless(config: &Config) -> Vec<String> {
    let (servers, kube) = (&config.servers, &config.kube);
    let (no_leases, why) = (!kube.count_server_leases, "leases are not counted");
    let own_ports = servers.proxy_server_host.iter().all(|(_, port)| port.is_some());
    let no_files = servers.ca_cert.is_none() && config.certificate.is_none();
    let flags = [
        ("kubeconfig", no_leases, why),
        ("server-count-source", no_leases && servers.server_count_source == CountSource::Max, why),
        ("lease-namespace", no_leases, why),
        ("lease-label-selector", no_leases, why),
        ("proxy-server-port", own_ports, "each entry of --proxy-server-host has a port"),
        ("certificate-reload-interval", no_files, "no flag names a certificate"),
        config.records.sample_ratio_without_effect(),
    ];
    flags::without_effect(&config.changed_flags, &flags)
}

/// `--sync-interval` and its cap.
fn intervals(
    interval: GoDuration,
    cap: GoDuration,
    warnings: &mut Vec<String>,
) -> Result<(Duration, Duration), FlagError> {
    if interval > cap {
        let want = format!("it must not be above --sync-interval-cap={cap}");
        return Err(FlagError::value("sync-interval", interval, want));
    }
    let mut positive = |flag: &str, given: GoDuration| {
        if given.or_zero() < MIN_INTERVAL {
            warnings.push(format!("--{flag}={given}: it counts as 1ms, less would be a busy loop"));
        }
        given.or_zero().max(MIN_INTERVAL)
    };
    Ok((positive("sync-interval", interval), positive("sync-interval-cap", cap)))
}
