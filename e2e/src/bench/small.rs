//! Small messages there and back: one connection at a time, and many at once.

use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cases::{LIMIT, Load, cpu};
use super::endpoint::{Command, CommandEndpoint};
use super::pin::Pinned;
use super::report::{Report, Unit};
use super::rig::{Dialler, Rig};
use crate::frontend::Conn;
use crate::wait::within_limit;

/// A ping-pong with all processors, and with everything on one: there no wake-up crosses to another.
pub(super) async fn ping_pongs(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    load: Load,
    report: &mut Report,
) -> Result<()> {
    ping_pong(rig, endpoint, load, "", report).await?;
    let (one, two) = rig.processes();
    let _pinned = Pinned::to_first([std::process::id(), one.pid(), two.pid()])?;
    ping_pong(rig, endpoint, load, ", on one processor", report).await
}

/// A connection whose endpoint sends everything back.
pub(super) async fn echo_conn(dialler: &Dialler, endpoint: &CommandEndpoint) -> Result<Conn> {
    let mut conn = dialler.dial(&endpoint.target()).await?;
    Command::Echo.send(&mut conn).await?;
    Ok(conn)
}

async fn ping_pong(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    load: Load,
    place: &str,
    report: &mut Report,
) -> Result<()> {
    let mut conn = echo_conn(&rig.dialler(), endpoint).await?;
    let mut message = [7; 64];
    let mut times = Vec::with_capacity(load.pings);
    let pings = async {
        for round in 0..load.pings + load.pings / 10 {
            let start = Instant::now();
            conn.write_all(&message).await?;
            conn.flush().await?;
            conn.read_exact(&mut message).await?;
            // The first tenth warms up.
            if round >= load.pings / 10 {
                times.push(start.elapsed());
            }
        }
        anyhow::Ok(())
    };
    within_limit("the ping-pong", LIMIT, pings).await??;
    times.sort_unstable();
    let at = |share: f64| {
        let index = (times.len() as f64 * share) as usize;
        times.get(index.min(times.len().saturating_sub(1))).copied().unwrap_or_default().as_secs_f64() * 1e6
    };
    report.add(&format!("ping-pong of 64 bytes, p50{place}"), Unit::Microseconds, at(0.5));
    report.add(&format!("ping-pong of 64 bytes, p99{place}"), Unit::Microseconds, at(0.99));
    Ok(())
}

/// Sixty-four clients that send a KiB and wait for it.
pub(super) async fn fan_out(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    load: Load,
    report: &mut Report,
) -> Result<()> {
    let mut running = JoinSet::new();
    let mut conns = Vec::new();
    for _ in 0..64 {
        conns.push(echo_conn(&rig.dialler(), endpoint).await?);
    }
    let (before, start) = (cpu(rig)?, Instant::now());
    let end = start + Duration::from_secs(load.seconds);
    for mut conn in conns {
        running.spawn(async move {
            let mut message = vec![7; 1024];
            let mut count = 0_u64;
            while Instant::now() < end {
                conn.write_all(&message).await?;
                conn.flush().await?;
                conn.read_exact(&mut message).await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut total = 0;
    while let Some(ended) = within_limit("the fan-out", LIMIT, running.join_next()).await? {
        total += ended??;
    }
    let (seconds, used) = (start.elapsed().as_secs_f64(), cpu(rig)? - before);
    report.add("64 connections x 1 KiB echoes", Unit::PerSecond, total as f64 / seconds);
    report.add(
        "CPU, 64 x 1 KiB echoes",
        Unit::CpuMicrosecondsEach,
        used.as_secs_f64() * 1e6 / total.max(1) as f64,
    );
    Ok(())
}
