//! A connection that stalls holds back itself alone, whichever side stalls.

use std::time::Duration;

use anyhow::Result;
use e2e::endpoints::Endpoint;
use e2e::exchange::echoed;
use e2e::frontend::{Conn, Mode};
use e2e::pair::{FRONTS, Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::wait::within;
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const OFF: &str = "--connection-flow-control=false";

/// Clients that ask for much and read nothing.
async fn stalled_readers(pair: &Pair, count: usize) -> Result<(Endpoint, Vec<Conn>)> {
    let endpoint = Endpoint::source(Payload::new(7, 64 << 20)).await?;
    let mut conns = Vec::new();
    for _ in 0..count {
        conns.push(pair.frontend().dial(&endpoint.target()).await?);
    }
    Ok((endpoint, conns))
}

/// Clients that send much to an endpoint that reads nothing. They go on sending until dropped.
async fn stalled_endpoints(pair: &Pair, count: usize) -> Result<(Endpoint, JoinSet<()>)> {
    let endpoint = Endpoint::stalled().await?;
    let mut clients = JoinSet::new();
    for _ in 0..count {
        let mut conn = pair.frontend().dial(&endpoint.target()).await?;
        clients.spawn(async move {
            let block = vec![0; 64 << 10];
            while conn.write_all(&block).await.is_ok() {}
        });
    }
    Ok((endpoint, clients))
}

/// Others move bytes both ways, 20 connections after each other and 4 MiB at once.
async fn others_are_served(pair: &Pair) -> Result<()> {
    let endpoint = Endpoint::echo().await?;
    for seed in 0..20 {
        within("a short exchange", echoed(pair.frontend(), &endpoint.target(), Payload::new(seed, 1_000)))
            .await??;
    }
    within("a long exchange", echoed(pair.frontend(), &endpoint.target(), Payload::new(99, 4 << 20))).await?
}

async fn nobody_was_reset(pair: &Pair) -> Result<()> {
    let resets = pair.server().metric("connection_resets_total", &[]).await?;
    anyhow::ensure!(resets == 0.0, "{resets} connections were reset");
    Ok(())
}

#[tokio::test]
async fn readers_that_stop_hold_back_nobody() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let stalled = stalled_readers(&pair, 20).await?;
        others_are_served(&pair).await?;
        nobody_was_reset(&pair).await?;
        drop(stalled);
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn endpoints_that_stop_hold_back_nobody() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let (endpoint, clients) = stalled_endpoints(&pair, 20).await?;
        others_are_served(&pair).await?;
        nobody_was_reset(&pair).await?;
        // The endpoints' sockets close with what they have not read, which resets them.
        drop((clients, endpoint));
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
    }
    Ok(())
}

/// A stalled reader gets every byte once it reads again, however long it slept.
#[tokio::test]
async fn who_reads_again_gets_everything() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let pair = Setup::new(mode, Front::Unix).start().await?;
        let payload = Payload::new(5, 16 << 20);
        let endpoint = Endpoint::source(payload).await?;
        let mut conn = pair.frontend().dial(&endpoint.target()).await?;
        others_are_served(&pair).await?;
        within("everything", payload.receive_all(&mut conn)).await??;
    }
    Ok(())
}

/// A thousand of each.
#[tokio::test]
async fn a_thousand_that_stall_hold_back_nobody() -> Result<()> {
    let pair = Setup::http_connect().start().await?;
    let readers = stalled_readers(&pair, 1_000).await?;
    let writers = stalled_endpoints(&pair, 1_000).await?;
    others_are_served(&pair).await?;
    nobody_was_reset(&pair).await?;
    let queued = pair.server().metric("queued_bytes", &[]).await?;
    anyhow::ensure!(queued < f64::from(1_000 * (256_u32 << 10)), "{queued} bytes wait at the server");
    drop((readers, writers));
    Ok(())
}

/// A link whose segments are larger than a socket's share of scarce TCP memory crawls for all of its connections.
#[tokio::test]
async fn the_agent_port_bounds_its_segments() -> Result<()> {
    let pair = Setup::new(Mode::Grpc, Front::Unix).start().await?;
    let stream = TcpStream::connect(pair.server().agent_address()).await?;
    let largest = SockRef::from(&stream).tcp_mss()?;
    anyhow::ensure!(largest <= 32_000, "segments of {largest} bytes");
    Ok(())
}

/// With a peer that knows no flow control for connections, who stalls is reset, and the others go on.
#[tokio::test]
async fn without_flow_control_who_stalls_is_reset_and_the_others_go_on() -> Result<()> {
    for (server, agent) in [(true, false), (false, true), (false, false)] {
        let mut setup = Setup::http_connect();
        if !server {
            setup = setup.server_arg(OFF);
        }
        if !agent {
            setup = setup.agent_arg(OFF);
        }
        let pair = setup.start().await?;
        let readers = stalled_readers(&pair, 4).await?;
        let reason = [("reason", "stalled")];
        others_are_served(&pair).await?;
        tokio::time::timeout(
            Duration::from_secs(60),
            pair.server().wait_metric("connection_resets_total", &reason, 4.0),
        )
        .await??;
        drop(readers);
    }
    Ok(())
}

/// At the ceiling the largest stalled connections go, and new dials are refused with a reason.
#[tokio::test]
async fn memory_stays_below_its_ceiling() -> Result<()> {
    let pair = Setup::http_connect().server_arg("--memory-limit=16Mi").start().await?;
    let limit = f64::from(16_u32 << 20);
    anyhow::ensure!(pair.server().metric("queued_bytes_limit", &[]).await? == limit, "the limit is shown");
    let endpoint = Endpoint::source(Payload::new(7, 64 << 20)).await?;
    let mut conns = Vec::new();
    let mut refused = 0;
    for _ in 0..300 {
        match pair.frontend().dial(&endpoint.target()).await {
            Ok(conn) => conns.push(conn),
            Err(error) => {
                anyhow::ensure!(error.text().contains("--memory-limit"), "refused with {}", error.text());
                refused += 1;
                break;
            }
        }
        let queued = pair.server().metric("queued_bytes", &[]).await?;
        anyhow::ensure!(queued <= limit * 1.25, "{queued} bytes wait");
    }
    anyhow::ensure!(refused > 0, "300 stalled connections and no dial was refused");
    drop(conns);
    pair.server().wait_metric("queued_bytes", &[], 0.0).await?;
    echoed(pair.frontend(), &Endpoint::echo().await?.target(), Payload::new(1, 1_000)).await
}
