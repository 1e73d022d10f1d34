//! Bulk transfers over few connections, in each direction.

use anyhow::{Context, Result};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cases::{LIMIT, MIB, cpu};
use super::endpoint::{Command, CommandEndpoint, send_zeros, skip};
use super::report::{Report, Unit};
use super::rig::Rig;
use crate::frontend::Conn;
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
            let name = format!("bulk {}, {connections} connections{place}", if down { "down" } else { "up" });
            let (seconds, used) =
                bulk(rig, endpoint, mib, connections, down).await.with_context(|| name.clone())?;
            report.add(&name, Unit::MibPerSecond, mib as f64 / seconds);
            report.add(&format!("CPU, {name}"), Unit::CpuSecondsPerGib, used * 1024.0 / mib as f64);
        }
    }
    Ok(())
}

/// Returns seconds, and CPU seconds of both processes.
async fn bulk(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    mib: u64,
    connections: u64,
    down: bool,
) -> Result<(f64, f64)> {
    let share = mib * MIB / connections;
    let mut conns = Vec::new();
    for _ in 0..connections {
        conns.push(rig.dialer().dial(&endpoint.target()).await?);
    }
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
    Ok((start.elapsed().as_secs_f64(), (cpu(rig)? - before).as_secs_f64()))
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
