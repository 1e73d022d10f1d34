//! Bytes arrive intact, both ways, in every way to reach a server.

use anyhow::Result;
use e2e::endpoints::Endpoint;
use e2e::frontend::{Conn, Frontend, Mode};
use e2e::pair::{FRONTS, Front, Setup};
use e2e::payload::Payload;
use e2e::wait::within;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

/// Sends a payload to an echo and reads it back at the same time.
async fn echoed(frontend: &Frontend, target: &str, payload: Payload) -> Result<()> {
    let conn = frontend.dial(target).await?;
    let (mut input, mut output) = tokio::io::split(conn);
    let (sent, received) =
        within("an echo", async { tokio::join!(payload.send(&mut output), payload.receive(&mut input)) })
            .await?;
    sent?;
    received?;
    output.shutdown().await?;
    drop((input, output));
    Ok(())
}

/// One byte, sizes around the buffers' edges, and 64 MiB.
async fn sizes(mode: Mode, front: Front) -> Result<()> {
    let pair = Setup::new(mode, front).start().await?;
    let echo = Endpoint::echo().await?;
    for size in
        [1, 2, 4_095, 4_096, 4_097, 16_383, 16_384, 16_385, 32_767, 32_769, 65_535, 65_537, 1 << 20, 64 << 20]
    {
        echoed(pair.frontend(), &echo.target(), Payload::new(size, size)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn every_size_by_grpc_over_unix() -> Result<()> {
    sizes(Mode::Grpc, Front::Unix).await
}

#[tokio::test]
async fn every_size_by_grpc_over_tls() -> Result<()> {
    sizes(Mode::Grpc, Front::Tls).await
}

#[tokio::test]
async fn every_size_by_http_connect_over_unix() -> Result<()> {
    sizes(Mode::HttpConnect, Front::Unix).await
}

#[tokio::test]
async fn every_size_by_http_connect_over_tls() -> Result<()> {
    sizes(Mode::HttpConnect, Front::Tls).await
}

/// Many connections at once, each with bytes of its own.
async fn many(mode: Mode, count: u64, size: u64) -> Result<()> {
    let pair = Setup::new(mode, Front::Unix).start().await?;
    let echo = Endpoint::echo().await?;
    let mut running = JoinSet::new();
    for seed in 0..count {
        let (frontend, target) = (pair.frontend().clone(), echo.target());
        running.spawn(async move { echoed(&frontend, &target, Payload::new(seed, size + seed)).await });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    assert_eq!(echo.accepted() as u64, count);
    Ok(())
}

#[tokio::test]
async fn five_hundred_at_once_by_grpc() -> Result<()> {
    many(Mode::Grpc, 500, 100_000).await
}

#[tokio::test]
async fn five_hundred_at_once_by_http_connect() -> Result<()> {
    many(Mode::HttpConnect, 500, 100_000).await
}

#[tokio::test]
async fn sixteen_large_ones_at_once_by_grpc() -> Result<()> {
    many(Mode::Grpc, 16, 8 << 20).await
}

#[tokio::test]
async fn sixteen_large_ones_at_once_by_http_connect() -> Result<()> {
    many(Mode::HttpConnect, 16, 8 << 20).await
}

/// Many dials over one HTTP/2 connection, one stream each, as the newest client does.
#[tokio::test]
async fn a_hundred_streams_share_one_connection() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let echo = Endpoint::echo().await?;
    let channel = pair.frontend().channel().await?;
    let mut running = JoinSet::new();
    for seed in 0..100 {
        let (channel, target) = (channel.clone(), echo.target());
        running.spawn(async move {
            let packets = e2e::wild::PacketStream::proxy(channel);
            let conn = Conn::Grpc(Box::new(e2e::frontend::Tunnel::dial(packets, &target).await?));
            let payload = Payload::new(seed, 50_000);
            let (mut input, mut output) = tokio::io::split(conn);
            let (sent, received) = tokio::join!(payload.send(&mut output), payload.receive(&mut input));
            sent?;
            received
        });
    }
    while let Some(ended) = within("a hundred echoes", running.join_next()).await? {
        ended??;
    }
    Ok(())
}

/// All four ways work side by side with one agent each: nothing is shared by accident.
#[tokio::test]
async fn every_front_answers() -> Result<()> {
    let echo = Endpoint::echo().await?;
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        echoed(pair.frontend(), &echo.target(), Payload::new(3, 10)).await?;
    }
    Ok(())
}
