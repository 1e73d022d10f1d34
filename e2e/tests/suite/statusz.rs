//! `/statusz` of both programs: a real pair with live connections, a failed dial and refused peers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::echo;
use e2e::frontend::Mode;
use e2e::http1::get;
use e2e::pair::{Front, Setup};
use e2e::payload::Payload;
use e2e::wait::{DEADLINE, until};
use status::{Connection, Interval, Status};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

async fn status(admin: SocketAddr, query: &str) -> Result<Status> {
    let answer = get(admin, &format!("/statusz{query}")).await?;
    ensure!(answer.head.status == 200, "{}: {}", answer.head.status, answer.body);
    serde_json::from_str(&answer.body).context(answer.body)
}

/// Waits for a document that fulfills a condition.
pub(crate) async fn wait_status(
    admin: SocketAddr,
    what: &str,
    is: impl Fn(&Status) -> bool,
) -> Result<Status> {
    until(what, DEADLINE, || async { status(admin, "").await.ok().filter(&is) }).await
}

fn dials(history: &[Interval]) -> (u32, u32) {
    history.iter().fold((0, 0), |sum, one| (sum.0 + one.dials, sum.1 + one.failures))
}

#[tokio::test]
async fn status_of_a_pair_names_connections_failures_and_refused_peers() -> Result<()> {
    let pair = Setup::new(Mode::HttpConnect, Front::Tls).agent_arg("--v=2").start().await?;
    let (server, agent) = (pair.server().admin, pair.agent().admin);
    let endpoint = Endpoint::echo().await?;
    let mut open = Vec::new();
    for seed in 0..3 {
        open.push(echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(seed, 5_000)).await?);
    }
    let closed = "127.0.0.1:1";
    ensure!(pair.frontend().dial(closed).await.is_err());
    let mut unauthenticated = TcpStream::connect(pair.server().agent_address()).await?;
    unauthenticated.write_all(b"GET / HTTP/1.1\r\n\r\n").await?;

    let seen = wait_status(server, "a refused peer and all bytes", |status| {
        let echoed = |connection: &Connection| connection.bytes_from_endpoint == 5_000;
        !status.refused.is_empty() && status.connections.iter().filter(|one| echoed(one)).count() == 3
    });
    let seen = seen.await?;
    assert_eq!((seen.version, seen.build.program.as_str()), (1, "proxy-server"));
    assert_eq!((seen.totals.agents, seen.totals.connections, seen.totals.failed_dials), (1, 3, 1));
    let [one] = seen.agents.as_slice() else { panic!("{:?}", seen.agents) };
    assert_eq!((one.id.as_str(), one.state.as_str(), one.native), ("agent-0", "ready", true));
    assert_eq!((one.connections, one.dials_ok, one.dials_failed), (3, 3, 1));
    assert!(one.last_failure.contains("connection refused"), "{one:?}");
    assert!((1..=4).contains(&one.streams), "{one:?}");
    assert_eq!((one.bytes_to_agent, one.bytes_from_agent), (15_000, 15_000));
    assert!(one.rtt_seconds.is_some_and(|rtt| rtt > 0.0) && !one.identity.is_empty(), "{one:?}");
    for connection in &seen.connections {
        assert_eq!((connection.peer.as_str(), &connection.target), ("agent-0", &endpoint.target()));
        assert_eq!((connection.bytes_to_endpoint, connection.stalled_seconds), (5_000, None));
        assert!(connection.client.contains(" at 127.0.0.1:"), "{connection:?}");
        assert!(connection.since >= seen.started && connection.since <= seen.now, "{connection:?}");
    }
    let [failure] = seen.failures.as_slice() else { panic!("{:?}", seen.failures) };
    assert_eq!((failure.target.as_str(), failure.peer.as_str()), (closed, "agent-0"));
    assert!(failure.error.contains("connection refused"), "{failure:?}");
    let refused = &seen.refused[0];
    assert_eq!((refused.listener.as_str(), refused.peer.as_str()), ("agents", "127.0.0.1"));
    assert_eq!(dials(&seen.history), (3, 1));
    let agents = pair.server().agent_address().to_string();
    for (name, address) in [("agents", agents), ("admin", server.to_string())] {
        let is = |one: &status::Listener| one.name == name && one.address == address;
        assert!(seen.listeners.iter().any(is), "{name} {address}: {:?}", seen.listeners);
    }
    assert!(seen.flags.iter().any(|flag| flag.name == "cluster-cert"), "{:?}", seen.flags);
    let cert = seen.certificates.iter().find(|cert| cert.side == "agents" && cert.role == "presented");
    let cert = cert.context("no certificate of the agent port")?;
    assert!(cert.source.starts_with("--cluster-cert /") && cert.not_after > seen.now, "{cert:?}");

    let seen = wait_status(agent, "all bytes", |status| {
        status.connections.iter().filter(|one| one.bytes_from_endpoint == 5_000).count() == 3
    });
    let seen = seen.await?;
    assert_eq!((seen.id.as_str(), seen.totals.servers, seen.totals.connections), ("agent-0", 1, 3));
    let [one] = seen.servers.as_slice() else { panic!("{:?}", seen.servers) };
    assert_eq!((one.state.as_str(), one.connections, one.native), ("ready", 3, true));
    assert_eq!(one.addresses, [pair.server().agent_address().to_string()]);
    assert_eq!(seen.failures[0].target, closed);
    assert!(seen.flags.iter().any(|flag| flag.name == "v" && flag.value == "2"), "{:?}", seen.flags);
    drop(open);
    wait_status(agent, "no connection", |status| status.connections.is_empty()).await?;
    Ok(())
}

