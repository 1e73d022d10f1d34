//! All connections of a client over one HTTP/2 connection, as kube-apiserver's reusable tunnel opens them.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::adversarial::{PacketStream, dial_req};
use e2e::endpoints::{Endpoint, FullQueue};
use e2e::exchange::{echo, echo_within, expect_end, pool};
use e2e::figures::{percentile, say};
use e2e::frontend::{Conn, Mode, SharedConnection};
use e2e::metrics::{SERVER, Scrape, wait_for};
use e2e::pair::{Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::process::{Signal, raise_descriptor_limit};
use e2e::stalls::{UNDELAYED, no_connection_was_reset};
use e2e::wait::{DEADLINE, until, within, within_limit};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::misbehaving_frontends::dial_requests;

/// The flow-control window with which grpc-go begins, in bytes.
const WINDOW: u32 = 64 << 10;
/// The streams of one connection.
const STREAMS: usize = 10_000;
/// The time limit of one exchange, which may wait for thousands of others on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Dials that are pending at a time.
const AT_ONCE: usize = 200;

async fn dialed(shared: &SharedConnection, target: &str, count: usize) -> Result<Vec<Conn>> {
    let dials = (0..count).map(|_| {
        let (shared, target) = (shared.clone(), target.to_owned());
        async move { shared.dial(&target).await }
    });
    pool(AT_ONCE, dials).await
}

/// Echoes on all connections, at most [`AT_ONCE`] at a time; each has its own payload.
async fn echo_all(conns: Vec<Conn>, length: u64) -> Result<Vec<Conn>> {
    let payloads = (0..).map(|seed| Payload::new(seed, length));
    let echoes = conns.into_iter().zip(payloads).map(|(conn, payload)| echo_within(conn, payload, PATIENCE));
    pool(AT_ONCE, echoes).await
}

/// The agent and this process hold a descriptor for each, so there are fewer than 10,000 if the limit is low.
#[tokio::test]
async fn ten_thousand_streams_of_one_connection_exchange_bytes() -> Result<()> {
    let count = STREAMS.min(raise_descriptor_limit() / 2);
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let shared = SharedConnection::open(pair.frontend(), WINDOW).await?;
    let before = pair.server().process.usage()?;
    let began = Instant::now();
    let conns = dialed(&shared, &endpoint.target(), count).await?;
    let dials = began.elapsed();
    let conns = echo_all(conns, 5_000).await?;
    let echoes = began.elapsed() - dials;
    pair.server().wait_metric("established_connections", &[], count as f64).await?;
    ensure!(endpoint.accepted() == count, "the endpoint accepted {}", endpoint.accepted());
    let grown = pair.server().process.usage()?.rss_mib() - before.rss_mib();
    let figures = format!("{dials:.1?} to dial, {echoes:.1?} to echo 5 kB each, server +{grown} MiB");
    say(&format!("{count} streams of one connection"), figures);
    drop(conns);
    let ended = |scrape: &Scrape| scrape.value(&format!("{SERVER}established_connections"), &[]) == 0.0;
    wait_for("the end of all connections", pair.server().health, PATIENCE, ended).await?;
    echo(shared.dial(&endpoint.target()).await?, Payload::new(1, 100)).await?;
    Ok(())
}

/// The 99th percentile and the maximum of 4,000 small echoes on 20 connections.
async fn latencies(conns: &mut Vec<Conn>) -> Result<(Duration, Duration)> {
    let mut echoing = JoinSet::new();
    for mut conn in conns.drain(..) {
        echoing.spawn(async move {
            let mut times = Vec::new();
            for seed in 0..200 {
                let began = Instant::now();
                conn = echo_within(conn, Payload::new(seed, 1_000), PATIENCE).await?;
                times.push(began.elapsed());
            }
            anyhow::Ok((conn, times))
        });
    }
    let mut times = Vec::new();
    while let Some(echoed) = echoing.join_next().await {
        let (conn, some) = echoed??;
        conns.push(conn);
        times.extend(some);
    }
    Ok((percentile(&mut times, 99).unwrap_or_default(), times.last().copied().unwrap_or_default()))
}

/// A thousand clients that do not read, and a thousand endpoints that do not: neither direction of the connection stalls.
#[tokio::test]
async fn thousand_stalled_streams_do_not_delay_the_others_of_their_connection() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let shared = SharedConnection::open(pair.frontend(), WINDOW).await?;
    let (source, sink) = (Endpoint::asked(Payload::new(7, 64 << 20)).await?, Endpoint::stalled().await?);
    let endpoint = Endpoint::echo().await?;
    let mut conns = dialed(&shared, &endpoint.target(), 20).await?;
    let alone = latencies(&mut conns).await?;
    let mut readers = dialed(&shared, &source.target(), 1_000).await?;
    for reader in &mut readers {
        reader.write_all(b"!").await?;
    }
    let mut writers = JoinSet::new();
    for mut writer in dialed(&shared, &sink.target(), 1_000).await? {
        writers.spawn(async move {
            let block = vec![0; 64 << 10];
            while writer.write_all(&block).await.is_ok() {}
        });
    }
    all_stall(&pair).await?;
    let beside = latencies(&mut conns).await?;
    let bulk = Instant::now();
    let conn = conns.pop().expect("20 connections");
    echo(conn, Payload::new(1, 16 << 20)).await?;
    let bulk = bulk.elapsed();
    let figures = format!("p99, maximum alone {alone:.1?}, beside {beside:.1?}; 16 MiB in {bulk:.1?}");
    say("1,000 stalled streams each way on one connection", figures);
    ensure!(beside.1 < UNDELAYED && bulk < UNDELAYED, "the others are delayed");
    no_connection_was_reset(&pair).await?;
    drop((readers, writers));
    Ok(())
}

