//! Several server replicas behind one address: the agent finds all of them, keeps one stream to each, and reconnects.

use std::time::Duration;

use anyhow::{Context, Result};
use e2e::balancer::{Balancer, Policy};
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, works};
use e2e::pair::{Pair, Setup};
use e2e::payload::Payload;
use e2e::wait::{DEADLINE, never, until, within_limit};

#[tokio::test]
async fn an_agent_finds_every_replica() -> Result<()> {
    let pair = Setup::grpc().servers(3).agents(2).start().await?;
    let endpoint = Endpoint::echo().await?;
    for server in &pair.servers {
        works(&server.frontend, &endpoint.target()).await?;
    }
    for agent in &pair.agents {
        agent.wait_metric("open_server_connections", &[], 3.0).await?;
        agent.wait_metric("known_server_count", &[], 3.0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_restart_of_one_replica_leaves_the_others_connections_alone() -> Result<()> {
    let mut pair = Setup::grpc().servers(2).start().await?;
    let endpoint = Endpoint::echo().await?;
    let conn = pair.servers[1].frontend.dial(&endpoint.target()).await?;
    let conn = echo(conn, Payload::new(1, 1_000)).await?;
    pair.servers[0].restart()?;
    pair.servers[0].wait_healthy().await?;
    within_limit("the agent's return", Duration::from_secs(15), pair.wait_connected()).await??;
    works(&pair.servers[0].frontend, &endpoint.target()).await?;
    echo(conn, Payload::new(2, 1_000_000)).await?;
    Ok(())
}

/// Each attempt that reaches a known server is closed again, and affects neither the tunnels nor the server.
#[tokio::test]
async fn a_balancer_that_sticks_to_one_replica_leaks_nothing() -> Result<()> {
    let mut pair = Setup::grpc().servers(2).agents(0).start().await?;
    let balancer = pair.balancer.as_ref().expect("balanced");
    balancer.set_policy(Policy::Stick(0));
    pair.add_agent("sticky", "", &[])?;
    let endpoint = Endpoint::echo().await?;
    pair.servers[0].wait_ready().await?;
    let conn = echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(1, 1_000)).await?;
    let balancer = pair.balancer.as_ref().expect("balanced");
    until("eight tries", DEADLINE, || async { (balancer.accepted() >= 8).then_some(()) }).await?;
    let conn = echo(conn, Payload::new(2, 100_000)).await?;
    assert_eq!(pair.agent().metric("open_server_connections", &[]).await?, 1.0);
    pair.server().wait_metric("grpc_connections", &[("service_method", "Connect")], 1.0).await?;
    let balancer = pair.balancer.as_ref().expect("balanced");
    balancer.set_policy(Policy::Stick(1));
    pair.wait_connected().await?;
    works(&pair.servers[1].frontend, &endpoint.target()).await?;
    echo(conn, Payload::new(3, 100_000)).await?;
    Ok(())
}

/// The agent, which is connected to both servers, tries no more.
async fn is_at_rest(pair: &Pair) -> Result<()> {
    let balancer = pair.balancer.as_ref().expect("balanced");
    let before = balancer.accepted();
    never("a needless try", Duration::from_secs(1), || balancer.accepted() > before).await
}

#[tokio::test]
async fn no_more_tries_once_every_replica_is_found() -> Result<()> {
    let pair = Setup::grpc().servers(2).start_with_lanes().await?;
    is_at_rest(&pair).await
}

/// Two addresses of the first replica and one of the second: one duplicate, and then nothing.
#[tokio::test]
async fn several_addresses_cost_one_dial_each() -> Result<()> {
    let mut pair = Setup::grpc().servers(2).agents(0).start().await?;
    let (first, second) = (pair.servers[0].agent_address(), pair.servers[1].agent_address());
    let ways = [
        Balancer::start(vec![first]).await?,
        Balancer::start(vec![first]).await?,
        Balancer::start(vec![second]).await?,
    ];
    let list: Vec<String> = ways.iter().map(|way| way.address().to_string()).collect();
    pair.add_agent("several", "", &[&format!("--proxy-server-host={}", list.join(",")), "--lanes=1"])?;
    pair.wait_connected().await?;
    let accepted = || ways.iter().map(Balancer::accepted).collect::<Vec<_>>();
    until("a dial of each address", DEADLINE, || async { (accepted() == [1, 1, 1]).then_some(()) }).await?;
    ways[2].cut();
    until("the lost stream's return", DEADLINE, || async { (accepted() == [1, 1, 2]).then_some(()) }).await?;
    pair.wait_connected().await?;
    let needless = never("a needless dial", Duration::from_secs(1), || accepted() != [1, 1, 2]).await;
    needless.with_context(|| format!("accepted: {:?}", accepted()))
}

#[tokio::test]
async fn a_changed_count_file_is_told_to_open_streams() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (file, next) = (folder.path().join("count"), folder.path().join("next"));
    std::fs::write(&file, "1\n")?;
    let flag = format!("--server-count-file={}", file.display());
    let mut pair = Setup::grpc().servers(2).agents(0).server_arg(flag).start().await?;
    pair.add_agent("follows", "", &[])?;
    pair.agent().wait_metric("known_server_count", &[], 1.0).await?;
    pair.agent().wait_metric("open_server_connections", &[], 1.0).await?;
    std::fs::write(&next, "2\n")?;
    std::fs::rename(&next, &file)?;
    pair.wait_connected().await?;
    std::fs::write(&file, "two")?;
    let line = "[+]server-count-file ok: it holds \"two\", which is no number from 1 to 1000\n";
    until("the note", DEADLINE, || async {
        let answer = e2e::http1::get(pair.servers[0].health, "/readyz?verbose").await.ok()?;
        (answer.head.status == 200 && answer.body.contains(line)).then_some(())
    })
    .await
}

/// Behind a balancer the agent does not wait for `--sync-interval` while servers are missing.
#[tokio::test]
async fn missing_replicas_are_found_long_before_the_interval() -> Result<()> {
    let setup = Setup::grpc().servers(3).agents(0);
    let mut pair =
        setup.agent_arg("--sync-interval-cap=30s").agent_arg("--sync-interval=30s").start().await?;
    pair.add_agent("fast", "", &[])?;
    within_limit("all streams", Duration::from_secs(20), pair.wait_connected()).await?
}

#[tokio::test]
async fn sync_forever_rests_when_every_replica_tells_the_number_of_streams() -> Result<()> {
    let pair = Setup::grpc().servers(2).agent_arg("--sync-forever=true").start_with_lanes().await?;
    is_at_rest(&pair).await
}

/// Two replicas tell that there is one.
#[tokio::test]
async fn sync_forever_goes_on_looking_if_the_number_is_wrong() -> Result<()> {
    let setup = Setup::grpc().servers(2).server_arg("--server-count=1");
    let pair = setup.agent_arg("--sync-forever=true").start().await?;
    let balancer = pair.balancer.as_ref().expect("balanced");
    let before = balancer.accepted();
    until("further tries", DEADLINE, || async { (balancer.accepted() >= before + 3).then_some(()) }).await?;
    pair.agent().wait_metric("open_server_connections", &[], 2.0).await?;
    Ok(())
}

/// With `--sync-forever` the agent finds a replica that starts later, even if no server counted it before.
#[tokio::test]
async fn sync_forever_finds_an_uncounted_replica() -> Result<()> {
    let mut pair = Setup::grpc()
        .servers(2)
        .agents(0)
        .server_arg("--server-count=1")
        .agent_arg("--sync-forever")
        .start()
        .await?;
    pair.balancer.as_ref().expect("balanced").set_policy(Policy::Stick(0));
    pair.add_agent("eager", "", &[])?;
    pair.servers[0].wait_ready().await?;
    pair.balancer.as_ref().expect("balanced").set_policy(Policy::RoundRobin);
    pair.wait_connected().await
}

#[tokio::test]
async fn an_agent_waits_for_a_server_that_is_not_there_yet() -> Result<()> {
    let mut pair = Setup::grpc().balanced().agents(0).start().await?;
    pair.server_mut().process.kill()?;
    pair.add_agent("early", "", &[])?;
    pair.agents[0].wait_unready().await?;
    pair.server_mut().process.restart()?;
    pair.server_mut().wait_healthy().await?;
    within_limit("the agent's arrival", Duration::from_secs(15), pair.wait_connected()).await??;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

/// A test of the harness: a balancer uses its replicas in turn.
#[tokio::test]
async fn the_balancer_takes_turns() -> Result<()> {
    let (one, two) = (Endpoint::echo().await?, Endpoint::echo().await?);
    let balancer = Balancer::start(vec![one.address(), two.address()]).await?;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(tokio::net::TcpStream::connect(balancer.address()).await?);
    }
    one.wait_open(2).await?;
    two.wait_open(2).await?;
    drop(held);
    one.wait_open(0).await?;
    two.wait_open(0).await
}
