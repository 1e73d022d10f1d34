//! Sudden losses: killed processes during transfers, cut connections, silent networks.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::adversarial::AdversarialAgent;
use e2e::adversarial::AgentMeta;
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, echoed, expect_any_end, works};
use e2e::frontend::{Conn, Mode, Tunnel};
use e2e::metrics::{AGENT, SERVER, Scrape};
use e2e::pair::{FRONTS, Front, Pair, Setup};
use e2e::payload::{Payload, unless_lost};
use e2e::process::Signal;
use e2e::wait::{within, within_limit};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

/// Connections that are established before a process is killed.
async fn established(pair: &Pair, target: &str, count: usize) -> Result<Vec<Conn>> {
    let mut conns = Vec::new();
    for seed in 0..count {
        let conn = pair.frontend().dial(target).await?;
        conns.push(echo(conn, Payload::new(seed as u64, 1_000)).await?);
    }
    Ok(conns)
}

/// Transfers in both directions that end with their connections. Returns once a MiB has passed.
async fn transfers(pair: &Pair, target: &str, count: usize) -> Result<JoinSet<()>> {
    let mut transfers = JoinSet::new();
    for conn in established(pair, target, count).await? {
        transfers.spawn(async move {
            let (mut input, mut output) = tokio::io::split(conn);
            let endless = Payload::new(1, 1 << 40);
            let mut rest = vec![0; 65_536];
            let reading = async { while input.read(&mut rest).await.is_ok_and(|count| count > 0) {} };
            // Reading ends with the connection; writing alone would wait for a reader.
            tokio::select! { _ = reading => {}, _ = async { let _ = endless.send(&mut output).await; std::future::pending::<()>().await } => {} }
        });
    }
    pair.agent().wait_transfers().await?;
    Ok(transfers)
}

#[tokio::test]
async fn an_agent_killed_in_mid_transfer_ends_its_connections_at_once() -> Result<()> {
    for (mode, front) in FRONTS {
        let mut pair = Setup::new(mode, front).start().await?;
        let endpoint = Endpoint::echo().await?;
        let transfers = transfers(&pair, &endpoint.target(), 20).await?;
        pair.agent_mut().process.kill()?;
        within_limit("the end of twenty transfers", Duration::from_secs(5), transfers.join_all()).await?;
        endpoint.wait_open(0).await?;
        pair.server_mut().wait_unready().await?;
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
        for name in ["pending_backend_dials", "ready_backend_connections"] {
            pair.server().wait_metric(name, &[], 0.0).await?;
        }
        pair.server().wait_metric("ready_backends", &[("proxy_strategy", "default")], 0.0).await?;
        for method in ["Connect", "Proxy"] {
            pair.server().wait_metric("grpc_connections", &[("service_method", method)], 0.0).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_lost_agent_is_a_close_rsp_without_error() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let mut tunnel = Tunnel::dial(pair.frontend().packets().await?, &endpoint.target()).await?;
    pair.agent_mut().process.kill()?;
    within("the CLOSE_RSP", tunnel.read_to_end(&mut Vec::new())).await??;
    assert_eq!(tunnel.ended(), Some(""));
    Ok(())
}

#[tokio::test]
async fn the_loss_of_one_agent_leaves_the_others_alone() -> Result<()> {
    let mut pair = Setup::grpc()
        .server_arg("--proxy-strategies=destHost")
        .agent("by-address", "ipv4=127.0.0.1")
        .agent("by-name", "host=localhost")
        .start()
        .await?;
    let endpoint = Endpoint::echo().await?;
    let by_name = format!("localhost:{}", endpoint.address().port());
    let mut lost = echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(1, 1_000)).await?;
    let kept = echo(pair.frontend().dial(&by_name).await?, Payload::new(2, 1_000)).await?;
    pair.agent_mut().process.kill()?;
    expect_any_end(&mut lost).await?;
    echo(kept, Payload::new(3, 1_000_000)).await?;
    works(pair.frontend(), &by_name).await
}

#[tokio::test]
async fn a_server_killed_in_mid_transfer_closes_the_endpoints_and_the_agent_returns() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let mut pair = Setup::new(mode, Front::Unix).start().await?;
        let endpoint = Endpoint::echo().await?;
        let transfers = transfers(&pair, &endpoint.target(), 10).await?;
        pair.server_mut().process.kill()?;
        within("the end of ten transfers", transfers.join_all()).await?;
        endpoint.wait_open(0).await?;
        pair.agent_mut().wait_unready().await?;
        pair.agent().wait_metric("open_endpoint_connections", &[], 0.0).await?;
        pair.server_mut().restart()?;
        pair.server_mut().wait_healthy().await?;
        within_limit("the agent's return", Duration::from_secs(15), pair.wait_connected()).await??;
        works(pair.frontend(), &endpoint.target()).await?;
    }
    Ok(())
}

