//! Known problems in the field: uploads that are cut short at their close, and one stalled reader that blocks all others.

use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::bulk::transfer;
use super::cases::{LIMIT, Load, MIB};
use super::endpoint::{Command, CommandEndpoint, skip};
use super::report::{Report, Unit};
use super::rig::Rig;
use crate::endpoints::Endpoint;
use crate::payload::Payload;
use crate::wait::within_limit;

/// Sends, then closes at once: counts the uploads that arrive complete.
pub(super) async fn uploads(rig: &Rig, load: Load, report: &mut Report) -> Result<()> {
    let sink = Endpoint::sink().await?;
    let payload = Payload::new(5, MIB);
    let mut running = JoinSet::new();
    for _ in 0..load.uploads {
        let (dialer, target) = (rig.dialer(), sink.target());
        running.spawn(async move {
            let mut conn = dialer.dial(&target).await?;
            payload.send(&mut conn).await?;
            conn.shutdown().await?;
            // A connection that is cut short is a result of this case, not an error.
            let _ = conn.read_to_end(&mut Vec::new()).await;
            anyhow::Ok(())
        });
        if running.len() >= 16 {
            let _ = running.join_next().await;
        }
    }
    while within_limit("the uploads", LIMIT, running.join_next()).await?.is_some() {}
    let wanted = payload.digest();
    let received = sink.wait_received(load.uploads).await.unwrap_or_else(|_| sink.received());
    let whole = received.iter().filter(|one| one.digest == wanted).count();
    report.add(
        "uploads of 1 MiB that arrive whole",
        Unit::Percent,
        whole as f64 * 100.0 / load.uploads as f64,
    );
    Ok(())
}

/// Four clients stop reading in the middle of a download: measures the time of another connection's 1 MiB.
pub(super) async fn stalled(rig: &Rig, endpoint: &CommandEndpoint, report: &mut Report) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(8);
    // All dials come first: if one stalled connection blocks everything, a later dial is never answered.
    let mut conns = Vec::new();
    for _ in 0..4 {
        conns.push(rig.dialer().dial(&endpoint.target()).await?);
    }
    for conn in &mut conns {
        Command::Download(64 * MIB).send(conn).await?;
    }
    let start = Instant::now();
    let other = async {
        let mut conn = rig.dialer().dial(&endpoint.target()).await?;
        Command::Download(MIB).send(&mut conn).await?;
        // The stalls take effect only after many MiB.
        skip(&mut conn, MIB).await?;
        for _ in 0..16 {
            let conn = rig.dialer().dial(&endpoint.target()).await?;
            transfer(conn, MIB, true).await?;
        }
        anyhow::Ok(())
    };
    let served = timeout(PATIENCE, other).await;
    let milliseconds = match served {
        Ok(ended) => {
            ended?;
            start.elapsed().as_secs_f64() * 1e3
        }
        Err(_) => f64::INFINITY,
    };
    report.add("17 downloads of 1 MiB beside 4 stalled readers", Unit::Milliseconds, milliseconds);
    drop(conns);
    Ok(())
}
