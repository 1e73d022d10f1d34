//! Connections of which only one end knows the loss, and GOAWAY. The path acknowledges every byte, so TCP sees no fault.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::adversarial::{AdversarialServer, close_req, data, dial_req};
use e2e::balancer::{Balancer, End};
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, expect_any_end, works};
use e2e::figures::say;
use e2e::http1::get;
use e2e::pair::{Pair, Setup};
use e2e::payload::Payload;
use e2e::wait::within_limit;
use proto::Packet;
use proto::packet::Payload as Body;
use tokio::time::Instant;

/// How long a dial may take beside a half-open stream.
const SLOWEST: Duration = Duration::from_secs(5);

const CONNECT: [(&str, &str); 1] = [("service_method", "Connect")];

/// Resets one end of all agent streams, and returns how long `noticed` took.
async fn timed(pair: &Pair, end: End, noticed: impl Future<Output = Result<()>>) -> Result<Duration> {
    pair.balancer.as_ref().expect("balanced").reset(end);
    let began = Instant::now();
    noticed.await?;
    Ok(began.elapsed())
}

/// Only the agents see the reset, and the server keeps half-open streams: they end when the agents connect again, so that clients
/// learn of it before they give up.
#[tokio::test]
async fn streams_that_only_the_server_has_end_when_their_agents_connect_again() -> Result<()> {
    let pair = Setup::grpc().agents(2).balanced().start().await?;
    let endpoint = Endpoint::echo().await?;
    let target = endpoint.target();
    let mut conn = echo(pair.frontend().dial(&target).await?, Payload::new(1, 1_000)).await?;
    let dials = async {
        within_limit("the end of its connection", SLOWEST, expect_any_end(&mut conn)).await??;
        works(pair.frontend(), &target).await
    };
    let took = timed(&pair, End::Agent, dials).await?;
    say("a connection of a half-open stream ends, and a dial works, after", format!("{took:.1?}"));
    pair.server().wait_metric("grpc_connections", &CONNECT, 2.0).await?;
    let lost =
        pair.server().metric("established_connections_closed_total", &[("reason", "backend_close")]).await?;
    ensure!(lost == 1.0, "{lost} connections were lost with their stream");
    Ok(())
}

/// Only the server sees the reset, and the agent keeps a half-open stream: it opens another one within five seconds of silence.
#[tokio::test]
async fn an_agent_replaces_a_stream_that_only_it_has() -> Result<()> {
    let setup = Setup::grpc().agent_arg("--keepalive-timeout=5s").agent_arg("--lanes=1");
    let pair = setup.balanced().start().await?;
    let endpoint = Endpoint::echo().await?;
    let conn = echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(1, 1_000)).await?;
    let back = async {
        pair.server().wait_metric("ready_backends", &[("proxy_strategy", "default")], 0.0).await?;
        pair.server().wait_metric("ready_backends", &[("proxy_strategy", "default")], 1.0).await?;
        works(pair.frontend(), &endpoint.target()).await
    };
    let took = timed(&pair, End::Server, back).await?;
    say("an agent's own half-open stream is replaced after", format!("{took:.1?}"));
    // Five seconds, doubled for a busy machine.
    ensure!(took < Duration::from_secs(10), "{took:?}");
    // The connection of the replaced stream ends with it.
    pair.agent().wait_metric("open_endpoint_connections", &[], 0.0).await?;
    pair.agent().wait_metric("retiring_server_connections", &[], 0.0).await?;
    let agent = pair.agent().metrics().await?;
    for (name, labels, count) in [
        ("unresponsive_peers_total", &[][..], 1.0),
        ("server_connection_attempts_total", &[("result", "connected")], 2.0),
        ("server_connection_lost_total", &[("reason", "recv_error")], 1.0),
    ] {
        let name = format!("konnectivity_network_proxy_agent_{name}");
        ensure!(agent.value(&name, labels) == count, "{name} is {}", agent.value(&name, labels));
    }
    drop(conn);
    Ok(())
}

/// A Go server may be pinged only every 35 s.
#[tokio::test]
async fn an_agent_of_an_upstream_server_replaces_a_half_open_stream_within_forty_seconds() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let mut server = AdversarialServer::start(&pair.pki, "upstream", 1).await?;
    let balancer = Balancer::start(vec![server.address()]).await?;
    let agent = pair.agent_at("agent", balancer.address())?;
    let _first = server.link().await?;
    agent.wait_metric("open_server_connections", &[], 1.0).await?;
    balancer.reset(End::Server);
    let began = Instant::now();
    within_limit("another stream", Duration::from_secs(40), async {
        loop {
            if let Ok(second) = server.link().await {
                return second;
            }
        }
    })
    .await?;
    say("the same with an upstream server", format!("{:.1?}", began.elapsed()));
    Ok(())
}

/// GOAWAY on a connection with an open stream: the agent opens another stream, asks for no new dials on the first one, and
/// its connections continue.
#[tokio::test]
async fn goaway_moves_new_dials_and_no_connection() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let age = Duration::from_secs(1);
    let mut server = AdversarialServer::start_with_age(&pair.pki, "upstream", 1, age).await?;
    let agent = pair.agent_at("agent", server.address())?;
    let mut first = server.link().await?;
    let endpoint = Endpoint::echo().await?;
    first.send(dial_req(1, &endpoint.target())).await?;
    let Some(Body::DialResponse(opened)) = first.expect("the DIAL_RSP").await?.payload else {
        anyhow::bail!("the dial failed");
    };
    let mut second = server.link().await?;
    ensure!(matches!(first.expect("a DRAIN").await?.payload, Some(Body::Drain(_))), "it drains");
    second.send(dial_req(2, &endpoint.target())).await?;
    ensure!(matches!(second.expect("a DIAL_RSP").await?.payload, Some(Body::DialResponse(_))), "it works");
    first.send(data(opened.connect_id, "still here")).await?;
    ensure!(matches!(first.expect("the echo").await?.payload, Some(Body::Data(_))), "it continues");
    ensure!(agent.process.said("GOAWAY received, opening another stream"), "the log names the reason");
    Ok(())
}

/// A Go server that stops waits until its streams have ended, and accepts no others. The agent is not ready, because it gets no
/// dials.
#[tokio::test]
async fn without_a_successor_a_stream_ends_after_goaway_once_it_is_idle() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let mut server =
        AdversarialServer::start_with_age(&pair.pki, "upstream", 1, Duration::from_secs(1)).await?;
    let agent = pair.agent_at("agent", server.address())?;
    let mut link = server.link().await?;
    server.stop_listening();
    let endpoint = Endpoint::echo().await?;
    link.send(dial_req(1, &endpoint.target())).await?;
    let Some(Body::DialResponse(opened)) = link.expect("the DIAL_RSP").await?.payload else {
        anyhow::bail!("the dial failed");
    };
    ensure!(matches!(link.expect("a DRAIN").await?.payload, Some(Body::Drain(_))), "it drains");
    agent.wait_metric("open_server_connections", &[], 0.0).await?;
    agent.wait_metric("retiring_server_connections", &[], 1.0).await?;
    ensure!(get(agent.health, "/readyz").await?.head.status == 503, "it is ready");
    link.send(data(opened.connect_id, "still here")).await?;
    ensure!(matches!(link.expect("the echo").await?.payload, Some(Body::Data(_))), "it continues");
    link.send(close_req(opened.connect_id)).await?;
    let rest = link.end().await?;
    ensure!(matches!(&rest[..], [Packet { payload: Some(Body::CloseResponse(_)), .. }]), "{rest:?}");
    Ok(())
}
