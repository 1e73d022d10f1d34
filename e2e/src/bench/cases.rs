//! The cases. Each starts from a pair at rest and yields figures.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::endpoint::{Command, CommandEndpoint, send_zeros, skip};
use super::report::{Report, Unit};
use super::rig::{Dialler, Rig, Subject};
use crate::endpoints::Endpoint;
use crate::frontend::Conn;
use crate::payload::Payload;
use crate::usage::Usage;
use crate::wait::within_limit;

const MIB: u64 = 1 << 20;
/// What no case may exceed: something is stuck.
const LIMIT: Duration = Duration::from_secs(120);

/// How much each case does.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// MiB of each bulk case, over all its connections.
    pub bulk: u64,
    /// Round trips of the ping-pong.
    pub pings: usize,
    /// Seconds of the fan-out and of the connect cases.
    pub seconds: u64,
    /// Idle connections.
    pub idle: usize,
    /// Uploads.
    pub uploads: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self { bulk: 512, pings: 5_000, seconds: 3, idle: 1_000, uploads: 200 }
    }
}

/// Starts the subject and runs every case once.
pub async fn measure(subject: &Subject, load: Load) -> Result<Report> {
    let rig = subject.start().await?;
    let endpoint = CommandEndpoint::start().await?;
    let mut report = Report::default();
    let (server, agent) = usage(&rig)?;
    report.add("RSS at start, server", Unit::Mib, server.rss_kib as f64 / 1024.0);
    report.add("RSS at start, agent", Unit::Mib, agent.rss_kib as f64 / 1024.0);
    idle(&rig, &endpoint, load, &mut report).await?;
    for connections in [1, 16] {
        for (name, down) in [("down", true), ("up", false)] {
            bulk(&rig, &endpoint, load, connections, down, &mut report)
                .await
                .with_context(|| format!("bulk {name}, {connections} connections"))?;
        }
    }
    ping_pong(&rig, &endpoint, load, &mut report).await?;
    fan_out(&rig, &endpoint, load, &mut report).await?;
    for clients in [1, 16] {
        connects(&rig, &endpoint, load, clients, &mut report).await?;
    }
    uploads(&rig, load, &mut report).await?;
    stalled(&rig, &endpoint, &mut report).await?;
    super::beside::measure(&rig, &endpoint, &mut report).await;
    let (server, agent) = usage(&rig)?;
    report.add("RSS at the end, server", Unit::Mib, server.rss_kib as f64 / 1024.0);
    report.add("RSS at the end, agent", Unit::Mib, agent.rss_kib as f64 / 1024.0);
    Ok(report)
}

fn usage(rig: &Rig) -> Result<(Usage, Usage)> {
    let (server, agent) = rig.processes();
    Ok((server.usage()?, agent.usage()?))
}

/// Processor time of both processes so far.
fn cpu(rig: &Rig) -> Result<Duration> {
    let (server, agent) = usage(rig)?;
    Ok(server.cpu + agent.cpu)
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

async fn transfer(mut conn: Conn, bytes: u64, down: bool) -> Result<()> {
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

async fn echo_conn(dialler: &Dialler, endpoint: &CommandEndpoint) -> Result<Conn> {
    let mut conn = dialler.dial(&endpoint.target()).await?;
    Command::Echo.send(&mut conn).await?;
    Ok(conn)
}

async fn ping_pong(rig: &Rig, endpoint: &CommandEndpoint, load: Load, report: &mut Report) -> Result<()> {
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
    report.add("ping-pong of 64 bytes, p50", Unit::Microseconds, at(0.5));
    report.add("ping-pong of 64 bytes, p99", Unit::Microseconds, at(0.99));
    Ok(())
}

async fn fan_out(rig: &Rig, endpoint: &CommandEndpoint, load: Load, report: &mut Report) -> Result<()> {
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

async fn connects(
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
        let (dialler, target) = (rig.dialler(), endpoint.target());
        running.spawn(async move {
            let (mut count, mut byte) = (0_u64, [0; 1]);
            while Instant::now() < end {
                // One byte there and back: the connection really stands.
                let mut conn = dialler.dial(&target).await?;
                Command::Download(1).send(&mut conn).await?;
                conn.read_exact(&mut byte).await?;
                conn.shutdown().await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut total = 0;
    while let Some(ended) = within_limit("the connects", LIMIT, running.join_next()).await? {
        total += ended??;
    }
    let (seconds, used) = (start.elapsed().as_secs_f64(), cpu(rig)? - before);
    report.add(&format!("connects, {clients} at once"), Unit::PerSecond, total as f64 / seconds);
    report.add(
        &format!("CPU, connects, {clients} at once"),
        Unit::CpuMicrosecondsEach,
        used.as_secs_f64() * 1e6 / total.max(1) as f64,
    );
    Ok(())
}

async fn idle(rig: &Rig, endpoint: &CommandEndpoint, load: Load, report: &mut Report) -> Result<()> {
    // A first connection, so that what exists once is not counted to each.
    let _first = echo_conn(&rig.dialler(), endpoint).await?;
    let before = usage(rig)?;
    let mut conns = Vec::with_capacity(load.idle);
    for _ in 0..load.idle {
        let mut conn = echo_conn(&rig.dialler(), endpoint).await?;
        let mut byte = [1];
        conn.write_all(&byte).await?;
        conn.flush().await?;
        conn.read_exact(&mut byte).await?;
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

/// Send, then close at once: how many arrive whole.
async fn uploads(rig: &Rig, load: Load, report: &mut Report) -> Result<()> {
    let sink = Endpoint::sink().await?;
    let payload = Payload::new(5, MIB);
    let mut running = JoinSet::new();
    for _ in 0..load.uploads {
        let (dialler, target) = (rig.dialler(), sink.target());
        running.spawn(async move {
            let mut conn = dialler.dial(&target).await?;
            payload.send(&mut conn).await?;
            conn.shutdown().await?;
            // A connection cut short is a figure of this case, not an error.
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

/// Four clients stop reading in the middle of a download: how long another one's MiB takes meanwhile.
async fn stalled(rig: &Rig, endpoint: &CommandEndpoint, report: &mut Report) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(8);
    // All dials first: where one stalled connection stops everything, a later dial would never be answered.
    let mut conns = Vec::new();
    for _ in 0..4 {
        conns.push(rig.dialler().dial(&endpoint.target()).await?);
    }
    for conn in &mut conns {
        Command::Download(64 * MIB).send(conn).await?;
    }
    let start = Instant::now();
    let other = async {
        let mut conn = rig.dialler().dial(&endpoint.target()).await?;
        Command::Download(MIB).send(&mut conn).await?;
        // The stalls need a moment to be felt: many MiB one after the other.
        skip(&mut conn, MIB).await?;
        for _ in 0..16 {
            let conn = rig.dialler().dial(&endpoint.target()).await?;
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
