//! A steady load of new dials, and transfers that never end, over replicas that come and go.
//!
//! A dialler behaves as a kube-apiserver beside its own server: it talks to a replica that is up. Everything that goes
//! wrong is kept with its text; nothing is tried again.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use tokio::sync::{RwLock, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::exchange::{echo, expect_end};
use crate::figures::percentile;
use crate::frontend::{Conn, Frontend};
use crate::pair::Pair;
use crate::payload::Payload;
use tokio::io::AsyncWriteExt;

/// The most dials at once: a machine that is too slow for the rate makes fewer, and the report says so. More would starve
/// the very programs that are looked at.
const AT_ONCE: usize = 64;

/// How long an echo of a transfer may take before its connection counts as cut.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of one echo of a transfer.
const PIECE: u64 = 128 * 1024;

/// How many errors are kept in words.
const KEPT: usize = 10;

/// A server as its clients see it.
#[derive(Clone, Debug)]
pub struct Replica {
    frontend: Frontend,
    /// Held for reading by every dial until it is established.
    up: Arc<RwLock<bool>>,
}

impl Replica {
    /// All of a pair's, up.
    pub fn all_of(pair: &Pair) -> Vec<Self> {
        pair.servers.iter().map(|server| Self::new(server.frontend.clone())).collect()
    }

    /// One that is up.
    pub fn new(frontend: Frontend) -> Self {
        Self { frontend, up: Arc::new(RwLock::new(true)) }
    }

    /// No dial begins from now on, and those under way are established when this returns.
    pub async fn leave(&self) {
        *self.up.write().await = false;
    }

    /// Dials may begin.
    pub async fn come(&self) {
        *self.up.write().await = true;
    }

    /// Dials, if it is up.
    async fn dial(&self, target: &str) -> Option<Result<Conn>> {
        let up = self.up.read().await;
        if !*up {
            return None;
        }
        Some(self.frontend.dial(target).await.map_err(Into::into))
    }
}

/// What to put on.
#[derive(Clone, Debug)]
pub struct Plan {
    /// New dials a second.
    pub rate: u32,
    /// How long a dialled connection is held between its two echoes.
    pub hold: Duration,
    /// Connections that carry bytes from the beginning to the end.
    pub transfers: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Dials that began.
    pub dials: usize,
    /// Times at which none began, because too many were under way.
    pub skipped: usize,
    /// Dials that brought no connection.
    pub failed: usize,
    /// Connections that were dialled and did not end in order.
    pub cut: usize,
    /// Bytes that the transfers carried, one way.
    pub carried: u64,
    /// Transfers that did not live to the end.
    pub transfers_cut: usize,
    /// Dial latencies: median and 99th percentile.
    pub p50: Duration,
    /// See above.
    pub p99: Duration,
    /// From the first dial to the last.
    pub took: Duration,
    /// The first errors.
    pub errors: Vec<String>,
}

