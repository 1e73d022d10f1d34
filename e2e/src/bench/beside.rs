//! The latency of a small exchange under interfering load: bulk transfers, stalled readers, stalled endpoints. Its client has
//! its own thread and its endpoint its own process, so that it waits only for the tunnel and for the CPUs, not for the clients
//! and endpoints of the load.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::cases::{cpu, served};
use super::endpoint::{Command, CommandEndpoint, send_zeros, skip};
use super::report::{Report, Unit};
use super::rig::{Dialer, Rig, Subject};
use super::small::{echo_conn, round_trip};
use crate::figures::percentile;
use crate::frontend::Conn;

/// Time limit of one answer; a client without an answer in this time counts as not served.
const PATIENCE: Duration = Duration::from_secs(8);
/// Round trips measured in each case.
const PINGS: usize = 500;

/// The load beside the exchange.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Nothing,
    Downloads(usize),
    Uploads(usize),
    StalledReaders(usize),
    StalledEndpoints(usize),
}

/// The path of the exchange itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The same path as the load.
    Subject,
    /// A bare relay that carries nothing else: the same number of processes, to measure the cost of sharing the CPUs alone.
    IdleRelay,
}

const CASES: [(Beside, By, &str); 9] = [
    (Beside::Nothing, By::Subject, "p99 of a ping, alone"),
    (Beside::Downloads(16), By::Subject, "p99 of a ping beside 16 bulk downloads"),
    (Beside::Downloads(16), By::IdleRelay, "the same by a relay that carries nothing else, 16 downloads"),
    (Beside::Uploads(16), By::Subject, "p99 of a ping beside 16 bulk uploads"),
    (Beside::Uploads(16), By::IdleRelay, "the same by a relay that carries nothing else, 16 uploads"),
    (Beside::StalledReaders(1), By::Subject, "p99 of a ping beside a stalled reader"),
    (Beside::StalledReaders(1_000), By::Subject, "p99 of a ping beside 1,000 stalled readers"),
    (Beside::StalledEndpoints(1), By::Subject, "p99 of a ping beside a stalled endpoint"),
    (Beside::StalledEndpoints(1_000), By::Subject, "p99 of a ping beside 1,000 stalled endpoints"),
];

/// Measures all cases, each on its own connections.
pub(super) async fn measure(rig: &Rig, endpoint: &CommandEndpoint, report: &mut Report) {
    for (beside, by, name) in CASES {
        // A dial that fails because of earlier stalls counts as not served, too.
        let p99 = served(name, PATIENCE * 8, p99_beside(rig, endpoint, beside, by)).await;
        report.add(name, Unit::Microseconds, p99.unwrap_or(f64::INFINITY));
    }
}

/// The ping uses one rig; the load uses another rig or the same.
async fn p99_beside(rig: &Rig, endpoint: &CommandEndpoint, beside: Beside, by: By) -> Result<f64> {
    let echo = CommandEndpoint::apart().await?;
    let relay = match by {
        By::Subject => None,
        By::IdleRelay => Some(Subject::Relay.start(None).await?),
    };
    // All dials come first: if one stalled connection blocks everything, a later dial is never answered.
    let by = relay.as_ref().unwrap_or(rig);
    let (start, measured) = dial_apart(by.dialer(), echo.target()).await?;
    let count = match beside {
        Beside::Nothing => 0,
        Beside::Downloads(count)
        | Beside::Uploads(count)
        | Beside::StalledReaders(count)
        | Beside::StalledEndpoints(count) => count,
    };
    let mut conns = Vec::with_capacity(count);
    for _ in 0..count {
        conns.push(rig.dialer().dial(&endpoint.target()).await?);
    }
    let mut disturbers = JoinSet::new();
    for conn in conns {
        disturbers.spawn(disturb(conn, beside));
    }
    if matches!(beside, Beside::StalledReaders(_) | Beside::StalledEndpoints(_)) {
        at_rest(rig).await?;
    }
    let _ = start.send(());
    measured.await.context("the pings ended early")?
}

/// Dials an echo on a separate thread; once signaled, it measures there.
async fn dial_apart(
    dialer: Dialer,
    target: String,
) -> Result<(oneshot::Sender<()>, oneshot::Receiver<Result<f64>>)> {
    let (dialed, is_dialed) = oneshot::channel();
    let (start, started) = oneshot::channel();
    let (tell, measured) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let mut conn = match echo_conn(&dialer, &target).await {
                Ok(conn) => conn,
                Err(error) => return drop(dialed.send(Err(error))),
            };
            let _ = dialed.send(Ok(()));
            if started.await.is_ok() {
                let _ = tell.send(timeout(PATIENCE * 4, pings(&mut conn)).await.unwrap_or(Ok(f64::INFINITY)));
            }
        });
    });
    is_dialed.await.context("the dial ended early")??;
    Ok((start, measured))
}

/// Waits until the CPUs are idle: a stall affects others only once all buffers on its path are full, and until then it is a
/// bulk transfer. A subject that is still busy after [`PATIENCE`] is measured busy.
async fn at_rest(rig: &Rig) -> Result<()> {
    /// A tenth of one CPU, for both processes together.
    const LITTLE: Duration = Duration::from_millis(25);
    const LOOK: Duration = Duration::from_millis(250);
    let end = Instant::now() + PATIENCE;
    let mut used = cpu(rig)?;
    while Instant::now() < end {
        tokio::time::sleep(LOOK).await;
        let before = std::mem::replace(&mut used, cpu(rig)?);
        if used.saturating_sub(before) < LITTLE {
            break;
        }
    }
    Ok(())
}

async fn disturb(mut conn: Conn, beside: Beside) -> Result<()> {
    const MUCH: u64 = 1 << 40;
    match beside {
        Beside::Nothing => Ok(()),
        Beside::Downloads(_) => {
            Command::Download(MUCH).send(&mut conn).await?;
            skip(&mut conn, MUCH).await
        }
        Beside::Uploads(_) => {
            Command::Upload(MUCH).send(&mut conn).await?;
            send_zeros(&mut conn, MUCH).await
        }
        Beside::StalledReaders(_) => {
            Command::Pour.send(&mut conn).await?;
            std::future::pending().await
        }
        Beside::StalledEndpoints(_) => {
            Command::Hold.send(&mut conn).await?;
            send_zeros(&mut conn, MUCH).await
        }
    }
}

/// The 99th percentile in microseconds, infinite if an answer is missing.
async fn pings(conn: &mut Conn) -> Result<f64> {
    let mut message = [7; 64];
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        match timeout(PATIENCE, round_trip(conn, &mut message)).await {
            Ok(took) => times.push(took?),
            Err(_) => return Ok(f64::INFINITY),
        }
    }
    let p99 = percentile(&mut times, 99).unwrap_or_default();
    Ok(p99.as_secs_f64() * 1e6)
}
