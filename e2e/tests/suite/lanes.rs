//! Several streams (lanes) of one agent to one server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::adversarial::{AdversarialAgent, AdversarialServer, AgentMeta};
use e2e::balancer::Balancer;
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, works};
use e2e::frontend::{Conn, Mode};
use e2e::metrics::Scrape;
use e2e::pair::{Front, Pair, Setup};
use e2e::payload::{Payload, unless_lost};
use e2e::sockets::connections;
use e2e::wait::{DEADLINE, never, until, within_limit};
use tokio::io::AsyncReadExt;

/// Checks that the agent opens no further connection within a second and a half: `--sync-interval` is one second.
async fn stays_at(pair: &Pair, count: usize) -> Result<()> {
    let (pid, server) = (pair.agent().process.pid(), pair.server().agent_address());
    let differs = || connections(pid, server).is_ok_and(|found| found != count);
    never(&format!("not {count} lanes"), Duration::from_millis(1_500), differs).await
}

/// Every count of agents and servers, at both ends.
async fn counts_tell_of_one_agent(pair: &Pair) -> Result<()> {
    for (name, labels) in [
        ("ready_backends", &[("proxy_strategy", "default")][..]),
        ("ready_backend_connections", &[]),
        ("grpc_connections", &[("service_method", "Connect")]),
    ] {
        ensure!(pair.server().metric(name, labels).await? == 1.0, "{name}");
    }
    for (name, count) in
        [("open_server_connections", 1.0), ("known_server_count", 1.0), ("retiring_server_connections", 0.0)]
    {
        ensure!(pair.agent().metric(name, &[]).await? == count, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn lanes_of_a_pair_are_one_agent() -> Result<()> {
    for (arg, lanes) in [("--lanes=1", 1), ("--lanes=4", 4)] {
        let setup = Setup::grpc().agent_arg(arg);
        let pair = setup.start().await?;
        let endpoint = Endpoint::echo().await?;
        pair.wait_lanes(lanes, DEADLINE).await?;
        counts_tell_of_one_agent(&pair).await?;
        let mut conns = Vec::new();
        for seed in 0..12 {
            let conn = pair.frontend().dial(&endpoint.target()).await?;
            conns.push(echo(conn, Payload::new(seed, 100_000)).await?);
        }
        pair.server().wait_metric("established_connections", &[], 12.0).await?;
        stays_at(&pair, lanes).await?;
        counts_tell_of_one_agent(&pair).await?;
    }
    Ok(())
}

/// A proxy near the agent looks like a server that lacks CPU: its kernel answers at once.
#[tokio::test]
async fn delay_behind_a_near_kernel_adds_no_lanes() -> Result<()> {
    let pair = Setup::grpc().agent_arg("--lanes=2").with_delay(Duration::from_millis(15)).start().await?;
    let balancer = pair.balancer.as_ref().expect("balanced");
    until("two lanes", DEADLINE, || async { (balancer.accepted() == 2).then_some(()) }).await?;
    // The agent has measured the RTT after a second, and looks at it each second.
    never("a third lane", Duration::from_secs(4), || balancer.accepted() > 2).await?;
    counts_tell_of_one_agent(&pair).await
}

/// The agent seeks a server that is missing, and each of its attempts reaches the one that it has.
#[tokio::test]
async fn no_dial_uses_a_stream_that_the_agent_closes() -> Result<()> {
    let setup = Setup::grpc()
        .agent_arg("--lanes=4")
        .server_arg("--server-count=2")
        .with_delay(Duration::from_millis(30));
    let pair = setup.start().await?;
    let (balancer, endpoint) = (pair.balancer.as_ref().expect("balanced"), Endpoint::echo().await?);
    let connected = [("result", "connected")];
    pair.agent().wait_metric("server_connection_attempts_total", &connected, 4.0).await?;
    // Every lane has connections, so that a new stream seems to be the quietest.
    let mut conns = Vec::new();
    for _ in 0..8 {
        conns.push(pair.frontend().dial(&endpoint.target()).await?);
    }
    let before = balancer.accepted();
    let dials = async {
        while balancer.accepted() < before + 8 {
            works(pair.frontend(), &endpoint.target()).await?;
        }
        anyhow::Ok(())
    };
    within_limit("eight more attempts", DEADLINE * 2, dials).await??;
    ensure!(pair.server().metric("dial_attempts_total", &[("outcome", "lost")]).await? == 0.0);
    Ok(())
}

/// The most lanes.
const LANES: usize = 4;

/// The agent reaches the server by an address for each lane, so that a test can cut one.
async fn separate_lanes(mode: Mode) -> Result<(Pair, Vec<Balancer>)> {
    let lanes = format!("--lanes={LANES}");
    let mut pair = Setup::new(mode, Front::Unix).agents(0).agent_arg(lanes).start().await?;
    let server = pair.server().agent_address();
    // An agent on a busy machine may dial an address again before another one has answered.
    for _ in 0..10 {
        let mut ways = Vec::new();
        for _ in 0..LANES {
            ways.push(Balancer::start(vec![server]).await?);
        }
        let addresses: Vec<String> = ways.iter().map(|way| way.address().to_string()).collect();
        let list = format!("--proxy-server-host={}", addresses.join(","));
        pair.add_agent("separate-lanes", "", &[&list])?;
        pair.wait_connected().await?;
        // The server has registered all lanes.
        let connected = [("result", "connected")];
        pair.agent().wait_metric("server_connection_attempts_total", &connected, LANES as f64).await?;
        if ways.iter().all(|way| way.accepted() == 1) {
            return Ok((pair, ways));
        }
        pair.agents.clear();
        pair.server().wait_metric("ready_backend_connections", &[], 0.0).await?;
    }
    anyhow::bail!("no agent has a lane by each address")
}

async fn lanes(pair: &Pair, ways: &[Balancer]) -> Result<usize> {
    let pid = pair.agent().process.pid();
    ways.iter().try_fold(0, |sum, way| Ok(sum + connections(pid, way.address())?))
}

/// Exchanges megabytes until one was sent after the cut; `None` if the connection has ended.
async fn survives(mut conn: Conn, seed: u64, cut: Arc<AtomicBool>) -> Result<Option<Conn>> {
    loop {
        let last = cut.load(Ordering::Relaxed);
        match unless_lost(echo(conn, Payload::new(seed, 1 << 20)).await)? {
            Some(open) if !last => conn = open,
            ended => return Ok(ended),
        }
    }
}

#[tokio::test]
async fn killed_lane_ends_its_own_connections_and_returns() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let (pair, ways) = separate_lanes(mode).await?;
        let endpoint = Endpoint::echo().await?;
        let mut conns = Vec::new();
        for _ in 0..10 {
            conns.push(pair.frontend().dial(&endpoint.target()).await?);
        }
        pair.server().wait_metric("established_connections", &[], 10.0).await?;
        // Transfers are under way on all connections.
        let (mut transfers, cut) = (tokio::task::JoinSet::new(), Arc::<AtomicBool>::default());
        for (seed, conn) in conns.into_iter().enumerate() {
            transfers.spawn(survives(conn, seed as u64, Arc::clone(&cut)));
        }
        pair.agent().wait_transfers().await?;
        ways[0].cut();
        cut.store(true, Ordering::Relaxed);
        let back = async {
            until("all lanes", DEADLINE, || async {
                let again = ways.iter().map(Balancer::accepted).sum::<usize>() == LANES + 1;
                (again && lanes(&pair, &ways).await.ok()? == LANES).then_some(())
            })
            .await
        };
        // Two seconds on an idle machine.
        within_limit("the lane's return", Duration::from_secs(6), back).await??;
        let mut kept = Vec::new();
        while let Some(survived) = transfers.join_next().await {
            kept.extend(survived??);
        }
        // A lane has two or three of them.
        ensure!((5..10).contains(&kept.len()), "{} of 10 connections live", kept.len());
        for conn in kept {
            echo(conn, Payload::new(77, 100_000)).await?;
        }
        counts_tell_of_one_agent(&pair).await?;
        let lost = pair.agent().metrics().await?;
        ensure!(lost.busy().iter().all(|name| !name.contains("retiring")), "no lane retires");
        works(pair.frontend(), &endpoint.target()).await?;
    }
    Ok(())
}

/// The bytes that a lane moves at the moment decide, so a download that begins later than a ping takes another lane.
#[tokio::test]
async fn bulk_and_small_exchanges_take_different_lanes() -> Result<()> {
    let (pair, ways) = separate_lanes(Mode::Grpc).await?;
    let endpoint = Endpoint::echo().await?;
    let bulk = Endpoint::source(Payload::new(5, 1 << 40)).await?;
    let mut download = pair.frontend().dial(&bulk.target()).await?;
    let received = Arc::<AtomicU64>::default();
    let count = Arc::clone(&received);
    let reading = tokio::spawn(async move {
        let mut piece = vec![0; 1 << 20];
        while let Ok(size @ 1..) = download.read(&mut piece).await {
            count.fetch_add(size as u64, Ordering::Relaxed);
        }
    });
    // More than the programs and the kernel hold of it.
    let goes_on = || async {
        let before = received.load(Ordering::Relaxed);
        until("more of the download, or its end", DEADLINE, || async {
            let more = received.load(Ordering::Relaxed) - before > 32 << 20;
            (more || reading.is_finished()).then_some(more)
        })
        .await
    };
    ensure!(goes_on().await?, "the download ended");
    let mut small = Vec::new();
    for seed in 0..5 {
        let conn = pair.frontend().dial(&endpoint.target()).await?;
        small.push(echo(conn, Payload::new(seed, 100)).await?);
    }
    for way in &ways {
        way.cut();
        let before = small.len();
        let mut kept = Vec::new();
        for conn in small {
            kept.extend(unless_lost(echo(conn, Payload::new(8, 1_000)).await)?);
        }
        small = kept;
        if !goes_on().await? {
            ensure!(small.len() == before, "{} exchanges shared its lane", before - small.len());
            return Ok(());
        }
    }
    anyhow::bail!("the download has no lane")
}

/// A Go server, or a native one of an earlier version, answers without the capability.
#[tokio::test]
async fn server_without_lanes_gets_one_stream() -> Result<()> {
    let pair = Setup::grpc().agents(0).agent_arg("--lanes=2").start().await?;
    let mut server = AdversarialServer::start(&pair.pki, "go", 1).await?;
    let agent = pair.agent_at("native", server.address())?;
    let link = server.link().await?;
    let offer = link.metadata.get("konnectivity-capabilities").expect("an offer").to_str()?.to_owned();
    ensure!(offer.contains("lanes="), "{offer}");
    let second = tokio::time::timeout(Duration::from_millis(2_500), server.link()).await;
    ensure!(second.is_err(), "a second stream");
    ensure!(connections(agent.process.pid(), server.address())? == 1, "a second connection");
    Ok(())
}

/// A Go agent offers nothing, an earlier native one does not offer lanes.
#[tokio::test]
async fn agent_without_lanes_is_offered_none() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let port = pair.server().agent_port();
    for (offer, answer) in [
        (None, None),
        (Some("pings"), Some("pings")),
        (Some("pings, lanes=5"), Some("pings, lanes=4")),
        // An agent of a later version.
        (Some("warp, pings, zstd=3, lanes=5"), Some("pings, lanes=4")),
    ] {
        let meta = AgentMeta::new("an-agent", "");
        let meta = offer.map_or(meta.clone(), |offer| meta.with("konnectivity-capabilities", offer));
        let mut agent = AdversarialAgent::connect(port, &pair.pki, &meta).await?;
        let headers = agent.stream.headers().await?;
        let told = headers.get("konnectivity-capabilities").map(|value| value.to_str()).transpose()?;
        ensure!(told == answer, "{offer:?}: {told:?}");
    }
    Ok(())
}

/// Whatever an agent claims, its id has a limited number of streams.
#[tokio::test]
async fn lanes_of_a_hostile_agent_are_bounded() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let meta = AgentMeta::new("hostile", "").with("konnectivity-capabilities", "pings, lanes=7");
    let mut agents = Vec::new();
    let refused = loop {
        match AdversarialAgent::try_connect(pair.server().agent_port(), &pair.pki, &meta).await? {
            Ok(agent) => agents.push(agent),
            Err(status) => break status,
        }
        ensure!(agents.len() < 100, "no limit");
    };
    ensure!(refused.code() == tonic::Code::ResourceExhausted, "{refused:?}");
    ensure!(agents.len() == 16, "{} streams", agents.len());
    let one = |scrape: &Scrape| {
        scrape.value("konnectivity_network_proxy_server_grpc_connections", &[("service_method", "Connect")])
            == 1.0
    };
    pair.server().wait_metrics("one agent", one).await?;
    Ok(())
}