#[tokio::test]
async fn pages_of_status_are_sorted_filtered_and_checked() -> Result<()> {
    // An IPv4 address is shown as one, on a socket for both families too.
    let pair = Setup::grpc().agents(3).server_arg("--agent-bind-address=::").start().await?;
    let admin = pair.server().admin;
    let ids = |status: Status| status.agents.into_iter().map(|agent| agent.id).collect::<Vec<_>>();
    assert_eq!(ids(status(admin, "?list=agents&offset=1&limit=1").await?), ["agent-1"]);
    assert_eq!(ids(status(admin, "?sort=-id").await?), ["agent-2", "agent-1", "agent-0"]);
    assert_eq!(ids(status(admin, "?filter=ent-2").await?), ["agent-2"]);
    let agents = status(admin, "").await?.agents;
    let is_ipv4 = |address: &String| address.starts_with("127.0.0.1:");
    assert!(agents.iter().flat_map(|agent| &agent.addresses).all(is_ipv4), "{agents:?}");
    assert!(ids(status(admin, "?list=connections").await?).is_empty());
    let answer = get(admin, "/statusz?sort=color").await?;
    assert_eq!(answer.head.status, 400);
    assert!(answer.body.starts_with("sort=color: ") && answer.body.lines().count() == 1, "{}", answer.body);
    Ok(())
}

/// A reader that takes nothing for a while stalls.
#[tokio::test]
async fn stalled_reader_is_named_with_its_bytes() -> Result<()> {
    for setup in [Setup::http_connect(), Setup::grpc()] {
        stalled_reader(setup).await?;
    }
    Ok(())
}

async fn stalled_reader(setup: Setup) -> Result<()> {
    let pair = setup.start().await?;
    let endpoint = Endpoint::source(Payload::new(1, 32 << 20)).await?;
    let silent = pair.frontend().dial(&endpoint.target()).await?;
    let stalls =
        |status: &Status| status.connections.first().is_some_and(|one| one.stalled_seconds.is_some());
    let seen = wait_status(pair.server().admin, "a stalled reader", stalls).await?;
    let [one] = seen.connections.as_slice() else { panic!("{:?}", seen.connections) };
    assert!(one.queued > 0 && one.stalled_seconds >= Some(1.0) && one.client == "unix", "{one:?}");
    drop(silent);
    Ok(())
}

#[tokio::test]
async fn status_on_an_exposed_address_needs_its_flag() -> Result<()> {
    for (flag, status) in [(None, 403), (Some("--status-on-any-address"), 200)] {
        let mut setup =
            Setup::grpc().server_arg("--admin-bind-address=0.0.0.0").agent_arg("--admin-bind-address=::");
        if let Some(flag) = flag {
            setup = setup.server_arg(flag).agent_arg(flag);
        }
        let pair = setup.start().await?;
        for admin in [pair.server().admin, pair.agent().admin] {
            let answer = get(admin, "/statusz").await?;
            assert_eq!(answer.head.status, status, "{}", answer.body);
        }
        let line = if flag.is_some() { "/statusz is served to everyone" } else { "/ and /statusz are off" };
        for process in [&pair.server().process, &pair.agent().process] {
            tokio::time::timeout(Duration::from_secs(20), process.wait_said(line)).await??;
        }
    }
    Ok(())
}
