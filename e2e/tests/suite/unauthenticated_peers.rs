//! Thousands of peers that never authenticate: authenticated peers are served as before, and the cost of the others is limited.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::adversarial::unauthenticated::{Flood, Plan, Refused, client_hello};
use e2e::adversarial::{AdversarialAgent, AgentMeta, PacketStream, channel};
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, works};
use e2e::figures::{percentile, say};
use e2e::frontend::{Conn, Mode, Place, tls_socket};
use e2e::metrics::SERVER;
use e2e::pair::{Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::program::Program;
use e2e::usage::thread_time;
use e2e::wait::{DEADLINE, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;

use crate::tokens::World;

/// Time limit of a ping, a handshake, and a dial with its handshake, during an attack: up to 50 ms without load, and 1.4 s and more
/// before the defense.
const PROMPT: Duration = Duration::from_secs(1);

/// Checks that an exchange during an attack takes less than [`PROMPT`], or 20 times its duration before the attack.
pub(crate) fn ensure_prompt(before: Duration, beside: Duration) -> Result<()> {
    ensure!(beside < PROMPT.max(before * 20), "{beside:?} beside the attack, {before:?} before it");
    Ok(())
}

/// A server with TLS on both ports.
async fn tls_pair() -> Result<Pair> {
    Setup::new(Mode::HttpConnect, Front::Tls).start().await
}

fn front(pair: &Pair) -> Result<std::net::SocketAddr> {
    match pair.frontend().place {
        Place::Tls(address) => Ok(address),
        Place::Unix(_) => anyhow::bail!("no port"),
    }
}

/// The median time of 15 successive runs. All runs must succeed.
async fn median<F: Future<Output = Result<()>>>(what: &str, mut once: impl FnMut() -> F) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..15 {
        let began = Instant::now();
        within(what, once()).await?.context(what.to_owned())?;
        times.push(began.elapsed());
    }
    percentile(&mut times, 50).context("no times")
}

/// The median times of dials by the frontend, each with a handshake, and of handshakes on the agent port.
async fn innocent(pair: &Pair, target: &str) -> Result<[Duration; 2]> {
    let dials = median("a dial", || works(pair.frontend(), target)).await?;
    let config = pair.pki.agent_client()?;
    let shake = || async { tls_socket(pair.server().agent_address(), Arc::clone(&config)).await.map(drop) };
    Ok([dials, median("a handshake of the agent port", shake).await?])
}

/// Waits until the gauges of both ports are zero again.
async fn settled(pair: &Pair) -> Result<()> {
    for port in ["agent", "frontend"] {
        pair.server().wait_metric("unauthenticated_connections", &[("port", port)], 0.0).await?;
    }
    Ok(())
}

async fn attacked(test: &str, burst: usize, sends: impl Fn(&Pair) -> Result<Vec<u8>>) -> Result<()> {
    let (mut pair, endpoint) = (tls_pair().await?, Endpoint::echo().await?);
    let before = innocent(&pair, &endpoint.target()).await?;
    let flood = |address| {
        Flood::start(Plan { address, burst, rate: 60, most: usize::MAX, sends: sends(&pair)?, keeps: 4_000 })
    };
    let floods = [flood(front(&pair)?)?, flood(pair.server().agent_address())?];
    for flood in &floods {
        flood.wait_made(burst).await?;
    }
    let beside = innocent(&pair, &endpoint.target()).await?;
    say(test, format!("dial, handshake: before {before:?}, beside {beside:?}"));
    for (before, beside) in before.iter().zip(beside) {
        ensure_prompt(*before, beside)?;
    }
    drop(floods);
    settled(&pair).await?;
    works(pair.frontend(), &endpoint.target()).await?;
    pair.server_mut().process.check_alive()
}

#[tokio::test]
async fn silent_connections_do_not_delay_handshakes() -> Result<()> {
    attacked("silent connections", 3_000, |_| Ok(Vec::new())).await
}

#[tokio::test]
async fn half_open_handshakes_do_not_fail_dials() -> Result<()> {
    attacked("half-open handshakes", 300, |pair| client_hello(pair.pki.agent_client()?)).await
}

/// A server with 256 descriptors has 32 slots for unauthenticated connections at the agent port, and as many at its frontends.
async fn small_server(setup: Setup) -> Result<(Pair, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let server = Program::Server.with_descriptors(folder.path(), 256)?;
    let setup = setup.programs(server, Program::Agent.path()?);
    Ok((setup.server_arg("--cluster-ca-cert=").start().await?, folder))
}

#[tokio::test]
async fn a_flood_at_one_frontend_takes_no_slot_of_another() -> Result<()> {
    let setup = Setup::new(Mode::HttpConnect, Front::Tls).and(Mode::Grpc, Front::Tls);
    let (pair, _folder) = small_server(setup).await?;
    let (flooded, other) = (front(&pair)?, &pair.server().further[0]);
    let Place::Tls(address) = other.place else { anyhow::bail!("no port") };
    let mut silent = TcpStream::connect(address).await?;
    let plan =
        Plan { address: flooded, burst: 100, rate: 1, most: usize::MAX, sends: Vec::new(), keeps: 1_000 };
    let flood = Flood::start(plan)?;
    flood.wait_made(100).await?;
    let (gauge, evicted) = (
        format!("{SERVER}unauthenticated_connections"),
        format!("{SERVER}unauthenticated_connections_closed_total"),
    );
    let labels = [("port", "frontend"), ("reason", "evicted")];
    // 16 of the flood and the silent one: half of the limit for each port.
    let full = |scrape: &e2e::metrics::Scrape| {
        scrape.value(&gauge, &[("port", "frontend")]) == 17.0 && scrape.value(&evicted, &labels) >= 84.0
    };
    pair.server().wait_metrics("a full frontend", full).await?;
    ensure!(silent.try_read(&mut [0]).is_err(), "the connection at the other frontend was evicted");
    silent.shutdown().await?;
    works(other, &Endpoint::echo().await?.target()).await?;
    drop(flood);
    settled(&pair).await
}

#[tokio::test]
async fn full_port_admits_new_peers() -> Result<()> {
    let (pair, _folder) = small_server(Setup::new(Mode::HttpConnect, Front::Tls)).await?;
    let endpoint = Endpoint::echo().await?;
    let plan =
        |address| Plan { address, burst: 100, rate: 1, most: usize::MAX, sends: Vec::new(), keeps: 1_000 };
    let floods = [Flood::start(plan(front(&pair)?))?, Flood::start(plan(pair.server().agent_address()))?];
    for (flood, port) in floods.iter().zip(["frontend", "agent"]) {
        flood.wait_made(100).await?;
        let (gauge, closed) =
            (format!("{SERVER}unauthenticated_connections"), "unauthenticated_connections_closed_total");
        let closed = format!("{SERVER}{closed}");
        let labels = [("port", port), ("reason", "evicted")];
        let full = |scrape: &e2e::metrics::Scrape| {
            scrape.value(&gauge, &[("port", port)]) == 32.0 && scrape.value(&closed, &labels) >= 68.0
        };
        pair.server().wait_metrics("a full port", full).await?;
    }
    // A connection with refused streams is not an agent's either.
    let mut refused = JoinSet::new();
    for _ in 0..40 {
        let config = pair.pki.agent_client()?;
        let connection = Refused::connect(pair.server().agent_address(), config).await?;
        refused.spawn(connection.until_closed(Duration::from_secs(1)));
    }
    works(pair.frontend(), &endpoint.target()).await?;
    let agent =
        AdversarialAgent::connect(pair.server().agent_port(), &pair.pki, &AgentMeta::new("new", "")).await?;
    pair.server().wait_metric("grpc_connections", &[("service_method", "Connect")], 2.0).await?;
    let lines = pair.server().process.log();
    let lines =
        lines.iter().filter(|line| line.contains("closing unauthenticated") && line.contains("evicted"));
    // One for each port, and another one after a minute.
    ensure!((2..=4).contains(&lines.count()), "{:?}", pair.server().process.log());
    drop((agent, floods, refused));
    settled(&pair).await
}

#[tokio::test]
async fn refused_streams_do_not_keep_a_connection() -> Result<()> {
    let pair = Setup::grpc().server_arg("--cluster-ca-cert=").start().await?;
    let mut connections = JoinSet::new();
    for _ in 0..20 {
        let config = pair.pki.agent_client()?;
        let connection = Refused::connect(pair.server().agent_address(), config).await?;
        connections.spawn(connection.until_closed(Duration::from_secs(2)));
    }
    let mut lived = Vec::new();
    while let Some(time) = within("the end of a connection", connections.join_next()).await? {
        lived.push(time?);
    }
    let longest = lived.iter().max().copied().unwrap_or_default();
    ensure!(lived.iter().all(|time| *time > Duration::from_secs(14)), "{lived:?}");
    say("refused streams", format!("the longest connection lived {longest:?}"));
    let labels = [("port", "agent"), ("reason", "not_admitted")];
    pair.server().wait_metric("unauthenticated_connections_closed_total", &labels, 20.0).await?;
    pair.server().wait_metric("unauthenticated_connections", &[("port", "agent")], 0.0).await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

/// Idle connections after their handshake and HTTP/2's preface.
#[tokio::test]
async fn idle_connections_take_little_memory() -> Result<()> {
    const COUNT: usize = 500;
    // 30 KiB as measured, and a third more for the allocator's reserve.
    const EACH: u64 = 40 << 10;
    let pair = Setup::grpc().server_arg("--cluster-ca-cert=").start_with_lanes().await?;
    let rest = pair.server().process.usage()?.descriptors;
    // One-time allocations are made before the measurement.
    drop(idle(&pair, 50).await?);
    wait_descriptors(&pair, |open| open <= rest).await?;
    let before = pair.server().process.usage()?.rss_kib << 10;
    let idle = idle(&pair, COUNT).await?;
    let now = pair.server().process.usage()?.rss_kib << 10;
    let each = now.saturating_sub(before) / COUNT as u64;
    say("idle connections", format!("{each} bytes each"));
    ensure!(each <= EACH, "{each} bytes for each idle connection");
    drop(idle);
    wait_descriptors(&pair, |open| open <= rest).await?;
    settled(&pair).await
}

/// Idle connections that the server has answered: HTTP/2 has started.
async fn idle(pair: &Pair, count: usize) -> Result<Vec<Refused>> {
    let config = pair.pki.agent_client()?;
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut connection = Refused::connect(pair.server().agent_address(), Arc::clone(&config)).await?;
        connection.answered().await?;
        connections.push(connection);
    }
    Ok(connections)
}

async fn wait_descriptors(pair: &Pair, enough: impl Fn(usize) -> bool) -> Result<()> {
    let process = &pair.server().process;
    until("the server's descriptors", DEADLINE, || {
        let open = process.usage().map_or(usize::MAX, |usage| usage.descriptors);
        let enough = enough(open).then_some(());
        async move { enough }
    })
    .await
}

/// Connects whose token or metadata are refused, in sequence on one connection.
async fn refusals(pair: &Pair, count: usize, metadata: &MetadataMap) -> Result<()> {
    let socket = tls_socket(pair.server().agent_address(), pair.pki.agent_client()?).await?;
    let channel = channel(Box::new(socket)).await?;
    for _ in 0..count {
        let mut stream = PacketStream::connect(channel.clone(), metadata.clone());
        let refused = within("a refusal", stream.headers()).await?;
        ensure!(refused.is_err(), "the agent was let in");
    }
    Ok(())
}

fn lines(pair: &Pair, text: &str) -> usize {
    pair.server().process.log().iter().filter(|line| line.contains(text)).count()
}

#[tokio::test]
async fn refusals_are_logged_once_a_minute() -> Result<()> {
    let began = Instant::now();
    let world = World::new().await?;
    let token = world.setup("unknown")?.agents(0).start().await?;
    refusals(&token, 300, &MetadataMap::new()).await?;
    let open = Setup::grpc().agents(0).server_arg("--cluster-ca-cert=").start().await?;
    refusals(&open, 300, &MetadataMap::new()).await?;
    // The log is some milliseconds behind; the line about the other cause is the last one.
    let last = |pair: &Pair| pair.server().process.log().len();
    for (pair, text) in [(&token, "Client authentication failed"), (&open, "Invalid backend")] {
        pair.server().process.wait_said(text).await?;
        let mut seen = last(pair);
        until("a log that is at rest", DEADLINE, || {
            let now = last(pair);
            let rests = now == std::mem::replace(&mut seen, now);
            async move { rests.then_some(()) }
        })
        .await?;
        let minutes = began.elapsed().as_secs() / 60;
        let said = lines(pair, text);
        ensure!(said as u64 <= 1 + minutes, "{said} lines of {text:?}");
    }
    Ok(())
}

/// Repeats a 64-byte ping; returns the median and the 99th percentile of its times.
async fn pings(conn: &mut Conn, count: usize) -> Result<[Duration; 2]> {
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        conn.write_all(&[7; 64]).await?;
        within("a ping", conn.read_exact(&mut [0; 64])).await??;
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let median = percentile(&mut times, 50).context("no pings")?;
    Ok([median, percentile(&mut times, 99).context("no pings")?])
}

/// Handshake cryptography runs apart from the data path, at a lower priority.
#[tokio::test]
async fn client_hellos_do_not_delay_established_connections() -> Result<()> {
    let (pair, endpoint) = (tls_pair().await?, Endpoint::echo().await?);
    let mut conn = echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(1, 100)).await?;
    pings(&mut conn, 100).await?;
    let before = pings(&mut conn, 300).await?;
    let sends = client_hello(pair.pki.agent_client()?)?;
    let plan = Plan {
        address: pair.server().agent_address(),
        burst: 0,
        rate: 1_000,
        most: 2_000,
        sends,
        keeps: 500,
    };
    let cpu = || -> Result<[Duration; 2]> {
        let process = &pair.server().process;
        let handshakes = thread_time(process.pid(), "handshakes")?;
        Ok([process.usage()?.cpu.saturating_sub(handshakes), handshakes])
    };
    let used = cpu()?;
    let flood = Flood::start(plan)?;
    flood.wait_made(200).await?;
    let (began, made) = (Instant::now(), flood.made());
    let beside = pings(&mut conn, 300).await?;
    let rate = (flood.made() - made) as f64 / began.elapsed().as_secs_f64();
    flood.wait_made(2_000).await?;
    drop(flood);
    settled(&pair).await?;
    let [others, handshakes] = cpu()?;
    let (others, handshakes) = (others.saturating_sub(used[0]), handshakes.saturating_sub(used[1]));
    let pings = format!("median, p99: before {before:?}, beside {rate:.0} ClientHellos a second {beside:?}");
    say("ClientHellos", format!("{pings}; processor time: handshakes {handshakes:?}, others {others:?}"));
    ensure!(others < handshakes, "{others:?} beside the handshakes' threads, {handshakes:?} on them");
    ensure!(beside[0] < before[0] * 4 + Duration::from_millis(10), "{beside:?}, {before:?} before");
    Ok(())
}
