//! Sends, then closes at once: every upload arrives complete. A Go agent cuts a fifth of them short.

use anyhow::{Context, Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::upload;
use e2e::frontend::{Frontend, Mode};
use e2e::pair::{Front, Setup};
use e2e::payload::Payload;
use tokio::task::JoinSet;

/// Concurrent uploads; the digests that arrive are exactly those that were sent.
async fn whole(mode: Mode, front: Front, count: u64, size: u64) -> Result<()> {
    let pair = Setup::new(mode, front).start().await?;
    let endpoint = Endpoint::sink().await?;
    let mut running = JoinSet::new();
    for seed in 0..count {
        let (frontend, target): (Frontend, String) = (pair.frontend().clone(), endpoint.target());
        // Each with a different length, so that it can be identified.
        running.spawn(async move { upload(&frontend, &target, Payload::new(seed, size + seed)).await });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    let received = endpoint.wait_received(count as usize).await?;
    let mut cut = 0;
    for seed in 0..count {
        let wanted = Payload::new(seed, size + seed).digest();
        cut += usize::from(!received.iter().any(|one| one.digest == wanted));
    }
    ensure!(cut == 0, "{cut} of {count} uploads did not arrive whole");
    ensure!(received.iter().all(|one| one.clean), "some uploads ended by a reset");
    Ok(())
}

#[tokio::test]
async fn uploads_that_are_closed_at_once_arrive_whole() -> Result<()> {
    for (mode, front, count, size) in [
        (Mode::Grpc, Front::Unix, 100, 1 << 20),
        (Mode::Grpc, Front::Tls, 50, 1 << 20),
        (Mode::HttpConnect, Front::Unix, 100, 1 << 20),
        (Mode::HttpConnect, Front::Tls, 50, 1 << 20),
        (Mode::Grpc, Front::Unix, 300, 1),
        (Mode::HttpConnect, Front::Unix, 300, 1),
    ] {
        let uploads = whole(mode, front, count, size).await;
        uploads.with_context(|| format!("{mode:?}, {front:?}, from {size} bytes"))?;
    }
    Ok(())
}
