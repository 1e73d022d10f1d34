//! A steady load of new dials and endless transfers over replicas that stop and start.
//!
//! A client behaves like a kube-apiserver next to its own server: it dials a replica that is up. Every error is kept with its
//! text; nothing is retried. The load keeps its rate or fails: delays of a slow machine are caught up, and events wait for that
//! ([`Progress::kept`]).

mod report;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::AsyncWriteExt;
use tokio::sync::{RwLock, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

pub use self::report::Report;
use self::report::Tally;
use crate::exchange::{echo, expect_end};
use crate::frontend::{Conn, Frontend};
use crate::pair::Pair;
use crate::payload::Payload;
use crate::wait::until;

/// Largest number of concurrent dials without the held ones. More would starve the programs under test.
const AT_ONCE: usize = 64;

/// How long dials may lag behind their rate before the load fails.
const CATCH_UP: Duration = Duration::from_secs(120);

/// Time limit of one echo of a transfer; after that its connection counts as cut.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of one echo of a transfer, and the pause between two: a transfer tests continuity, not speed.
const PIECE: u64 = 16 * 1024;
const EVERY: Duration = Duration::from_millis(100);

/// A server as its clients see it.
#[derive(Clone, Debug)]
pub struct Replica {
    frontend: Frontend,
    /// Every dial holds it for reading until it is established.
    up: Arc<RwLock<bool>>,
}

impl Replica {
    /// All replicas of a pair, up.
    pub fn all_of(pair: &Pair) -> Result<Vec<Self>> {
        pair.servers.iter().map(|server| Ok(Self::new(server.frontend.clone().reading_once()?))).collect()
    }

    /// A replica that is up.
    pub fn new(frontend: Frontend) -> Self {
        Self { frontend, up: Arc::new(RwLock::new(true)) }
    }

    /// Stops new dials; returns when pending dials are established.
    pub async fn leave(&self) {
        *self.up.write().await = false;
    }

    /// Permits dials again.
    pub async fn come(&self) {
        *self.up.write().await = true;
    }

    /// Dials, if the replica is up.
    async fn dial(&self, target: &str) -> Option<Result<Conn>> {
        let up = self.up.read().await;
        if !*up {
            return None;
        }
        Some(self.frontend.dial(target).await.map_err(Into::into))
    }
}

/// The parameters of a load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// New dials per second, as the average from the first to the last.
    pub rate: u32,
    /// How long a connection is held between its two echoes.
    pub hold: Duration,
    /// Connections that carry bytes steadily from start to end.
    pub transfers: usize,
}

impl Plan {
    /// The largest number of concurrent connections: pending and held ones.
    fn at_once(&self) -> usize {
        let held = f64::from(self.rate) * self.hold.as_secs_f64();
        AT_ONCE + held.ceil() as usize
    }
}

/// Whether the dials keep up with their rate.
#[derive(Clone, Debug)]
pub struct Progress {
    tally: Arc<Tally>,
    rate: u32,
    began: Instant,
}

impl Progress {
    /// Waits until the number of dials has caught up with the rate; returns their number and the time.
    pub async fn kept(&self) -> Result<(usize, Duration)> {
        let look = || {
            let (begun, took) = (self.tally.begun(), self.began.elapsed());
            (begun as f64 >= f64::from(self.rate) * took.as_secs_f64()).then_some((begun, took))
        };
        until("as many dials as were promised", CATCH_UP, || async { look() }).await.with_context(|| {
            let (begun, took) = (self.tally.begun(), self.began.elapsed());
            format!("only {begun} dials in {took:.1?}, {} a second were promised", self.rate)
        })
    }
}

/// Puts the load on `replicas`, with an echo at `target`, while `events` runs; then ends all connections in order.
pub async fn during<T>(
    replicas: &[Replica],
    target: &str,
    plan: &Plan,
    events: impl AsyncFnOnce(Progress) -> Result<T>,
) -> Result<(Report, T)> {
    let tally = Arc::<Tally>::default();
    let stop = watch::Sender::new(false);
    let mut transfers = JoinSet::new();
    for seed in 0..plan.transfers {
        let replica = replicas.get(seed % replicas.len().max(1)).context("no replica")?;
        let conn = replica.dial(target).await.context("a replica that is up")??;
        transfers.spawn(transfer(conn, (seed as u64) << 32, stop.subscribe(), tally.clone()));
    }
    let progress = Progress { tally: tally.clone(), rate: plan.rate, began: Instant::now() };
    let events = async {
        let done = events(progress.clone()).await?;
        Ok::<_, anyhow::Error>((done, progress.kept().await?))
    };
    let mut dials = JoinSet::new();
    let (done, (begun, took)) = tokio::select! {
        done = events => done?,
        never = dial_steadily(replicas, target, plan, &tally, &mut dials) => match never {},
    };
    stop.send_replace(true);
    while dials.join_next().await.is_some() {}
    while transfers.join_next().await.is_some() {}
    Ok((tally.report(plan, begun, took), done))
}

/// Slightly faster than the rate, to catch up with delays of the machine.
async fn dial_steadily(
    replicas: &[Replica],
    target: &str,
    plan: &Plan,
    tally: &Arc<Tally>,
    dials: &mut JoinSet<()>,
) -> std::convert::Infallible {
    let mut ticks = interval(Duration::from_millis(980) / plan.rate.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let places = Arc::new(Semaphore::new(plan.at_once()));
    loop {
        ticks.tick().await;
        while dials.try_join_next().is_some() {}
        let place = places.clone().acquire_owned().await;
        let dial = dial(replicas.to_vec(), target.to_owned(), plan.hold, tally.begin(), tally.clone());
        dials.spawn(async move {
            dial.await;
            drop(place);
        });
    }
}

/// Dials one replica that is up, and makes two echoes with a pause between them.
async fn dial(replicas: Vec<Replica>, target: String, hold: Duration, number: usize, tally: Arc<Tally>) {
    for turn in 0..replicas.len() {
        let Some(replica) = replicas.get((number + turn) % replicas.len()) else { return };
        let began = Instant::now();
        let Some(dialed) = replica.dial(&target).await else { continue };
        match dialed.context("dial") {
            Ok(conn) => {
                tally.established(began.elapsed());
                if let Err(error) = exchange(conn, number as u64, hold).await {
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

/// A connection that moves bytes steadily; every byte is compared.
async fn transfer(conn: Conn, seed: u64, stop: watch::Receiver<bool>, tally: Arc<Tally>) {
    match carry(conn, seed, &stop, &tally).await {
        Ok(()) => tally.whole(),
        Err(error) => tally.error(|report| report.transfers_cut += 1, &error.context("transfer")),
    }
}

async fn carry(mut conn: Conn, mut seed: u64, stop: &watch::Receiver<bool>, tally: &Tally) -> Result<()> {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !*stop.borrow() {
        ticks.tick().await;
        conn =
            timeout(PATIENCE, echo(conn, Payload::new(seed, PIECE))).await.context("it stands still")??;
        tally.carried(PIECE);
        seed += 1;
    }
    conn.shutdown().await?;
    expect_end(&mut conn).await
}
