//! The flags of the proxy-agent: one row for each, in the order of the help.

#![expect(clippy::needless_pass_by_value, reason = "a check gets the value of its flag")]

use std::path::PathBuf;
use std::time::Duration;

use flags::{
    BindHost, FlagError, GoDuration, Value, above_zero, bind_host, existing_file, header_text,
    keepalive_timeout, one_of, optional_duration, port, unresponsive_timeout,
};
use net::host_port::split_lenient;

use crate::client_set::{CountSource, Identifiers};
use crate::endpoint::DestinationRule;
use crate::leases::LabelSelector;

const COUNT_SOURCES: [(&str, CountSource); 3] =
    [("", CountSource::Default), ("default", CountSource::Default), ("max", CountSource::Max)];

flags::flags! {
    /// The flags of servers, of this agent and of endpoints.
    #[derive(Debug)]
    pub(super) struct ServerFlags {
        "Proxy-servers" {
            /// Name or address of the proxy-servers; their certificate must contain it. Several, comma-separated, if they
            /// have no common address (the Go proxy-agent takes one): HOST, HOST:PORT or [ADDRESS]:PORT.
            proxy_server_host: Vec<(String, Option<u16>)> = "127.0.0.1" => proxy_server_host,
            /// Agent port of the proxy-servers, unless --proxy-server-host has one.
            proxy_server_port: u16 = "8091" => port,
            /// CA certificates for the servers' certificates, PEM. Empty: the system's. (Required by the Go proxy-agent.)
            ca_cert: Option<PathBuf> = "" => existing_file,
            /// Client certificate chain for servers, PEM.
            agent_cert: Option<PathBuf> = "" => existing_file,
            /// Key of --agent-cert, PEM.
            agent_key: Option<PathBuf> = "" => existing_file,
            /// Interval at which the files of --ca-cert, --agent-cert and --agent-key are checked for changes. 0: they
            /// are read only at the start. (The Go proxy-agent has no such flag.)
            certificate_reload_interval: Option<Duration> = "10s" => optional_duration,
            /// File with a bearer token for servers, read for each connect.
            service_account_token_path: Option<PathBuf> = "" => existing_file,
            /// ALPN protocols to offer before h2 in the TLS handshake, so that a load balancer can recognize agents.
            alpn_proto: Vec<String> = "" => alpn_proto,
            /// Idle time before a ping to a server.
            keepalive_time: GoDuration = "1h0m0s"
                [no_effect = "native servers are pinged after 2s, Go servers after 35s, because they refuse more frequent pings"],
            /// How long a ping to a server may be unanswered that answers on another connection: then this one is half-open
            /// and ends. At least 1s; 0: 20s. See --unresponsive-timeout for a server that answers on none. (Not a
            /// flag of the Go programs.)
            keepalive_timeout: Duration = "20s" => keepalive_timeout,
            /// How long the agent keeps the connections of a server that answers no pings while its host still
            /// acknowledges data. At least 10s. (Not a flag of the Go programs.)
            unresponsive_timeout: Duration = "5m0s" => unresponsive_timeout,
        }
        "This agent" {
            /// Unique id of this agent. Empty: the environment variable PROXY_AGENT_ID.
            agent_id: String = "" [default_shown = "PROXY_AGENT_ID, or a new UUID"],
            /// Hosts and networks by which servers choose this agent, URL-encoded: host=NAME, ipv4=ADDRESS,
            /// ipv6=ADDRESS, cidr=BLOCK, default-route=true and, for --prefer-zone of our servers, zone=NAME, joined by &.
            agent_identifiers: Identifiers = "" => agent_identifiers,
        }
        "Finding all servers" {
            /// Time between tries to reach missing servers, after a limited number of tries at shorter pauses.
            sync_interval: GoDuration = "1s",
            /// Upper limit to which --sync-interval backs off while servers cannot be reached.
            sync_interval_cap: GoDuration = "10s",
            /// Time between checks of the established connections.
            probe_interval: GoDuration = "1s" [no_effect = "a lost stream is noticed at once"],
            /// Continue to look for servers when the known number is connected: at --sync-interval, but every 10 minutes if
            /// every connected server tells this number, and not at all if leases tell it.
            sync_forever: bool = "false",
            /// Source of the number of servers: default (leases with --count-server-leases, else the count that servers
            /// send) or max (the larger of both).
            server_count_source: CountSource = "default" => one_of(&COUNT_SOURCES, "it must be default or max"),
            /// Streams (lanes) to a server that supports several, from 1 to 4: bulk on one does not delay the others. Twice as
            /// many, at most 4, if the RTT is above 10 ms. 1: one stream, as to a Go server. (Not a flag of the Go proxy-agent.)
            lanes: usize = "2" => lanes,
            /// Packets queued for a connection. Above 0.
            xfr_channel_size: usize = "150"
                [no_effect = "what may be queued is limited in bytes, not in packets"] => above_zero,
            warn_on_channel_limit: bool = "false" [no_effect = "there is no channel to be full"],
        }
        "Endpoints" {
            /// Let servers reach link-local addresses (169.254.0.0/16, fe80::/10) and the metadata services of clouds
            /// (such as 169.254.169.254), which provide this host's credentials. To allow only one of them, such as
            /// node-local DNS, use --allow-destinations. (Not a flag of the Go proxy-agent, which always allows them.)
            allow_cloud_metadata: bool = "false",
            /// Destinations that servers must not reach: HOST[:PORTS], comma-separated. HOST is an address, a network
            /// (10.0.0.0/8, [fd00::/8]), a requested name, *.NAME or *; PORTS is one port or FROM-TO. (Not a flag of
            /// the Go proxy-agent.)
            deny_destinations: Vec<DestinationRule> = "" => rules,
            /// Destinations that servers may reach, in the format of --deny-destinations, which takes precedence. Empty:
            /// everything except link-local addresses and metadata services. Only a rule with their own network or
            /// address allows these: *,169.254.20.10:53 allows everything else and node-local DNS. (Not a flag of the
            /// Go proxy-agent.)
            allow_destinations: Vec<DestinationRule> = "" => rules,
        }
    }
}

