//! The flags of the proxy-agent: one row for each, in the order of the help.

#![expect(clippy::needless_pass_by_value, reason = "a check gets the value of its flag")]

use std::path::PathBuf;
use std::time::Duration;

use flags::{
    BindHost, FlagError, GoDuration, above_zero, bind_host, existing_file, header_text, keepalive_timeout,
    one_of, optional_duration, port, unresponsive_timeout,
};
use net::host_port::split_lenient;

use crate::client_set::{CountSource, identifiers};
use crate::endpoint::DestinationRule;
use crate::leases::LabelSelector;

const COUNT_SOURCES: [(&str, CountSource); 3] =
    [("", CountSource::Default), ("default", CountSource::Default), ("max", CountSource::Max)];

flags::flags! {
    /// The flags of servers, of this agent and of endpoints.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ServerFlags {
        "Proxy-servers" {
            /// Name or address of the proxy-servers, which their certificate must contain: HOST, HOST:PORT or
            /// [ADDRESS]:PORT. If the servers have no common address, several, comma-separated (the Go proxy-agent
            /// takes one).
            proxy_server_host: Vec<(String, Option<u16>)> = "127.0.0.1" [go = (4, "ProxyServerHost set to %q.")]
                => proxy_server_host,
            /// Agent port of the proxy-servers, for entries of --proxy-server-host without a port.
            proxy_server_port: u16 = "8091" [go = (5, "ProxyServerPort set to %d.")] => port,
            /// CA certificates for the servers' certificates, PEM. Empty: the system's. (Required by the Go proxy-agent.)
            ca_cert: Option<PathBuf> = "" [go = (3, "CACert set to %q.")] => existing_file,
            /// Client certificate chain for servers, PEM.
            agent_cert: Option<PathBuf> = "" [go = (1, "AgentCert set to %q.")] => existing_file,
            /// Key of --agent-cert, PEM.
            agent_key: Option<PathBuf> = "" [go = (2, "AgentKey set to %q.")] => existing_file,
            /// Interval at which the files of --ca-cert, --agent-cert and --agent-key are checked for changes. 0: they
            /// are read only at the start. (The Go proxy-agent has no such flag.)
            certificate_reload_interval: Option<Duration> = "10s" => optional_duration,
            /// File with a bearer token for servers. The agent reads it for each connect.
            service_account_token_path: Option<PathBuf> = "" [go = (27, "ServiceAccountTokenPath set to %q.")]
                => existing_file,
            /// ALPN protocols to offer before h2 in the TLS handshake, so that a load balancer can recognize agents.
            alpn_proto: Vec<String> = "" [go = (6, "ALPNProtos set to [%s].")] => alpn_proto,
            /// Idle time before a ping to a server.
            keepalive_time: GoDuration = "1h0m0s" [go = (26, "Keepalive time set to %v.")]
                [no_effect = "native servers are pinged after 2s, Go servers after 35s, because they refuse more frequent pings"],
            /// Time after which a stream with an unanswered ping ends as half-open, if the server answers on another
            /// stream. If it answers on none but its host acknowledges data, --unresponsive-timeout applies. At least 1s; 0
            /// means 20s. (Not a flag of the Go programs.)
            keepalive_timeout: Duration = "20s" => keepalive_timeout,
            /// Time for which the agent keeps the connections of a server that answers no pings while its host
            /// acknowledges data. At least 10s. (Not a flag of the Go programs.)
            unresponsive_timeout: Duration = "5m0s" => unresponsive_timeout,
        }
        "This agent" {
            /// Unique id of this agent. Empty: the environment variable PROXY_AGENT_ID.
            agent_id: String = "" [go = (22, "AgentID set to %s.")] [default_shown = "PROXY_AGENT_ID, or a new UUID"],
            /// Hosts and networks by which servers choose this agent, URL-encoded and joined by &: host=NAME,
            /// ipv4=ADDRESS, ipv6=ADDRESS, cidr=BLOCK, default-route=true and, for --prefer-zone of native servers,
            /// zone=NAME.
            agent_identifiers: String = "" [go = (28, "AgentIdentifiers set to %s.")] => agent_identifiers,
        }
        "Finding all servers" {
            /// Time between attempts to reach missing servers, after a limited number of attempts with shorter pauses.
            sync_interval: GoDuration = "1s" [go = (23, "SyncInterval set to %v.")],
            /// Longest time between attempts, to which --sync-interval backs off.
            sync_interval_cap: GoDuration = "10s" [go = (25, "SyncIntervalCap set to %v.")],
            /// Time between checks of the established connections.
            probe_interval: GoDuration = "1s"
                [go = (24, "ProbeInterval set to %v.")] [no_effect = "a lost stream is noticed at once"],
            /// Continue to look for servers when the known number is connected: at --sync-interval, but every 10
            /// minutes if every connected server reports this number, and never if it comes from leases.
            sync_forever: bool = "false" [go = (30, "SyncForever set to %v.")],
            /// Source of the number of servers: default (leases with --count-server-leases, else the count that servers
            /// send) or max (the larger of both).
            server_count_source: CountSource = "default" [go = (34, "ServerCountSource set to %s.")]
                => one_of(&COUNT_SOURCES, "it must be default or max"),
            /// Number of streams (lanes) to each server that supports several, from 1 to 4: bulk data on one lane does
            /// not delay the others. Above 10 ms RTT the agent opens twice as many, at most 4. 1: one stream, as to a
            /// Go server. (Not a flag of the Go proxy-agent.)
            lanes: usize = "2" => lanes,
            /// Number of packets queued for a connection. Above 0.
            xfr_channel_size: usize = "150" [go = (35, "ChannelSize set to %d.")]
                [no_effect = "queues are limited in bytes, not in packets"] => above_zero,
            warn_on_channel_limit: bool = "false"
                [go = (29, "WarnOnChannelLimit set to %t.")] [no_effect = "there is no such channel"],
        }
        "Endpoints" {
            /// Let servers reach link-local addresses (169.254.0.0/16, fe80::/10) and cloud metadata services (such as
            /// 169.254.169.254), which provide this host's credentials. To allow only one address, such as node-local
            /// DNS, use --allow-destinations. (Not a flag of the Go proxy-agent, which always allows them.)
            allow_cloud_metadata: bool = "false",
            /// Destinations that servers must not reach: HOST[:PORTS], comma-separated. HOST is an address, a network
            /// (10.0.0.0/8, [fd00::/8]), a requested name, *.NAME or *; PORTS is one port or FROM-TO. (Not a flag of
            /// the Go proxy-agent.)
            deny_destinations: Vec<DestinationRule> = "" => rules,
            /// Destinations that servers may reach, in the format of --deny-destinations, which takes precedence.
            /// Empty: everything except link-local addresses and metadata services. Only a rule with exactly their
            /// address or network allows those: *,169.254.20.10:53 allows node-local DNS and everything else. (Not a
            /// flag of the Go proxy-agent.)
            allow_destinations: Vec<DestinationRule> = "" => rules,
        }
    }
}