/// Waits until both programs have used nearly no CPU time for a second: all windows are full.
async fn all_stall(pair: &Pair) -> Result<()> {
    let busy = Cell::new((Duration::ZERO, Instant::now()));
    until("stalled streams", PATIENCE, || async {
        let cpu = pair.server().process.usage().ok()?.cpu + pair.agent().process.usage().ok()?.cpu;
        if cpu > busy.get().0 + Duration::from_millis(20) {
            busy.set((cpu, Instant::now()));
        }
        (busy.get().1.elapsed() > Duration::from_secs(1)).then_some(())
    })
    .await
}

/// Go's server has no limit. (A client above the limit of all streams: the server's listen_tests.)
#[tokio::test]
async fn dial_beside_ten_thousand_idle_streams_does_not_wait() -> Result<()> {
    raise_descriptor_limit();
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let shared = SharedConnection::open(pair.frontend(), WINDOW).await?;
    let mut idle: Vec<_> = (0..STREAMS).map(|_| shared.packets()).collect();
    for stream in &mut idle {
        within("a stream", stream.headers()).await??;
    }
    let conn = within_limit("a dial beside them", UNDELAYED, shared.dial(&endpoint.target())).await??;
    echo(conn, Payload::new(2, 100_000)).await?;
    Ok(())
}

/// kube-apiserver cancels dials of requests that have timed out, and all at once when it gives up on a node.
#[tokio::test]
async fn ten_thousand_canceled_dials_leave_the_others_of_their_connection_alone() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let (silent, endpoint) = (FullQueue::new()?, Endpoint::echo().await?);
    let shared = SharedConnection::open(pair.frontend(), WINDOW).await?;
    let mut bystanders = dialed(&shared, &endpoint.target(), 20).await?;
    let alone = latencies(&mut bystanders).await?;
    let server = pair.server().health;
    let storm = async {
        for round in 0..10 {
            let mut streams: Vec<PacketStream> = Vec::new();
            for random in 1..=1_000 {
                let mut stream = shared.packets();
                stream.send(dial_req(random, &silent.target())).await?;
                streams.push(stream);
            }
            // Every second time before all of them are pending.
            if round % 2 == 0 {
                wait_for("the dials", server, PATIENCE, |scrape| pending(scrape) >= 1_000.0).await?;
            } else {
                for stream in &mut streams {
                    within("the response headers", stream.headers()).await??;
                }
            }
            drop(streams);
            wait_for("no dial", server, PATIENCE, |scrape| pending(scrape) == 0.0).await?;
        }
        anyhow::Ok(())
    };
    let (stormed, beside) = tokio::join!(storm, latencies(&mut bystanders));
    stormed?;
    let dials = dial_requests(&pair).await?;
    ensure!(dials > 6_000.0, "the server has read {dials} dials of 10,000");
    let beside = beside?;
    say("10,000 canceled dials", format!("p99, maximum alone {alone:.1?}, beside {beside:.1?}"));
    ensure!(beside.1 < UNDELAYED, "the others are delayed");
    echo_all(bystanders, 100_000).await?;
    echo(shared.dial(&endpoint.target()).await?, Payload::new(1, 1_000)).await?;
    Ok(())
}

fn pending(scrape: &Scrape) -> f64 {
    scrape.value(&format!("{SERVER}pending_backend_dials"), &[])
}

/// GOAWAY moves new dials to another connection, to this server as long as it drains, and streams go on.
#[tokio::test]
async fn draining_server_asks_for_a_new_connection_and_finishes_its_streams() -> Result<()> {
    for front in [Front::Unix, Front::Tls] {
        let setup = Setup::new(Mode::Grpc, front).server_arg("--graceful-shutdown-timeout=60s");
        let mut pair = setup.start().await?;
        let endpoint = Endpoint::echo().await?;
        let shared = SharedConnection::open(pair.frontend(), WINDOW).await?;
        let conns = dialed(&shared, &endpoint.target(), 100).await?;
        pair.server().process.signal(Signal::TERM)?;
        // The harness's client connects only once, so that dials fail once it has read GOAWAY.
        let target = endpoint.target();
        until("the end of new dials", DEADLINE, || async {
            match shared.dial(&target).await {
                Ok(conn) => echo(conn, Payload::new(3, 100)).await.err().map(Err),
                Err(error) => Some(Ok(error)),
            }
        })
        .await??;
        let successor = SharedConnection::open(pair.frontend(), WINDOW).await?;
        let new = dialed(&successor, &endpoint.target(), 100).await?;
        ensure!(pair.server_mut().process.ended().is_none(), "it has connections");
        for conns in [conns, new] {
            for mut conn in echo_all(conns, 10_000).await? {
                conn.shutdown().await?;
                expect_end(&mut conn).await?;
            }
        }
        let status = pair.server_mut().process.exit(Duration::from_secs(20)).await?;
        ensure!(status.success(), "{status}");
    }
    Ok(())
}
