//! Compares a scrape with the Go server's: names, types, labels, buckets, and the series that are present from the start.

use std::time::Duration;

use mux::{Cause, Dropped};
use net::tls::LegacyPki;
use serve::metrics::{Exposition, LeaseCall};
use tokio::time::Instant;

use super::*;
use crate::backends::{AgentView, Strategy};
use crate::dial::{Attempt, FailureReason};

/// Name, type, labels in the order of the scrape, bounds of the buckets.
type Family = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);

const LATENCY_TEXT: &[&str] =
    &["1e-06", "1e-05", "0.0001", "0.005", "0.025", "0.1", "0.5", "2.5", "12.5", "+Inf"];
const DEFAULT_TEXT: &[&str] =
    &["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf"];
const DURATION_TEXT: &[&str] =
    &["1", "5", "15", "30", "60", "300", "900", "1800", "3600", "14400", "43200", "86400", "+Inf"];

/// The families of the Go server, sorted by name.
const FAMILIES: &[Family] = &[
    ("blocked_frontend_write_channels", "gauge", &[], &[]),
    ("connection_duration_seconds", "histogram", &[], DURATION_TEXT),
    ("culled_leases_count", "counter", &[], &[]),
    ("dial_duration_seconds", "histogram", &[], LATENCY_TEXT),
    ("dial_failure_count", "counter", &["reason"], &[]),
    ("established_connections", "gauge", &[], &[]),
    ("frontend_write_duration_seconds", "histogram", &[], LATENCY_TEXT),
    ("full_frontend_write_queues", "gauge", &[], &[]),
    ("full_receive_channels", "gauge", &["service_method"], &[]),
    ("grpc_connections", "gauge", &["service_method"], &[]),
    ("http_connections", "gauge", &[], &[]),
    ("lease_delete_latency_seconds", "histogram", &["http_status_code"], DEFAULT_TEXT),
    ("lease_delete_total", "counter", &["http_status_code", "reason"], &[]),
    ("lease_list_latency_seconds", "histogram", &["http_status_code"], DEFAULT_TEXT),
    ("lease_list_total", "counter", &["http_status_code", "reason"], &[]),
    ("pending_backend_dials", "gauge", &[], &[]),
    ("ready_backend_connections", "gauge", &[], &[]),
    ("ready_backends", "gauge", &["proxy_strategy"], &[]),
    ("stream_errors_total", "counter", &["code", "packet_type", "segment"], &[]),
    ("stream_packets_total", "counter", &["packet_type", "segment"], &[]),
];

/// Our own families.
const EXTRA: &[Family] = &[
    ("agent_auth_mode", "gauge", &["mode"], &[]),
    ("agent_ejections_total", "counter", &[], &[]),
    ("agent_outlier", "gauge", &["agent_id", "reason"], &[]),
    ("backend_connection_duration_seconds", "histogram", &[], DURATION_TEXT),
    ("build_info", "gauge", &["version"], &[]),
    ("certificate_expiry_timestamp_seconds", "gauge", &["file"], &[]),
    ("certificate_last_reload_success", "gauge", &["side"], &[]),
    ("certificate_last_reload_timestamp_seconds", "gauge", &["side"], &[]),
    ("certificate_reloads_total", "counter", &["result", "side"], &[]),
    ("connected_agents", "gauge", &[], &[]),
    ("connection_resets_total", "counter", &["reason"], &[]),
    ("dial_attempts_total", "counter", &["outcome"], &[]),
    ("dropped_packets_total", "counter", &["reason"], &[]),
    ("ejected_agents", "gauge", &[], &[]),
    ("established_connections_closed_total", "counter", &["reason"], &[]),
    ("expected_dial_seconds", "gauge", &["agent"], &[]),
    ("frontend_connections", "gauge", &["frontend"], &[]),
    ("lease_calls_unanswered_total", "counter", &["call", "reason"], &[]),
    ("lease_last_renewal_timestamp_seconds", "gauge", &[], &[]),
    ("legacy_certificates_total", "counter", &["reason"], &[]),
    ("payload_bytes_total", "counter", &["direction"], &[]),
    ("queued_bytes", "gauge", &[], &[]),
    ("queued_bytes_limit", "gauge", &[], &[]),
    ("refused_connects_total", "counter", &["reason"], &[]),
    ("unauthenticated_connections", "gauge", &["port"], &[]),
    ("unauthenticated_connections_closed_total", "counter", &["port", "reason"], &[]),
    ("unresponsive_peers_total", "counter", &[], &[]),
];