/// The server keeps what had arrived for a client that reads nothing, but no longer counts the agent.
#[tokio::test]
async fn a_lost_agent_is_not_counted_although_a_client_reads_nothing() -> Result<()> {
    let mut pair = Setup::grpc().agent_arg("--lanes=1").start().await?;
    let endpoint = Endpoint::source(Payload::new(1, 64 << 20)).await?;
    let _unread = pair.frontend().dial(&endpoint.target()).await?;
    // The queue also holds bytes for a moment while the client's window fills.
    let samples = RefCell::new(Vec::new());
    let stands_still = |scrape: &Scrape| {
        let queued = scrape.value(&format!("{SERVER}queued_bytes"), &[]);
        let mut samples = samples.borrow_mut();
        samples.retain(|sample| *sample == queued);
        samples.push(queued);
        samples.len() >= 10 && queued > 0.0
    };
    pair.server().wait_metrics("a queue that stands still", stands_still).await?;
    pair.agent_mut().process.kill()?;
    let counted = [("service_method", "Connect")];
    let gone = pair.server().wait_metric("grpc_connections", &counted, 0.0);
    let scrape = within_limit("the end of the count", Duration::from_secs(5), gone).await??;
    let streams = format!("{SERVER}backend_connection_duration_seconds_count");
    assert_eq!(scrape.value(&streams, &[]), 1.0);
    pair.server_mut().process.wait_said("Stream read from agent cancelled").await
}

/// The agent keeps what had arrived for an endpoint that takes nothing, but not its servers waiting.
#[tokio::test]
async fn an_agent_returns_at_once_although_an_endpoint_takes_nothing() -> Result<()> {
    let mut pair = Setup::grpc().agent_arg("--lanes=1").start().await?;
    let endpoint = Endpoint::stalled().await?;
    let conn = pair.frontend().dial(&endpoint.target()).await?;
    let uploading = tokio::spawn(async move {
        let (_input, mut output) = tokio::io::split(conn);
        let _ = Payload::new(1, 1 << 40).send(&mut output).await;
    });
    let queued = |scrape: &Scrape| scrape.value(&format!("{AGENT}queued_bytes"), &[]) > 0.0;
    pair.agent().wait_metrics("bytes that wait", queued).await?;
    pair.server_mut().process.kill()?;
    within_limit("the loss", Duration::from_secs(5), pair.agent_mut().wait_unready()).await??;
    pair.server_mut().restart()?;
    pair.server_mut().wait_healthy().await?;
    within_limit("the agent's return", Duration::from_secs(5), pair.wait_connected()).await??;
    uploading.abort();
    Ok(())
}

#[tokio::test]
async fn a_cut_network_ends_the_connections_and_heals() -> Result<()> {
    let mut pair = Setup::grpc().balanced().start().await?;
    let endpoint = Endpoint::echo().await?;
    let mut conns = established(&pair, &endpoint.target(), 10).await?;
    pair.balancer.as_ref().expect("balanced").cut();
    for conn in &mut conns {
        expect_any_end(conn).await?;
    }
    endpoint.wait_open(0).await?;
    within_limit("the agent's return", Duration::from_secs(15), pair.wait_connected()).await??;
    works(pair.frontend(), &endpoint.target()).await
}

/// The server pings the streams of an agent id that connects again: otherwise a half-open stream would get dials until one of
/// them had waited.
#[tokio::test]
async fn unresponsive_agent_is_replaced_by_its_successor() -> Result<()> {
    let mut pair = Setup::grpc().agents(0).start().await?;
    pair.add_agent("twin", "", &[])?;
    pair.wait_connected().await?;
    let endpoint = Endpoint::echo().await?;
    pair.agents[0].process.signal(Signal::STOP)?;
    pair.add_agent("twin", "", &[])?;
    let connect = [("service_method", "Connect")];
    pair.server().wait_metric("grpc_connections", &connect, 2.0).await?;
    let noticed = pair.server().process.wait_said("keepalive ping unanswered");
    // Without the probe the silence would be noticed after 12.5 s.
    within_limit("the half-dead stream's silence", Duration::from_secs(9), noticed).await??;
    let target = endpoint.target();
    let dial = works(pair.frontend(), &target);
    within_limit("a dial through the successor", Duration::from_secs(2), dial).await??;
    assert_eq!(pair.server().metric("grpc_connections", &connect).await?, 2.0, "its connections live on");
    Ok(())
}

/// Two streams of one agent id: the end of the older one must not remove the younger one.
#[tokio::test]
async fn a_stale_streams_end_does_not_evict_its_successor() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let port = pair.server().agent_port();
    let meta = AgentMeta::new("twin", "");
    let stale = AdversarialAgent::connect(port, &pair.pki, &meta).await?;
    let mut fresh = AdversarialAgent::connect(port, &pair.pki, &meta).await?;
    drop(stale);
    pair.server().wait_metric("grpc_connections", &[("service_method", "Connect")], 1.0).await?;
    let frontend = pair.frontend().clone();
    let dial = tokio::spawn(async move { frontend.dial("127.0.0.1:9").await });
    within("the successor's dial", fresh.accept(1)).await??;
    within("the dial", dial).await???;
    Ok(())
}

/// Kills and restarts the agent repeatedly under traffic: no byte is wrong, and the agent always returns.
#[tokio::test]
async fn agents_that_come_and_go_corrupt_nothing() -> Result<()> {
    let mut pair = Setup::http_connect().start().await?;
    let endpoint = Endpoint::echo().await?;
    for round in 0..3 {
        let (frontend, target) = (pair.frontend().clone(), endpoint.target());
        let traffic = tokio::spawn(async move {
            // Until the first loss, which the kill below causes.
            while unless_lost(echoed(&frontend, &target, Payload::new(round, 200_000)).await)?.is_some() {}
            anyhow::Ok(())
        });
        pair.agent().wait_transfers().await?;
        ensure!(!traffic.is_finished(), "a loss before the kill");
        pair.agent_mut().process.kill()?;
        within("the end of the traffic", traffic).await???;
        pair.agent_mut().process.restart()?;
        pair.wait_connected().await?;
        works(pair.frontend(), &endpoint.target()).await?;
    }
    Ok(())
}
