//! Opens and drops many connections: every gauge returns to zero, and descriptors and memory are released.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::adversarial::PacketStream;
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, works};
use e2e::frontend::{Conn, Mode, Tunnel};
use e2e::metrics::{SERVER, Scrape};
use e2e::pair::{Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::process::Process;
use e2e::wait::{until, within};
use parking_lot::Mutex;

const COUNT: usize = 2_000;
/// Time limit for the release of all resources: twice the aim of 5 s for descriptors, tasks and gauges, because machines are
/// busy.
const LIMIT: Duration = Duration::from_secs(10);

/// Waits until every gauge is zero and both processes have as many descriptors and tasks as before.
async fn back_to_rest(pair: &Pair, before: &Held) -> Result<()> {
    let last = Mutex::new((Vec::new(), *before));
    let wanted = until("gauges, descriptors and tasks at rest", LIMIT, || async {
        let live =
            [pair.server().metrics().await.ok()?.busy(), pair.agent().metrics().await.ok()?.busy()].concat();
        let now = held(pair).await.ok()?;
        // One of our own scrapes may be open.
        let rest = live.is_empty() && now.iter().zip(before).all(|(now, before)| *now <= before + 3.0);
        *last.lock() = (live, now);
        rest.then_some(())
    });
    let rested = wanted.await;
    rested.with_context(|| {
        let (live, now) = &*last.lock();
        format!("busy still: {live:?}, descriptors and tasks {now:?} from {before:?}")
    })
}

/// Descriptors of server and agent, tasks of server and agent (which the Go programs do not report).
type Held = [f64; 4];

async fn held(pair: &Pair) -> Result<Held> {
    let descriptors = |process: &Process| anyhow::Ok(process.usage()?.descriptors as f64);
    Ok([
        descriptors(&pair.server().process)?,
        descriptors(&pair.agent().process)?,
        pair.server().metric("tasks", &[]).await?,
        pair.agent().metric("tasks", &[]).await?,
    ])
}

fn rss(process: &Process) -> Result<u64> {
    Ok(process.usage()?.rss_kib)
}

/// Opens all connections, echoes on each, checks the gauges, and drops all.
async fn round(pair: &Pair, endpoint: &Endpoint, count: usize, shared: bool) -> Result<()> {
    let channel = if shared { Some(pair.frontend().channel().await?) } else { None };
    let mut conns = Vec::new();
    for seed in 0..count {
        let conn = match &channel {
            Some(channel) => {
                let stream = PacketStream::proxy(channel.clone());
                Conn::Grpc(Box::new(Tunnel::dial(stream, &endpoint.target()).await?))
            }
            None => pair.frontend().dial(&endpoint.target()).await?,
        };
        conns.push(echo(conn, Payload::new(seed as u64, 100)).await?);
    }
    pair.server().wait_metric("established_connections", &[], count as f64).await?;
    pair.agent().wait_metric("open_endpoint_connections", &[], count as f64).await?;
    assert_eq!(endpoint.open(), count);
    drop(conns);
    Ok(())
}

async fn two_thousand(mode: Mode, shared: bool) -> Result<()> {
    let pair = Setup::new(mode, Front::Unix).start_with_lanes().await?;
    let endpoint = Endpoint::echo().await?;
    works(pair.frontend(), &endpoint.target()).await?;
    let before = held(&pair).await?;
    // Memory that grows in every round leaks. 4 KiB for each connection would be 8 MiB. An allocator may grow in some rounds
    // without a leak, but not in each.
    let mut grown = Vec::new();
    let mut settled = false;
    while !settled && grown.len() < 5 {
        round(&pair, &endpoint, COUNT, shared).await?;
        back_to_rest(&pair, &before).await?;
        let now = (rss(&pair.server().process)?, rss(&pair.agent().process)?);
        settled =
            grown.last().is_some_and(|last: &(u64, u64)| now.0 < last.0 + 8_192 && now.1 < last.1 + 8_192);
        grown.push(now);
    }
    ensure!(settled, "the memory of server and agent grew in every round, in KiB: {grown:?}");
    endpoint.wait_open(0).await?;
    works(pair.frontend(), &endpoint.target()).await
}

#[tokio::test]
async fn two_thousand_connections_by_grpc_leave_nothing() -> Result<()> {
    two_thousand(Mode::Grpc, false).await
}

#[tokio::test]
async fn two_thousand_streams_of_one_connection_leave_nothing() -> Result<()> {
    two_thousand(Mode::Grpc, true).await
}

#[tokio::test]
async fn two_thousand_connections_by_http_connect_leave_nothing() -> Result<()> {
    two_thousand(Mode::HttpConnect, false).await
}

const FULL: &str = "full_frontend_write_queues";
const BLOCKED: &str = "blocked_frontend_write_channels";

/// Waits until both gauges of full HTTP CONNECT clients have these values.
async fn full_clients(pair: &Pair, full: f64, blocked: f64) -> Result<()> {
    let what = format!("{FULL} {full} and {BLOCKED} {blocked}");
    let has =
        |scrape: &Scrape, name: &str, value: f64| scrape.sum(&format!("{SERVER}{name}"), &[]) == Some(value);
    pair.server()
        .wait_metrics(&what, |scrape| has(scrape, FULL, full) && has(scrape, BLOCKED, blocked))
        .await
        .map(drop)
}

/// Between native peers a stalled client uses up its window, and stops no link.
#[tokio::test]
async fn stalled_http_connect_clients_are_counted_until_they_read() -> Result<()> {
    let pair = Setup::http_connect().start_with_lanes().await?;
    let payload = Payload::new(7, 16 << 20);
    let source = Endpoint::source(payload).await?;
    let mut stalled =
        [pair.frontend().dial(&source.target()).await?, pair.frontend().dial(&source.target()).await?];
    pair.server().wait_metric(FULL, &[], 2.0).await?;
    let scrape = pair.server().metrics().await?;
    ensure!(scrape.sum(&format!("{SERVER}{BLOCKED}"), &[]).is_none(), "a window stopped the link");
    within("the first client's bytes", payload.receive_all(&mut stalled[0])).await??;
    pair.server().wait_metric(FULL, &[], 1.0).await?;
    drop(stalled);
    pair.server().wait_metric(FULL, &[], 0.0).await?;
    Ok(())
}

/// Next to an upstream peer a stalled client stops the link, until it is reset.
#[tokio::test]
async fn a_link_that_an_http_connect_client_blocks_is_counted() -> Result<()> {
    let pair = Setup::http_connect().server_arg("--connection-flow-control=false").start_with_lanes().await?;
    let source = Endpoint::source(Payload::new(7, 64 << 20)).await?;
    let stalled = pair.frontend().dial(&source.target()).await?;
    full_clients(&pair, 1.0, 1.0).await?;
    full_clients(&pair, 0.0, 0.0).await?;
    drop(stalled);
    Ok(())
}

/// As in Go, clients by gRPC do not count.
#[tokio::test]
async fn stalled_grpc_clients_are_not_counted_as_http_connect_clients() -> Result<()> {
    let pair = Setup::grpc().server_arg("--connection-flow-control=false").start_with_lanes().await?;
    let source = Endpoint::source(Payload::new(7, 64 << 20)).await?;
    let stalled = pair.frontend().dial(&source.target()).await?;
    let labels = [("service_method", "Connect")];
    pair.server().wait_metric("full_receive_channels", &labels, 1.0).await?;
    let scrape = pair.server().metrics().await?;
    for name in [FULL, BLOCKED] {
        ensure!(scrape.sum(&format!("{SERVER}{name}"), &[]).is_none(), "{name}");
    }
    drop(stalled);
    Ok(())
}
