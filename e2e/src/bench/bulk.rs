//! Bulk transfers over few connections, in each direction.

use anyhow::{Context, Result};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cases::{LIMIT, MIB, cpu};
use super::endpoint::{Command, CommandEndpoint, send_zeros, skip};
use super::report::{Report, Unit};
use super::rig::Rig;
use crate::adversarial::STREAM_WINDOW;
use crate::frontend::{Conn, SharedConnection};
use crate::wait::within_limit;

/// One connection and sixteen, down and up, `mib` MiB each; `place` is appended to the names.
pub(super) async fn measure(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    mib: u64,
    place: &str,
    report: &mut Report,
) -> Result<()> {
    for connections in [1, 16] {
        for down in [true, false] {
            let name = format!("bulk {}, {connections} connections{place}", direction(down));
            let mut conns = Vec::new();
            for _ in 0..connections {
                conns.push(rig.dialer().dial(&endpoint.target()).await?);
            }
            bulk(rig, conns, mib, down, &name, report).await.with_context(|| name)?;
        }
    }
    Ok(())
}

/// Sixteen streams of one HTTP/2 connection, down and up; only with the gRPC frontend.
pub(super) async fn one_connection(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    mib: u64,
    report: &mut Report,
) -> Result<()> {
    let Some(frontend) = rig.grpc_frontend() else { return Ok(()) };
    for down in [true, false] {
        let name = format!("bulk {}, 16 streams of one connection", direction(down));
        let shared = SharedConnection::open(frontend, STREAM_WINDOW).await?;
        let mut conns = Vec::new();
        for _ in 0..16 {
            conns.push(shared.dial(&endpoint.target()).await?);
        }
        bulk(rig, conns, mib, down, &name, report).await.with_context(|| name)?;
    }
    Ok(())
}

fn direction(down: bool) -> &'static str {
    if down { "down" } else { "up" }
}

/// Adds the throughput, and the CPU seconds of both processes.
async fn bulk(
    rig: &Rig,
    conns: Vec<Conn>,
    mib: u64,
    down: bool,
    name: &str,
    report: &mut Report,
) -> Result<()> {
    let share = mib * MIB / conns.len() as u64;
    let (before, start) = (cpu(rig)?, Instant::now());
    let mut running = JoinSet::new();
    for conn in conns {
        running.spawn(transfer(conn, share, down));
    }
    let all = async {
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    };
    within_limit("a bulk transfer", LIMIT, all).await??;
    let (seconds, used) = (start.elapsed().as_secs_f64(), (cpu(rig)? - before).as_secs_f64());
    report.add(name, Unit::MibPerSecond, mib as f64 / seconds);
    report.add(&format!("CPU, {name}"), Unit::CpuSecondsPerGib, used * 1024.0 / mib as f64);
    Ok(())
}

/// Moves `bytes` over one connection.
pub(super) async fn transfer(mut conn: Conn, bytes: u64, down: bool) -> Result<()> {
    if down {
        Command::Download(bytes).send(&mut conn).await?;
        skip(&mut conn, bytes).await
    } else {
        Command::Upload(bytes).send(&mut conn).await?;
        send_zeros(&mut conn, bytes).await?;
        conn.read_u8().await?;
        Ok(())
    }
}