/// The HELP of the families of Go v0.36.0, with its slips.
const HELP: &[(&str, &str)] = &[
    (
        "culled_leases_count",
        "Count of expired leases that the lease garbage collection controller has culled.",
    ),
    ("dial_duration_seconds", "Latency of dial to the remote endpoint in seconds"),
    (
        "dial_failure_count",
        "Number of dial failures observed. Multiple failures can occur for a single dial request.",
    ),
    ("established_connections", "Current number of established end-to-end connections (post-dial)."),
    ("frontend_write_duration_seconds", "Latency of write to the frontend in seconds"),
    (
        "full_receive_channels",
        "Number of current connections blocked by a full receive channel, partitioned by service method.",
    ),
    ("grpc_connections", "Number of current grpc connections, partitioned by service method."),
    ("http_connections", "Number of current HTTP CONNECT connections"),
    (
        "lease_delete_latency_seconds",
        "Latency of lease deletion calls by the garbage collection controller in seconds.",
    ),
    (
        "lease_delete_total",
        "Count of lease delection calls by the garbage collection controller. Labeled by HTTP status code and reason.",
    ),
    (
        "lease_list_latency_seconds",
        "Latency of lease list calls by the garbage collection controller in seconds.",
    ),
    (
        "lease_list_total",
        "Count of lease deletion calls by the garbage collection controller. Labeled by HTTP status code and reason.",
    ),
    ("pending_backend_dials", "Current number of pending backend dial requests"),
    (
        "ready_backend_connections",
        "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends",
    ),
    ("ready_backends", "Number of konnectivity agent connected to the proxy server"),
    (
        "stream_errors_total",
        "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)",
    ),
    (
        "stream_packets_total",
        "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)",
    ),
];

struct Scraped {
    name: String,
    kind: String,
    labels: Vec<String>,
    bounds: Vec<String>,
}

fn parse(scrape: &str) -> Vec<Scraped> {
    let mut families: Vec<Scraped> = Vec::new();
    for line in scrape.lines() {
        if let Some(head) = line.strip_prefix(&format!("# TYPE {PREFIX}_")) {
            let (name, kind) = head.split_once(' ').expect("a type line has a type");
            let (name, kind) = (name.to_owned(), kind.to_owned());
            families.push(Scraped { name, kind, labels: Vec::new(), bounds: Vec::new() });
        } else if let Some(family) = families.last_mut().filter(|_| line.starts_with(PREFIX)) {
            let body = line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').expect("closed").0);
            let mut labels = Vec::new();
            for pair in body.split(',').filter(|pair| !pair.is_empty()) {
                let (label, value) = pair.split_once('=').expect("a label has a value");
                match label {
                    "le" => family.bounds.push(value.trim_matches('"').to_owned()),
                    _ => labels.push(label.to_owned()),
                }
            }
            family.labels = labels;
        }
    }
    families
}

