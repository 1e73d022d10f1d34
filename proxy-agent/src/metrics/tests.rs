//! Compares a scrape with the Go agent's metrics.

use std::time::Duration;

use mux::{Cause, Dropped};
use net::tls::LegacyPki;
use serve::metrics::{Exposition, LeaseCall};

use super::*;

/// The scrape without HELP after every metric was used once, in its order.
const GOLDEN: &str = include_str!("../../testdata/scrape.prom");

/// The HELP of the families of Go v0.36.0, with its slips.
const HELP: &[(&str, &str)] = &[
    ("dial_duration_seconds", "Latency of dial to the remote endpoint in seconds"),
    (
        "endpoint_dial_failure_total",
        "Number of failures dialing the remote endpoint, by reason (example: timeout).",
    ),
    ("known_server_count", "Current number of servers agent is trying to connect to."),
    ("lease_list_latency_seconds", "Latency of server lease listing in seconds"),
    (
        "lease_lists_total",
        "Count of server lease list calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason",
    ),
    ("open_endpoint_connections", "Current number of open endpoint connections."),
    ("open_server_connections", "Current number of open server connections."),
    (
        "server_connection_failure_count",
        "Count of failures to send to or receive from the proxy server, labeled by the direction (from_server or \
         to_server). DEPRECATED, please use stream_events_error_total",
    ),
    (
        "stream_errors_total",
        "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)",
    ),
    (
        "stream_packets_total",
        "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)",
    ),
];

fn samples(exposition: &Exposition) -> String {
    let scrape = exposition.scrape();
    scrape.lines().filter(|line| line.contains(PREFIX) && !line.starts_with("# HELP")).fold(
        String::new(),
        |mut all, line| {
            all.push_str(line);
            all.push('\n');
            all
        },
    )
}

#[test]
fn golden() {
    let mut registry = Registry::default();
    let metrics = register(&mut registry);
    metrics.dial_duration.observe(Duration::from_millis(30));
    metrics.dial_failures.count(DialFailureReason::Timeout);
    metrics.dial_failures.count(DialFailureReason::Unknown);
    drop(metrics.server_connections.enter());
    drop(metrics.retiring_connections.enter());
    metrics.attempts.count(AttemptResult::Connected);
    metrics.connect_failures.count(ConnectStage::Tls);
    metrics.lookups.count(LookupResult("no_such_host"));
    metrics.payload.add(0, 5);
    metrics.lost.count(LostReason::RecvError);
    metrics.unresponsive.inc();
    let endpoints = [metrics.endpoint_connections.enter(), metrics.endpoint_connections.enter()];
    metrics.lease_lists.record(LeaseCall::List, Ok((200, "")), Some(Duration::from_secs(4)));
    metrics.lease_lists.record(LeaseCall::Watch, Err("timeout"), None);
    metrics.known_servers.set(3);
    metrics.packets.meter(Segment::ToAgent).count(PacketKind::DialReq);
    metrics.packets.meter(Segment::FromAgent).count(PacketKind::DialRsp);
    metrics.stream_error(Segment::ToAgent, Code::Unavailable, None);
    metrics.server_failures.count(Direction::FromServer);
    metrics.stream_error(Segment::FromAgent, Code::Canceled, Some(PacketKind::Data));
    metrics.losses.dropped(Dropped::UnknownConnection);
    metrics.losses.reset(&Cause::FlushTimeout);
    metrics.certificates.legacy_observer()(LegacyPki::AnyPurpose);
    metrics.certificates.loaded("servers", 1_700_000_000);
    metrics.certificates.expires("agent-cert", 1_900_000_000);
    metrics.certificates.reloaded("servers", 1_800_000_000, true);
    let exposition = Exposition::new(registry);
    assert_eq!(samples(&exposition), GOLDEN);
    let scrape = exposition.scrape();
    for (name, help) in HELP {
        assert!(scrape.contains(&format!("# HELP {PREFIX}_{name} {help}\n")), "{name}: {scrape}");
    }
    drop(endpoints);
    assert_eq!(metrics.endpoint_connections.count(), 0);
}

#[test]
fn at_the_start_only_metrics_that_go_shows() {
    let mut registry = Registry::default();
    let _metrics = register(&mut registry);
    assert_eq!(
        samples(&Exposition::new(registry)),
        format!(
            "# TYPE {PREFIX}_build_info gauge\n{PREFIX}_build_info{{version=\"{}\"}} 1\n\
             # TYPE {PREFIX}_known_server_count gauge\n{PREFIX}_known_server_count 0\n\
             # TYPE {PREFIX}_payload_bytes_total counter\n\
             {PREFIX}_payload_bytes_total{{direction=\"from_endpoint\"}} 0\n\
             {PREFIX}_payload_bytes_total{{direction=\"to_endpoint\"}} 0\n\
             # TYPE {PREFIX}_queued_bytes gauge\n{PREFIX}_queued_bytes 0\n\
             # TYPE {PREFIX}_queued_bytes_limit gauge\n{PREFIX}_queued_bytes_limit 0\n",
            env!("CARGO_PKG_VERSION")
        )
    );
}