flags::flags! {
    /// The flags of the health and admin ports; [`flags::ProfilingFlags`] continue them.
    #[derive(Clone, Debug, PartialEq)]
    pub struct PortFlags {
        "Health and administration" {
            /// Port for /healthz, /readyz and /metrics.
            health_server_port: u16 = "8093" [go = (8, "HealthServerPort set to %d.")] => port,
            /// Address for --health-server-port. Empty: all interfaces.
            health_server_host: BindHost = "" [go = (7, "HealthServerHost set to %s")] => bind_host,
            /// Number of servers that must be connected for /readyz to succeed. Above 0. (The Go proxy-agent has no such flag.)
            min_ready_servers: usize = "1" => above_zero,
            /// After the first SIGTERM or SIGINT: exit once no connection is left, or after this time. 0: drain until
            /// the second signal, as in Go. (The Go proxy-agent has no such flag.)
            drain_timeout: Option<Duration> = "0s" => optional_duration,
            /// Port for the status page /, /statusz, the commands and, with profiling, /debug/pprof.
            admin_server_port: u16 = "8094" [go = (10, "AdminServerPort set to %d.")] => port,
            /// Address for --admin-server-port. Empty: all interfaces.
            admin_bind_address: BindHost = "127.0.0.1" [go = (9, "Admin bind address set to %q.")] => bind_host,
        }
    }
}

flags::flags! {
    /// The flags of the leases and of the Kubernetes API client.
    #[derive(Clone, Debug, PartialEq)]
    pub struct KubeFlags {
        "Kubernetes" {
            /// Count servers by their leases instead of the count that servers send.
            count_server_leases: bool = "false" [go = (31, "CountServerLeases set to %v.")],
            /// Namespace of the leases.
            lease_namespace: String = "kube-system" [go = (32, "LeaseNamespace set to %s.")],
            /// Label selector of the leases that count.
            lease_label_selector: LabelSelector = "k8s-app=konnectivity-server"
                [go = (33, "LeaseLabel set to %s.")] [old_name = "lease-label"],
            /// Kubeconfig for the Kubernetes API, to count leases. Empty: the pod's service account.
            kubeconfig: Option<PathBuf> = "" => existing_file,
            /// Media type of requests to the Kubernetes API.
            kube_api_content_type: String = "application/vnd.kubernetes.protobuf"
                [go = (36, "APIContentType set to %v.")] [no_effect = "requests are JSON"],
        }
    }
}

flags::value!(LabelSelector, "SELECTOR", LabelSelector::parse);

fn proxy_server_host(flag: &'static str, list: String) -> Result<Vec<(String, Option<u16>)>, FlagError> {
    if list.is_empty() {
        return Ok(vec![("localhost".to_owned(), None)]);
    }
    header_text(flag, list)?.split(',').map(|entry| server_entry(flag, entry)).collect()
}

/// `HOST`, `HOST:PORT`, `ADDRESS`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn server_entry(flag: &'static str, entry: &str) -> Result<(String, Option<u16>), FlagError> {
    let bad = |want: &str| FlagError::value(flag, format_args!("{entry:?}"), want);
    if entry.contains("://") {
        return Err(bad("it is a URL: write HOST or HOST:PORT"));
    }
    let (host, port) =
        split_lenient(entry).ok_or_else(|| bad("it must be HOST, HOST:PORT or [ADDRESS]:PORT"))?;
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

fn agent_identifiers(flag: &'static str, text: String) -> Result<String, FlagError> {
    let text = header_text(flag, text)?;
    match identifiers::check(&text) {
        Ok(()) => Ok(text),
        Err(why) => Err(FlagError::value(flag, format_args!("{text:?}"), why)),
    }
}

fn rules(flag: &'static str, list: Vec<String>) -> Result<Vec<DestinationRule>, FlagError> {
    let rule = |text: &String| {
        DestinationRule::parse(text).map_err(|why| FlagError::value(flag, format_args!("{text:?}"), why))
    };
    list.iter().map(rule).collect()
}
