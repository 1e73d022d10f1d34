//! Round trips of small messages: one connection at a time, and many at once.

use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cases::{LIMIT, Load, cpu};
use super::endpoint::{Command, CommandEndpoint};
use super::pin::Pinned;
use super::report::{Report, Unit};
use super::rig::{Dialer, Rig};
use crate::figures::percentile;
use crate::frontend::Conn;
use crate::wait::within_limit;

/// Adds the rate of the clients' operations since `start`, and the CPU time of each operation.
pub(super) async fn rate(
    rig: &Rig,
    names: [&str; 2],
    (before, start): (Duration, Instant),
    mut running: JoinSet<Result<u64>>,
    report: &mut Report,
) -> Result<()> {
    let mut total = 0;
    while let Some(ended) = within_limit(names[0], LIMIT, running.join_next()).await? {
        total += ended??;
    }
    let (seconds, used) = (start.elapsed().as_secs_f64(), cpu(rig)? - before);
    report.add(names[0], Unit::PerSecond, total as f64 / seconds);
    report.add(names[1], Unit::CpuMicrosecondsEach, used.as_secs_f64() * 1e6 / total.max(1) as f64);
    Ok(())
}

/// Round trips with all CPUs, and with every process pinned to one CPU, where no wake-up crosses CPUs.
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

/// A connection whose endpoint at `target` echoes everything.
pub(super) async fn echo_conn(dialer: &Dialer, target: &str) -> Result<Conn> {
    let mut conn = dialer.dial(target).await?;
    Command::Echo.send(&mut conn).await?;
    Ok(conn)
}

/// Sends a message and receives its echo; returns the time.
pub(super) async fn round_trip(conn: &mut Conn, message: &mut [u8]) -> Result<Duration> {
    let start = Instant::now();
    conn.write_all(message).await?;
    conn.flush().await?;
    conn.read_exact(message).await?;
    Ok(start.elapsed())
}

async fn ping_pong(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    load: Load,
    place: &str,
    report: &mut Report,
) -> Result<()> {
    let mut conn = echo_conn(&rig.dialer(), &endpoint.target()).await?;
    let mut message = [7; 64];
    let mut times = Vec::with_capacity(load.pings);
    let pings = async {
        for round in 0..load.pings + load.pings / 10 {
            let took = round_trip(&mut conn, &mut message).await?;
            // The first tenth warms up.
            if round >= load.pings / 10 {
                times.push(took);
            }
        }
        anyhow::Ok(())
    };
    within_limit("the ping-pong", LIMIT, pings).await??;
    for percent in [50, 99] {
        let time = percentile(&mut times, percent).unwrap_or_default();
        let name = format!("ping-pong of 64 bytes, p{percent}{place}");
        report.add(&name, Unit::Microseconds, time.as_secs_f64() * 1e6);
    }
    Ok(())
}

/// 64 clients that send 1 KiB and wait for its echo.
pub(super) async fn fan_out(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    load: Load,
    report: &mut Report,
) -> Result<()> {
    let mut running = JoinSet::new();
    let mut conns = Vec::new();
    for _ in 0..64 {
        conns.push(echo_conn(&rig.dialer(), &endpoint.target()).await?);
    }
    let (before, start) = (cpu(rig)?, Instant::now());
    let end = start + Duration::from_secs(load.seconds);
    for mut conn in conns {
        running.spawn(async move {
            let mut message = vec![7; 1024];
            let mut count = 0_u64;
            while Instant::now() < end {
                round_trip(&mut conn, &mut message).await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let names = ["64 connections x 1 KiB echoes", "CPU, 64 x 1 KiB echoes"];
    rate(rig, names, (before, start), running, report).await
}
