//! Metrics under the names that dashboards and alerts use.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use e2e::endpoints::{Endpoint, Refusing};
use e2e::exchange::{expect_end, works};
use e2e::metrics::{AGENT, SERVER, Scrape};
use e2e::pair::{FRONTS, Pair, Setup};
use e2e::payload::Payload;
use e2e::wait::{DEADLINE, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Name, type and labels of the families that must exist after some gRPC traffic.
const SERVER_FAMILIES: [(&str, &str, &[&str]); 11] = [
    ("dial_duration_seconds", "histogram", &[]),
    ("frontend_write_duration_seconds", "histogram", &[]),
    ("grpc_connections", "gauge", &["service_method"]),
    ("http_connections", "gauge", &[]),
    ("ready_backend_connections", "gauge", &[]),
    ("ready_backends", "gauge", &["proxy_strategy"]),
    ("pending_backend_dials", "gauge", &[]),
    ("established_connections", "gauge", &[]),
    ("dial_failure_count", "counter", &["reason"]),
    ("stream_packets_total", "counter", &["packet_type", "segment"]),
    ("culled_leases_count", "counter", &[]),
];

const AGENT_FAMILIES: [(&str, &str, &[&str]); 6] = [
    ("dial_duration_seconds", "histogram", &[]),
    ("open_server_connections", "gauge", &[]),
    ("known_server_count", "gauge", &[]),
    ("open_endpoint_connections", "gauge", &[]),
    ("endpoint_dial_failure_total", "counter", &["reason"]),
    ("stream_packets_total", "counter", &["packet_type", "segment"]),
];

fn check_families(scrape: &Scrape, prefix: &str, families: &[(&str, &str, &[&str])]) -> Result<()> {
    for (name, kind, labels) in families {
        let full = format!("{prefix}{name}");
        ensure!(
            scrape.types.get(&full).map(String::as_str) == Some(*kind),
            "{full}: {:?}",
            scrape.types.get(&full)
        );
        let of_family = |sample: &&e2e::metrics::Sample| {
            [full.clone(), format!("{full}_bucket"), format!("{full}_count"), format!("{full}_sum")]
                .contains(&sample.name)
        };
        for sample in scrape.samples.iter().filter(of_family) {
            let keys: BTreeSet<&str> =
                sample.labels.keys().map(String::as_str).filter(|key| *key != "le").collect();
            ensure!(keys == labels.iter().copied().collect(), "{full} has the labels {keys:?}");
        }
    }
    Ok(())
}

fn buckets(scrape: &Scrape, name: &str) -> Vec<String> {
    let full = format!("{name}_bucket");
    let samples = scrape.samples.iter().filter(|sample| sample.name == full);
    samples.filter_map(|sample| sample.labels.get("le").cloned()).collect()
}

async fn with_traffic() -> Result<Pair> {
    let pair = Setup::grpc().agent_arg("--lanes=1").start().await?;
    let (endpoint, refusing) = (Endpoint::echo().await?, Refusing::new()?);
    works(pair.frontend(), &endpoint.target()).await?;
    pair.frontend().dial_error(&refusing.target()).await?;
    pair.server().wait_metric("established_connections", &[], 0.0).await?;
    pair.agent().wait_metric("open_endpoint_connections", &[], 0.0).await?;
    Ok(pair)
}

#[tokio::test]
async fn the_server_has_its_families() -> Result<()> {
    let pair = with_traffic().await?;
    let scrape = pair.server().metrics().await?;
    check_families(&scrape, SERVER, &SERVER_FAMILIES)?;
    let dial = ["1e-06", "1e-05", "0.0001", "0.005", "0.025", "0.1", "0.5", "2.5", "12.5", "+Inf"];
    assert_eq!(buckets(&scrape, &format!("{SERVER}dial_duration_seconds")), dial);
    assert_eq!(buckets(&scrape, &format!("{SERVER}frontend_write_duration_seconds")), dial);
    Ok(())
}

#[tokio::test]
async fn the_agent_has_its_families() -> Result<()> {
    let pair = with_traffic().await?;
    let scrape = pair.agent().metrics().await?;
    check_families(&scrape, AGENT, &AGENT_FAMILIES)?;
    let dial = ["0.005", "0.025", "0.1", "0.5", "2.5", "10", "30", "+Inf"];
    assert_eq!(buckets(&scrape, &format!("{AGENT}dial_duration_seconds")), dial);
    Ok(())
}

/// Some Go versions do not have `connection_duration_seconds` yet.
#[tokio::test]
async fn the_server_has_connection_durations() -> Result<()> {
    let pair = with_traffic().await?;
    let scrape = pair.server().metrics().await?;
    let name = format!("{SERVER}connection_duration_seconds");
    let expected =
        ["1", "5", "15", "30", "60", "300", "900", "1800", "3600", "14400", "43200", "86400", "+Inf"];
    assert_eq!(buckets(&scrape, &name), expected);
    assert_eq!(scrape.sum(&format!("{name}_count"), &[]), Some(1.0));
    Ok(())
}

#[tokio::test]
async fn metrics_that_go_shows_at_once_exist_from_the_start() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let scrape = pair.server().metrics().await?;
    for name in
        ["ready_backend_connections", "http_connections", "culled_leases_count", "full_receive_channels"]
    {
        assert_eq!(scrape.sum(&format!("{SERVER}{name}"), &[]), Some(0.0), "{name}");
    }
    assert_eq!(scrape.sum(&format!("{SERVER}ready_backends"), &[("proxy_strategy", "default")]), Some(0.0));
    for reason in ["no_agent", "backend_close", "backend_dial_timeout"] {
        assert_eq!(
            scrape.sum(&format!("{SERVER}dial_failure_count"), &[("reason", reason)]),
            Some(0.0),
            "{reason}"
        );
    }
    // These appear at first use.
    for name in ["stream_packets_total", "stream_errors_total"] {
        assert_eq!(scrape.sum(&format!("{SERVER}{name}"), &[]), None, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn payload_that_the_server_discards_is_counted() -> Result<()> {
    let pair = Setup::http_connect().start().await?;
    let source = Endpoint::source(Payload::new(7, 16 << 20)).await?;
    for _ in 0..20 {
        let mut aborted = pair.frontend().dial(&source.target()).await?;
        aborted.read_exact(&mut [0; 1_000]).await?;
    }
    source.wait_open(0).await?;
    let same = until("as many bytes at the server as at the agent", DEADLINE, || async {
        let from = [("direction", "from_endpoint")];
        let server = pair.server().metric("payload_bytes_total", &from).await.ok()?;
        let agent = pair.agent().metric("payload_bytes_total", &from).await.ok()?;
        (server == agent).then_some(())
    });
    same.await
}

#[tokio::test]
async fn payload_bytes_are_the_same_at_both_programs() -> Result<()> {
    let pair = with_traffic().await?;
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    for direction in ["to_endpoint", "from_endpoint"] {
        let labels = [("direction", direction)];
        let [server, agent] = [pair.server().metrics().await?, pair.agent().metrics().await?];
        let bytes = server.value(&format!("{SERVER}payload_bytes_total"), &labels);
        ensure!(bytes > 0.0, "no bytes {direction}");
        assert_eq!(agent.value(&format!("{AGENT}payload_bytes_total"), &labels), bytes, "{direction}");
    }
    for (scrape, prefix) in [(pair.server().metrics().await?, SERVER), (pair.agent().metrics().await?, AGENT)]
    {
        assert_eq!(scrape.value(&format!("{prefix}build_info"), &version), 1.0);
    }
    Ok(())
}

#[tokio::test]
async fn lookups_and_agents_are_counted_once() -> Result<()> {
    let pair = Setup::grpc().agents(2).start().await?;
    pair.server().wait_metric("connected_agents", &[], 2.0).await?;
    let pair = Setup::grpc().start().await?;
    pair.server().wait_metric("connected_agents", &[], 1.0).await?;
    let endpoint = Endpoint::echo().await?;
    let port = endpoint.address().port();
    let before = pair.agent().metrics().await?.sum(&format!("{AGENT}lookups_total"), &[]).unwrap_or_default();
    works(pair.frontend(), &format!("localhost:{port}")).await?;
    pair.agent().wait_metric("lookups_total", &[("result", "found")], before + 1.0).await?;
    Ok(())
}

#[tokio::test]
async fn process_metrics_are_there() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    for scrape in [pair.server().metrics().await?, pair.agent().metrics().await?] {
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_open_fds",
            "process_max_fds",
            "process_start_time_seconds",
        ] {
            ensure!(
                scrape.value(name, &[]) > 0.0 || name == "process_cpu_seconds_total",
                "{name} is missing"
            );
            ensure!(scrape.types.contains_key(name), "{name} has no type");
        }
    }
    Ok(())
}

#[tokio::test]
async fn packets_are_counted_by_segment_and_type() -> Result<()> {
    let pair = with_traffic().await?;
    // One complete connection, one refused dial, and the server's probe of the stream: CLOSE_REQ to the agent, and its CLOSE_RSP.
    for (segment, kind, count) in [
        ("from_client", "DIAL_REQ", 2.0),
        ("to_agent", "DIAL_REQ", 2.0),
        ("from_agent", "DIAL_RSP", 2.0),
        ("to_client", "DIAL_RSP", 2.0),
        ("from_client", "CLOSE_REQ", 1.0),
        ("to_agent", "CLOSE_REQ", 2.0),
        ("from_agent", "CLOSE_RSP", 2.0),
        ("to_client", "CLOSE_RSP", 1.0),
        ("from_client", "DATA", 1.0),
    ] {
        let labels = [("segment", segment), ("packet_type", kind)];
        pair.server().wait_metric("stream_packets_total", &labels, count).await?;
    }
    // The agent's names for its two directions.
    for (segment, kind, count) in
        [("to_agent", "DIAL_REQ", 2.0), ("from_agent", "DIAL_RSP", 2.0), ("from_agent", "CLOSE_RSP", 2.0)]
    {
        let labels = [("segment", segment), ("packet_type", kind)];
        pair.agent().wait_metric("stream_packets_total", &labels, count).await?;
    }
    let scrape = pair.agent().metrics().await?;
    let segments: BTreeSet<&str> =
        scrape.samples.iter().filter_map(|sample| sample.labels.get("segment")).map(String::as_str).collect();
    assert_eq!(segments, BTreeSet::from(["from_agent", "to_agent"]));
    Ok(())
}

#[tokio::test]
async fn only_successful_dials_are_timed() -> Result<()> {
    let pair = with_traffic().await?;
    let count = format!("{SERVER}dial_duration_seconds_count");
    assert_eq!(pair.server().metrics().await?.sum(&count, &[]), Some(1.0));
    let count = format!("{AGENT}dial_duration_seconds_count");
    assert_eq!(pair.agent().metrics().await?.sum(&count, &[]), Some(1.0));
    Ok(())
}

/// The answer to a dial, payload, and the end are observed; the server's own answers are not.
#[tokio::test]
async fn writes_to_a_frontend_are_timed() -> Result<()> {
    for (mode, front) in FRONTS {
        let setup = Setup::new(mode, front).server_arg("--proxy-strategies=destHost");
        let pair = setup.agent("a", "ipv4=127.0.0.1").start().await?;
        let (endpoint, refusing) = (Endpoint::echo().await?, Refusing::new()?);
        let count = "frontend_write_duration_seconds_count";
        pair.frontend().dial_error(&refusing.target()).await?;
        pair.server().wait_metric(count, &[], 1.0).await?;
        let mut conn = pair.frontend().dial(&endpoint.target()).await?;
        conn.shutdown().await?;
        expect_end(&mut conn).await?;
        pair.server().wait_metric(count, &[], 3.0).await?;
        works(pair.frontend(), &endpoint.target()).await?;
        pair.server().wait_metric(count, &[], 6.0).await?;
        let error = pair.frontend().dial_error("nowhere:1").await?;
        ensure!(error.text().contains("No agent available"), "{error}");
        assert_eq!(pair.server().metric(count, &[]).await?, 6.0);
    }
    Ok(())
}

#[tokio::test]
async fn a_lost_client_is_a_canceled_stream() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let conn = pair.frontend().dial(&endpoint.target()).await?;
    drop(conn);
    let labels = [("segment", "from_client"), ("code", "Canceled"), ("packet_type", "Unknown")];
    pair.server().wait_metric("stream_errors_total", &labels, 1.0).await?;
    Ok(())
}

