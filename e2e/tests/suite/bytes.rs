//! Bytes arrive intact in both directions, with every kind of frontend.

use std::sync::Arc;

use anyhow::Result;
use e2e::adversarial::PacketStream;
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, echoed};
use e2e::frontend::{Conn, Mode, Tunnel};
use e2e::pair::{Front, Setup};
use e2e::payload::Payload;
use e2e::wait::within;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Sizes around the limits of buffers.
const SIZES: [u64; 13] =
    [1, 2, 4_095, 4_096, 4_097, 16_383, 16_384, 16_385, 32_767, 32_769, 65_535, 65_537, 1 << 20];

async fn sizes(mode: Mode, front: Front) -> Result<()> {
    let pair = Setup::new(mode, front).start().await?;
    let endpoint = Endpoint::echo().await?;
    for size in SIZES.into_iter().chain([64 << 20]) {
        echoed(pair.frontend(), &endpoint.target(), Payload::new(size, size)).await?;
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

/// Many concurrent connections, each with different bytes.
async fn many(mode: Mode, count: u64, size: u64) -> Result<()> {
    let pair = Setup::new(mode, Front::Unix).start().await?;
    let endpoint = Endpoint::echo().await?;
    let mut running = JoinSet::new();
    for seed in 0..count {
        let (frontend, target) = (pair.frontend().clone(), endpoint.target());
        running.spawn(async move { echoed(&frontend, &target, Payload::new(seed, size + seed)).await });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    // A busy lane may leave pings unanswered, and its dials are then tried on another one.
    assert!(endpoint.accepted() as u64 >= count);
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

/// Many dials over one HTTP/2 connection, one stream each, like the newest Go client.
#[tokio::test]
async fn a_hundred_streams_share_one_connection() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let channel = pair.frontend().channel().await?;
    // The streams must overlap: no stream sends before all are connected.
    let connected = Arc::new(Barrier::new(100));
    let mut running = JoinSet::new();
    for seed in 0..100 {
        let (channel, target, connected) = (channel.clone(), endpoint.target(), connected.clone());
        running.spawn(async move {
            let tunnel = Tunnel::dial(PacketStream::proxy(channel), &target).await?;
            within("a hundred streams at once", connected.wait()).await?;
            echo(Conn::Grpc(Box::new(tunnel)), Payload::new(seed, 50_000)).await
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// One connection with thousands of one-byte writes: order and number are preserved.
async fn tiny_pieces(mode: Mode) -> Result<()> {
    use tokio::io::AsyncWriteExt;
    let pair = Setup::new(mode, Front::Unix).start().await?;
    let endpoint = Endpoint::sink().await?;
    let mut conn = pair.frontend().dial(&endpoint.target()).await?;
    let payload = Payload::new(9, 3_000);
    for piece in payload.pieces() {
        for byte in piece {
            conn.write_all(&[byte]).await?;
        }
    }
    conn.shutdown().await?;
    let received = endpoint.wait_received(1).await?;
    payload.check(&received[0].digest)
}

#[tokio::test]
async fn three_thousand_single_bytes_by_grpc() -> Result<()> {
    tiny_pieces(Mode::Grpc).await
}

#[tokio::test]
async fn three_thousand_single_bytes_by_http_connect() -> Result<()> {
    tiny_pieces(Mode::HttpConnect).await
}
