//! Connect rate, memory of idle connections, and very many connections at once.

use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cases::{LIMIT, Load, cpu, served, usage};
use super::endpoint::{Command, CommandEndpoint};
use super::report::{Report, Unit};
use super::rig::Rig;
use super::small::{echo_conn, rate, round_trip};
use crate::exchange::pool;
use crate::figures::percentile;
use crate::frontend::Conn;
use crate::usage::Usage;

/// Repeats: dial, receive one byte, close.
pub(super) async fn connects(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    load: Load,
    clients: usize,
    report: &mut Report,
) -> Result<()> {
    let (before, start) = (cpu(rig)?, Instant::now());
    let end = start + Duration::from_secs(load.seconds);
    let mut running = JoinSet::new();
    for _ in 0..clients {
        let (dialer, target) = (rig.dialer(), endpoint.target());
        running.spawn(async move {
            let (mut count, mut byte) = (0_u64, [0; 1]);
            while Instant::now() < end {
                // One byte proves that the connection is established.
                let mut conn = dialer.dial(&target).await?;
                Command::Download(1).send(&mut conn).await?;
                conn.read_exact(&mut byte).await?;
                conn.shutdown().await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let name = format!("connects, {clients} at once");
    rate(rig, [&name, &format!("CPU, {name}")], (before, start), running, report).await
}

/// The memory of idle connections that have carried one byte.
pub(super) async fn idle(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    load: Load,
    report: &mut Report,
) -> Result<()> {
    // A first connection, so that one-time allocations are not attributed to each.
    let _first = echo_conn(&rig.dialer(), &endpoint.target()).await?;
    let before = usage(rig)?;
    let mut conns = Vec::with_capacity(load.idle);
    for _ in 0..load.idle {
        let mut conn = echo_conn(&rig.dialer(), &endpoint.target()).await?;
        round_trip(&mut conn, &mut [1]).await?;
        conns.push(conn);
    }
    let after = usage(rig)?;
    let each = |before: &Usage, after: &Usage| {
        after.rss_kib.saturating_sub(before.rss_kib) as f64 / load.idle as f64
    };
    report.add("memory of an idle connection, server", Unit::Kib, each(&before.0, &after.0));
    report.add("memory of an idle connection, agent", Unit::Kib, each(&before.1, &after.1));
    Ok(())
}

/// Ten thousand idle connections, and two thousand busy ones beside them.
pub(super) async fn many(rig: &Rig, endpoint: &CommandEndpoint, load: Load, report: &mut Report) {
    let busy = format!("{} busy beside {} idle", load.busy, load.many);
    // A subject that cannot open that many connections in this time counts as not served.
    let measured = served(&busy, LIMIT, busy_beside_idle(rig, endpoint, load)).await;
    let [rate, p99, server, agent] = measured.unwrap_or([f64::INFINITY; 4]);
    report.add(&format!("{busy}: echoes of 64 bytes"), Unit::PerSecond, rate);
    report.add(&format!("{busy}: p99"), Unit::Milliseconds, p99);
    report.add(&format!("{busy}: RSS, server"), Unit::Mib, server);
    report.add(&format!("{busy}: RSS, agent"), Unit::Mib, agent);
}

async fn busy_beside_idle(rig: &Rig, endpoint: &CommandEndpoint, load: Load) -> Result<[f64; 4]> {
    let _idle = dial_many(rig, endpoint, load.many).await?;
    let busy = dial_many(rig, endpoint, load.busy).await?;
    let (start, mut running) = (Instant::now(), JoinSet::new());
    let end = start + Duration::from_secs(load.seconds);
    for conn in busy {
        running.spawn(echoes_until(conn, end));
    }
    let mut times = Vec::new();
    while let Some(ended) = running.join_next().await {
        times.extend(ended??);
    }
    let (seconds, (server, agent)) = (start.elapsed().as_secs_f64(), usage(rig)?);
    let p99 = percentile(&mut times, 99).unwrap_or(Duration::MAX);
    let mib = |usage: &Usage| usage.rss_kib as f64 / 1024.0;
    Ok([times.len() as f64 / seconds, p99.as_secs_f64() * 1e3, mib(&server), mib(&agent)])
}

/// Dials `count` connections to an echo, 64 at a time.
async fn dial_many(rig: &Rig, endpoint: &CommandEndpoint, count: usize) -> Result<Vec<Conn>> {
    let dials = (0..count).map(|_| {
        let (dialer, target) = (rig.dialer(), endpoint.target());
        async move { echo_conn(&dialer, &target).await }
    });
    pool(64, dials).await
}

async fn echoes_until(mut conn: Conn, end: Instant) -> Result<Vec<Duration>> {
    let (mut message, mut times) = ([7; 64], Vec::new());
    while Instant::now() < end {
        times.push(round_trip(&mut conn, &mut message).await?);
    }
    Ok(times)
}