impl Report {
    /// Fails unless everything was dialled and carried to its end.
    pub fn check(&self) -> Result<()> {
        ensure!(self.failed == 0 && self.cut == 0 && self.transfers_cut == 0, "{self}");
        ensure!(self.dials > 0, "no dial was made");
        Ok(())
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} dials in {:.1?} ({} skipped): {} failed, {} cut, p50 {:.1?}, p99 {:.1?}; transfers carried {} MiB, {} cut",
            self.dials,
            self.took,
            self.skipped,
            self.failed,
            self.cut,
            self.p50,
            self.p99,
            self.carried >> 20,
            self.transfers_cut
        )?;
        for error in &self.errors {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Tally {
    report: Mutex<Report>,
    latencies: Mutex<Vec<Duration>>,
    next: AtomicUsize,
}

impl Tally {
    fn error(&self, count: impl FnOnce(&mut Report), error: &anyhow::Error) {
        let mut report = self.report.lock();
        count(&mut report);
        if report.errors.len() < KEPT {
            report.errors.push(format!("{error:#}"));
        }
    }
}

/// Puts the load on `replicas`, towards an echo at `target`, while `events` runs; then lets everything end in order.
pub async fn during<T>(
    replicas: &[Replica],
    target: &str,
    plan: &Plan,
    events: impl Future<Output = Result<T>>,
) -> Result<(Report, T)> {
    let tally = Arc::<Tally>::default();
    let stop = watch::Sender::new(false);
    let mut transfers = JoinSet::new();
    for seed in 0..plan.transfers {
        let replica = replicas.get(seed % replicas.len().max(1)).context("no replica")?;
        let conn = replica.dial(target).await.context("a replica that is up")??;
        transfers.spawn(transfer(conn, seed as u64, stop.subscribe(), tally.clone()));
    }
    let began = Instant::now();
    let mut dials = JoinSet::new();
    let done = tokio::select! {
        done = events => done?,
        never = dial_steadily(replicas, target, plan, &tally, &mut dials) => match never {},
    };
    let took = began.elapsed();
    stop.send_replace(true);
    while dials.join_next().await.is_some() {}
    while transfers.join_next().await.is_some() {}
    let mut report = tally.report.lock().clone();
    let mut latencies = std::mem::take(&mut *tally.latencies.lock());
    let mut at = |percent| percentile(&mut latencies, percent).unwrap_or_default();
    (report.p50, report.p99, report.took) = (at(50), at(99), took);
    Ok((report, done))
}

async fn dial_steadily(
    replicas: &[Replica],
    target: &str,
    plan: &Plan,
    tally: &Arc<Tally>,
    dials: &mut JoinSet<()>,
) -> std::convert::Infallible {
    let mut ticks = interval(Duration::from_secs(1) / plan.rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        ticks.tick().await;
        while dials.try_join_next().is_some() {}
        if dials.len() >= AT_ONCE {
            tally.report.lock().skipped += 1;
            continue;
        }
        dials.spawn(dial(replicas.to_vec(), target.to_owned(), plan.hold, tally.clone()));
    }
}

/// Dials one replica that is up, and has two echoes with a pause between them.
async fn dial(replicas: Vec<Replica>, target: String, hold: Duration, tally: Arc<Tally>) {
    let first = tally.next.fetch_add(1, Ordering::Relaxed);
    for turn in 0..replicas.len() {
        let Some(replica) = replicas.get((first + turn) % replicas.len()) else { return };
        let began = Instant::now();
        let Some(dialled) = replica.dial(&target).await else { continue };
        tally.report.lock().dials += 1;
        match dialled.context("dial") {
            Ok(conn) => {
                tally.latencies.lock().push(began.elapsed());
                if let Err(error) = exchange(conn, first as u64, hold).await {
                    tally.error(|report| report.cut += 1, &error.context("connection"));
                }
            }
            Err(error) => tally.error(|report| report.failed += 1, &error),
        }
        return;
    }
    tally.error(|report| report.failed += 1, &anyhow::anyhow!("no replica was up"));
}

async fn exchange(conn: Conn, seed: u64, hold: Duration) -> Result<()> {
    let conn = echo(conn, Payload::new(seed, 200)).await?;
    sleep(hold).await;
    let mut conn = echo(conn, Payload::new(seed + 1, 200)).await?;
    conn.shutdown().await?;
    expect_end(&mut conn).await
}

async fn transfer(mut conn: Conn, mut seed: u64, stop: watch::Receiver<bool>, tally: Arc<Tally>) {
    while !*stop.borrow() {
        seed += 1;
        let done = timeout(PATIENCE, echo(conn, Payload::new(seed, PIECE))).await;
        match done.context("a transfer that stands still").and_then(|done| done) {
            Ok(back) => {
                conn = back;
                tally.report.lock().carried += PIECE;
            }
            Err(error) => {
                return tally.error(|report| report.transfers_cut += 1, &error.context("transfer"));
            }
        }
        // Leaves room for the dials: it is there to be cut, not to be fast.
        sleep(Duration::from_millis(20)).await;
    }
    let ended = async {
        conn.shutdown().await?;
        expect_end(&mut conn).await
    };
    if let Err(error) = ended.await {
        tally.error(|report| report.transfers_cut += 1, &error.context("a transfer's end"));
    }
}
