//! Much over few connections, in each direction.

use anyhow::{Context, Result};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cases::{LIMIT, Load, MIB, cpu};
use super::endpoint::{Command, CommandEndpoint, send_zeros, skip};
use super::report::{Report, Unit};
use super::rig::Rig;
use crate::frontend::Conn;
use crate::wait::within_limit;

/// One connection and sixteen, down and up.
pub(super) async fn measure(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    load: Load,
    report: &mut Report,
) -> Result<()> {
    for connections in [1, 16] {
        for (name, down) in [("down", true), ("up", false)] {
            bulk(rig, endpoint, load, connections, down, report)
                .await
                .with_context(|| format!("bulk {name}, {connections} connections"))?;
        }
    }
    Ok(())
}

async fn bulk(
    rig: &Rig,
    endpoint: &CommandEndpoint,
    load: Load,
    connections: u64,
    down: bool,
    report: &mut Report,
) -> Result<()> {
    let share = load.bulk * MIB / connections;
    let mut conns = Vec::new();
    for _ in 0..connections {
        conns.push(rig.dialler().dial(&endpoint.target()).await?);
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
    let (seconds, used) = (start.elapsed().as_secs_f64(), cpu(rig)? - before);
    let name = if down { "down" } else { "up" };
    report.add(
        &format!("bulk {name}, {connections} connections"),
        Unit::MibPerSecond,
        load.bulk as f64 / seconds,
    );
    report.add(
        &format!("CPU, bulk {name}, {connections} connections"),
        Unit::CpuSecondsPerGib,
        used.as_secs_f64() * 1024.0 / load.bulk as f64,
    );
    Ok(())
}

/// Moves so many bytes over one connection.
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