fn use_everything(metrics: &Metrics) {
    metrics.dials.pending.inc();
    metrics.dials.duration.observe(Duration::from_millis(3));
    metrics.dials.failures.count(FailureReason::NoAgent);
    metrics.dials.attempts.count(Attempt::Opened);
    metrics.outliers.set(&[AgentView::unresponsive("a")], Instant::now());
    drop(metrics.established.enter());
    metrics.connection_duration.observe(Duration::from_secs(3));
    metrics.established_closed.count(ClosedReason::Closed);
    metrics.backend_duration.observe(Duration::from_secs(2));
    metrics.unresponsive.inc();
    metrics.frontend_write.observe(Duration::from_micros(20));
    drop(metrics.grpc_connections.enter(ServiceMethod::Connect));
    drop(metrics.frontend_connections.enter(FrontendName("grpc+tcp:8090")));
    drop(metrics.full_receive_channels.enter(ServiceMethod::Proxy));
    drop((metrics.full_frontend_queues.enter(), metrics.blocked_frontend_channels.enter()));
    metrics.packets.meter(Segment::ToAgent).count(PacketKind::DialReq);
    metrics.stream_error(Segment::FromAgent, Code::Unavailable, None);
    metrics.losses.dropped(Dropped::UnknownDial);
    metrics.losses.reset(&Cause::Stalled);
    let took = Some(Duration::from_millis(1));
    metrics.lease_lists.record(LeaseCall::List, Ok((200, "")), took);
    metrics.lease_deletes.record(LeaseCall::Delete, Ok((409, "Conflict")), took);
    metrics.lease_deletes.record(LeaseCall::Delete, Err("timeout"), took);
    metrics.lease_renewed.set(1);
    metrics.agent_auth_mode.get_or_create(&AgentAuthMode::None).set(1);
    metrics.certificates.legacy_observer()(LegacyPki::CaAsLeaf);
    drop(metrics.unauthenticated.enter(Port::Agent));
    metrics.refused_connects.count(RefusedConnect::Identity);
    metrics.payload.add(3, 0);
    metrics.unauthenticated_closed.count((Port::Frontend, UnauthenticatedCloseReason::Evicted));
    metrics.certificates.loaded("agents", 1);
    metrics.certificates.expires("cluster-cert", 1);
    metrics.routes.set(Strategy::DestHost, 2);
    metrics.queued_bytes.inc_by(40);
}

#[test]
fn golden_families() {
    let mut registry = Registry::default();
    let metrics = register(&mut registry);
    let scrape = Exposition::new(registry);
    use_everything(&metrics);

    let mut expected: Vec<Family> = [FAMILIES, EXTRA].concat();
    expected.sort_unstable_by_key(|family| family.0);
    let found = parse(&scrape.scrape());
    let names: Vec<&str> = found.iter().map(|family| family.name.as_str()).collect();
    assert_eq!(names, expected.iter().map(|family| family.0).collect::<Vec<_>>());
    for (found, (name, kind, labels, bounds)) in found.iter().zip(expected) {
        assert_eq!(found.kind, kind, "{name}");
        assert_eq!(found.labels, labels, "{name}");
        assert_eq!(found.bounds, bounds, "{name}");
    }
    assert!(scrape.scrape().contains("_queued_bytes 40\n"));
    assert!(scrape.scrape().contains("_payload_bytes_total{direction=\"to_endpoint\"} 3\n"));
    let version = format!("_build_info{{version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"));
    assert!(scrape.scrape().contains(&version));
}

#[test]
fn families_of_go_have_its_help() {
    let mut registry = Registry::default();
    let metrics = register(&mut registry);
    use_everything(&metrics);
    let scrape = Exposition::new(registry).scrape();
    for (name, help) in HELP {
        assert!(scrape.contains(&format!("# HELP {PREFIX}_{name} {help}\n")), "{name}: {scrape}");
    }
}

#[test]
fn at_the_start_only_metrics_that_go_shows() {
    let mut registry = Registry::default();
    let metrics = register(&mut registry);
    // The backend manager does the same for each strategy when it is built.
    metrics.routes.set(Strategy::Default, 0);
    let found = parse(&Exposition::new(registry).scrape());
    let names: Vec<&str> = found.iter().map(|family| family.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "agent_ejections_total",
            "backend_connection_duration_seconds",
            "build_info",
            "connected_agents",
            "culled_leases_count",
            "dial_failure_count",
            "ejected_agents",
            "full_receive_channels",
            "http_connections",
            "payload_bytes_total",
            "queued_bytes",
            "queued_bytes_limit",
            "ready_backend_connections",
            "ready_backends"
        ]
    );
}

#[test]
fn reasons_of_the_kubernetes_api_are_a_closed_set() {
    let mut registry = Registry::default();
    let metrics = register(&mut registry);
    for outcome in [(403, "Forbidden"), (500, "whatever somebody sends\"")] {
        metrics.lease_lists.record(LeaseCall::List, Ok(outcome), None);
    }
    let scrape = Exposition::new(registry).scrape();
    assert!(scrape.contains("{http_status_code=\"403\",reason=\"Forbidden\"} 1"), "{scrape}");
    assert!(scrape.contains("{http_status_code=\"500\",reason=\"Unknown\"} 1"), "{scrape}");
}