#[tokio::test]
async fn an_orderly_end_is_no_stream_error() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let mut stream = pair.frontend().packets().await?;
    stream.half_close();
    let (_, status) = stream.end("the end of an empty stream").await?;
    assert!(status.is_none(), "{status:?}");
    pair.server().wait_metric("grpc_connections", &[("service_method", "Proxy")], 0.0).await?;
    assert_eq!(pair.server().metric("stream_errors_total", &[]).await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn a_lost_server_is_counted_by_the_agent() -> Result<()> {
    let mut pair = Setup::grpc().start_with_lanes().await?;
    pair.server_mut().process.kill()?;
    let labels = [("segment", "to_agent"), ("code", "Unavailable"), ("packet_type", "Unknown")];
    pair.agent().wait_metric("stream_errors_total", &labels, 4.0).await?;
    let labels = [("direction", "from_server")];
    pair.agent().wait_metric("server_connection_failure_count", &labels, 1.0).await?;
    Ok(())
}

#[tokio::test]
async fn http_connections_are_counted() -> Result<()> {
    let pair = Setup::http_connect().start().await?;
    let endpoint = Endpoint::echo().await?;
    let conns =
        [pair.frontend().dial(&endpoint.target()).await?, pair.frontend().dial(&endpoint.target()).await?];
    pair.server().wait_metric("http_connections", &[], 2.0).await?;
    drop(conns);
    pair.server().wait_metric("http_connections", &[], 0.0).await?;
    Ok(())
}