flags::flags! {
    /// The flags of the health and admin ports; [`flags::ProfilingFlags`] continue them.
    #[derive(Debug)]
    pub(super) struct PortFlags {
        "Health and administration" {
            /// Port for /healthz, /readyz and /metrics.
            health_server_port: u16 = "8093" => port,
            /// Address for --health-server-port. Empty: all interfaces.
            health_server_host: BindHost = "" => bind_host,
            /// Number of connected servers for /readyz to succeed. Above 0. (The Go proxy-agent has no such flag.)
            min_ready_servers: usize = "1" => above_zero,
            /// After the first SIGTERM or SIGINT: exit once no connection is left, or after this time. 0: drain until
            /// the second signal, as in Go. (The Go proxy-agent has no such flag.)
            drain_timeout: Option<Duration> = "0s" => optional_duration,
            /// Port for the status page /, /statusz, the commands and, with profiling, /debug/pprof.
            admin_server_port: u16 = "8094" => port,
            /// Address for --admin-server-port. Empty: all interfaces.
            admin_bind_address: BindHost = "127.0.0.1" => bind_host,
        }
    }
}

flags::flags! {
    /// The flags of the leases and of the Kubernetes API client.
    #[derive(Debug)]
    pub(super) struct KubeFlags {
        "Kubernetes" {
            /// Count servers by their leases instead of the count that servers send.
            count_server_leases: bool = "false",
            /// Namespace of the leases.
            lease_namespace: String = "kube-system",
            /// Label selector of the leases that count.
            lease_label_selector: LabelSelector = "k8s-app=konnectivity-server" [old_name = "lease-label"],
            /// Kubeconfig for the Kubernetes API, to count leases. Empty: the pod's service account.
            kubeconfig: Option<PathBuf> = "" => existing_file,
            /// Media type of requests to the Kubernetes API. The value has no effect: requests are JSON.
            kube_api_content_type: String = "application/vnd.kubernetes.protobuf",
        }
    }
}

impl Value for LabelSelector {
    const KIND: &'static str = "SELECTOR";

    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text).map_err(|error| error.to_string())
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

fn proxy_server_host(flag: &'static str, list: String) -> Result<Vec<(String, Option<u16>)>, FlagError> {
    if list.is_empty() {
        // grpc-go treats an address without a host as the local machine.
        return Ok(vec![("localhost".to_owned(), None)]);
    }
    header_text(flag, list)?.split(',').map(|entry| server_entry(flag, entry)).collect()
}

/// `HOST`, `HOST:PORT`, `ADDRESS`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn server_entry(flag: &'static str, entry: &str) -> Result<(String, Option<u16>), FlagError> {
    let bad = |want: &str| FlagError::value(flag, format_args!("{entry:?}"), want);
    let (host, port) =
        split_lenient(entry).map_err(|_| bad("it must be HOST, HOST:PORT or [ADDRESS]:PORT"))?;
    if host.is_empty() {
        return Err(bad("an entry of the list has no host"));
    }
    let Some(text) = port else { return Ok((entry.to_owned(), None)) };
    let port = text.parse().ok().filter(|port| *port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()));
    Ok((host.to_owned(), Some(port.ok_or_else(|| bad("its port must be from 1 to 65535"))?)))
}

fn lanes(flag: &'static str, lanes: i64) -> Result<usize, FlagError> {
    match usize::try_from(lanes) {
        Ok(lanes @ 1..=4) => Ok(lanes),
        _ => Err(FlagError::value(flag, lanes, "it must be from 1 to 4")),
    }
}

fn alpn_proto(flag: &'static str, names: Vec<String>) -> Result<Vec<String>, FlagError> {
    match names.iter().find(|name| !(1..=255).contains(&name.len())) {
        Some(name) => {
            let want = "a protocol's name has 1 to 255 bytes";
            Err(FlagError::value(flag, format_args!("{name:?}"), want))
        }
        None => Ok(names),
    }
}

fn agent_identifiers(flag: &'static str, text: String) -> Result<Identifiers, FlagError> {
    let text = header_text(flag, text)?;
    Identifiers::parse(&text).map_err(|why| FlagError::value(flag, format_args!("{text:?}"), why.to_string()))
}

fn rules(flag: &'static str, list: Vec<String>) -> Result<Vec<DestinationRule>, FlagError> {
    let rule = |text: &String| {
        DestinationRule::parse(text)
            .map_err(|why| FlagError::value(flag, format_args!("{text:?}"), why.to_string()))
    };
    list.iter().map(rule).collect()
}
