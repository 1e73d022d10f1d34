//! `--connection-log`: one JSON line for each connection at its end, and for each failed dial, at both programs.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use e2e::adversarial::{PacketStream, dial_req};
use e2e::endpoints::{Endpoint, Refusing};
use e2e::exchange::echoed;
use e2e::frontend::{Mode, Tunnel};
use e2e::metrics::{SERVER, Scrape};
use e2e::pair::{FRONTS, Front, Setup};
use e2e::payload::Payload;
use e2e::wait::{DEADLINE, until};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

const BYTES: u64 = 100_000;

/// The records of a file, once there are `count`.
async fn records(path: &Path, count: usize) -> Result<Vec<Value>> {
    let found = until("records", DEADLINE, || async {
        let text = std::fs::read_to_string(path).ok()?;
        (text.lines().count() >= count).then_some(text)
    });
    let text = found.await.with_context(|| format!("{count} lines in {}", path.display()))?;
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// Whether these fields are durations in milliseconds that a test may take.
fn has_times(record: &Value, fields: &[&str]) -> bool {
    fields.iter().all(|field| record[*field].as_f64().is_some_and(|time| (0.0..60_000.0).contains(&time)))
}

#[tokio::test]
async fn each_connection_and_each_failed_dial_has_one_record() -> Result<()> {
    for (mode, front) in FRONTS {
        let folder = tempfile::tempdir()?;
        let [server, agent] = ["server", "agent"].map(|name| folder.path().join(name));
        let pair = Setup::new(mode, front)
            .server_arg(format!("--connection-log={}", server.display()))
            .agent_arg(format!("--connection-log={}", agent.display()))
            .start()
            .await?;
        let (endpoint, refusing) = (Endpoint::echo().await?, Refusing::new()?);
        pair.frontend().dial_error(&refusing.target()).await?;
        let named = endpoint.target().replace("127.0.0.1", "localhost");
        echoed(pair.frontend(), &named, Payload::new(7, BYTES)).await?;

        let of_server = records(&server, 2).await?;
        let [refused, open] = of_server.as_slice() else { anyhow::bail!("{of_server:?}") };
        for record in [refused, open] {
            ensure!(record["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{record}");
            ensure!(record["agent"].is_string() && record["attempts"] == 1, "{record}");
            ensure!(has_times(record, &["selection_ms", "dial_ms", "total_ms"]), "{record}");
            let certificate = record["certificate"].as_str().is_some_and(|name| !name.is_empty());
            ensure!(certificate == (front == Front::Tls) && record["peer"].is_string(), "{record}");
        }
        ensure!(refused["end"] == "error_response" && refused["target"] == refusing.target(), "{refused}");
        ensure!(
            refused["error"].as_str().is_some_and(|text| text.contains("connection refused")),
            "{refused}"
        );
        ensure!(refused.get("connect_id").is_none() && refused["bytes_to_endpoint"] == 0, "{refused}");
        ensure!(open["end"] == "closed" && open.get("error").is_none(), "{open}");
        ensure!(open["target"] == named.as_str() && has_times(open, &["connect_ms"]), "{open}");
        ensure!(open["bytes_to_endpoint"] == BYTES && open["bytes_from_endpoint"] == BYTES, "{open}");

        let of_agent = records(&agent, 2).await?;
        let [refused, dialed] = of_agent.as_slice() else { anyhow::bail!("{of_agent:?}") };
        ensure!(refused["end"] == "unknown" && refused.get("resolved").is_none(), "{refused}");
        ensure!(dialed["connect_id"] == open["connect_id"] && dialed["target"] == open["target"], "{dialed}");
        ensure!(dialed["resolved"] == endpoint.target().as_str(), "{dialed}");
        ensure!(has_times(dialed, &["lookup_ms", "connect_ms", "total_ms"]), "{dialed}");
        ensure!(dialed["bytes_to_endpoint"] == BYTES && dialed["bytes_from_endpoint"] == BYTES, "{dialed}");
        pair.server().wait_metric("connection_log_lines_lost_total", &[], 0.0).await?;
    }
    Ok(())
}

/// Clients leave at different stages of their dials: each dial counts once, as it is recorded.
#[tokio::test]
async fn counters_agree_with_the_records_of_clients_that_leave() -> Result<()> {
    const CLIENTS: usize = 300;
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("log");
        let log = format!("--connection-log={}", path.display());
        let pair = Setup::new(mode, Front::Unix).server_arg(log).start().await?;
        let endpoint = Endpoint::echo().await?;
        let channel = if mode == Mode::Grpc { Some(pair.frontend().channel().await?) } else { None };
        for client in 0..CLIENTS {
            let target = endpoint.target();
            let _leaves: Box<dyn Send> = if let Some(channel) = &channel {
                let mut stream = PacketStream::proxy(channel.clone());
                if client % 10 == 0 {
                    // The server may not see the others.
                    drop(Tunnel::dial(stream, &target).await?);
                    continue;
                }
                stream.send(dial_req(7, &target)).await?;
                Box::new(stream)
            } else {
                let mut socket = pair.frontend().socket().await?;
                let payload = if client % 2 == 0 { "" } else { "payload" };
                socket.write_all(format!("CONNECT {target} HTTP/1.1\r\n\r\n{payload}").as_bytes()).await?;
                Box::new(socket)
            };
            for _ in 0..client % 30 * 100 {
                tokio::task::yield_now().await;
            }
        }
        if let Some(channel) = channel {
            // Behind the requests of all clients.
            Tunnel::dial(PacketStream::proxy(channel), &endpoint.target()).await?;
        }
        let agrees = |scrape: &Scrape| {
            let value = |name: &str| scrape.value(&format!("{SERVER}{name}"), &[]) as usize;
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            let (opened, failed): (Vec<_>, Vec<_>) =
                log.lines().partition(|line| line.contains("connect_id"));
            let ended = ["dial_duration_seconds_count", "connection_duration_seconds_count"];
            ended
                .into_iter()
                .chain(["established_connections_closed_total"])
                .all(|name| value(name) == opened.len())
                && value("dial_failure_count") == failed.len()
                && match mode {
                    Mode::Grpc => opened.len() > CLIENTS / 10,
                    Mode::HttpConnect => opened.len() + failed.len() == CLIENTS,
                }
                && scrape.busy().is_empty()
        };
        pair.server().wait_metrics("counters as in the connection log", agrees).await?;
    }
    Ok(())
}

#[tokio::test]
async fn dials_without_an_agent_and_cut_connections_are_recorded() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("log");
    let mut pair = Setup::grpc().server_arg(format!("--connection-log={}", path.display())).start().await?;
    let endpoint = Endpoint::echo().await?;
    let open = pair.frontend().dial(&endpoint.target()).await?;
    pair.agent_mut().process.kill()?;
    ensure!(records(&path, 1).await?[0]["end"] == "backend_close");
    drop(open);
    pair.server().wait_metric("connected_agents", &[], 0.0).await?;
    pair.frontend().dial_error(&endpoint.target()).await?;
    let records = records(&path, 2).await?;
    ensure!(records[1]["end"] == "no_agent" && records[1].get("agent").is_none(), "{records:?}");
    ensure!(records[1]["attempts"] == 0 && records[1]["dial_ms"].is_null(), "{records:?}");
    Ok(())
}

#[tokio::test]
async fn agent_records_connections_that_end_with_their_stream() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("log");
    let mut pair = Setup::grpc().agent_arg(format!("--connection-log={}", path.display())).start().await?;
    let endpoint = Endpoint::echo().await?;
    let _open = pair.frontend().dial(&endpoint.target()).await?;
    pair.server_mut().process.kill()?;
    let records = records(&path, 1).await?;
    ensure!(records[0]["end"] == "stream_lost" && records[0].get("error").is_none(), "{records:?}");
    Ok(())
}

#[tokio::test]
async fn records_go_to_standard_error() -> Result<()> {
    let pair = Setup::grpc().server_arg("--connection-log=stderr").start().await?;
    let endpoint = Endpoint::echo().await?;
    echoed(pair.frontend(), &endpoint.target(), Payload::new(7, BYTES)).await?;
    pair.server().process.wait_said("\"bytes_to_endpoint\":100000").await?;
    Ok(())
}
