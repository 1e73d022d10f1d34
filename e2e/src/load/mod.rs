//! A steady load of new dials, and transfers that never end, over replicas that come and go.
//!
//! A dialler behaves as a kube-apiserver beside its own server: it talks to a replica that is up. Everything that goes
//! wrong is kept with its text; nothing is tried again. The rate is kept or the load fails: what a slow machine leaves
//! behind is made up for, and events wait for it ([`Pace::kept`]).

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

/// The most dials at once that are not held. More would starve the very programs that are looked at.
const AT_ONCE: usize = 64;

/// How long dials may lag behind their rate before there is no hope that they catch up.
const CATCH_UP: Duration = Duration::from_secs(120);

/// How long an echo of a transfer may take before its connection counts as cut.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of one echo of a transfer, and the time from one to the next: it is there to be cut, not to be fast.
const PIECE: u64 = 16 * 1024;
const EVERY: Duration = Duration::from_millis(100);

/// A server as its clients see it.
#[derive(Clone, Debug)]
pub struct Replica {
    frontend: Frontend,
    /// Held for reading by every dial until it is established.
    up: Arc<RwLock<bool>>,
}

impl Replica {
    /// All of a pair's, up.
    pub fn all_of(pair: &Pair) -> Result<Vec<Self>> {
        pair.servers.iter().map(|server| Ok(Self::new(server.frontend.clone().reading_once()?))).collect()
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
    /// New dials a second, on the average from the first to the last.
    pub rate: u32,
    /// How long a dialled connection is held between its two echoes.
    pub hold: Duration,
    /// Connections that carry bytes steadily from the beginning to the end.
    pub transfers: usize,
}

impl Plan {
    /// The most connections at once: those under way, and those that are held.
    fn at_once(&self) -> usize {
        let held = f64::from(self.rate) * self.hold.as_secs_f64();
        AT_ONCE + held.ceil() as usize
    }
}

/// Whether the dials keep up with their rate.
#[derive(Clone, Debug)]
pub struct Pace {
    tally: Arc<Tally>,
    rate: u32,
    began: Instant,
}

impl Pace {
    /// Waits until as many dials have begun as the rate asks for, and yields their number and the time they took.
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

/// Puts the load on `replicas`, towards an echo at `target`, while `events` runs; then lets everything end in order.
pub async fn during<T>(
    replicas: &[Replica],
    target: &str,
    plan: &Plan,
    events: impl AsyncFnOnce(Pace) -> Result<T>,
) -> Result<(Report, T)> {
    let tally = Arc::<Tally>::default();
    let stop = watch::Sender::new(false);
    let mut transfers = JoinSet::new();
    for seed in 0..plan.transfers {
        let replica = replicas.get(seed % replicas.len().max(1)).context("no replica")?;
        let conn = replica.dial(target).await.context("a replica that is up")??;
        transfers.spawn(transfer(conn, (seed as u64) << 32, stop.subscribe(), tally.clone()));
    }
    let pace = Pace { tally: tally.clone(), rate: plan.rate, began: Instant::now() };
    let events = async {
        let done = events(pace.clone()).await?;
        Ok::<_, anyhow::Error>((done, pace.kept().await?))
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

/// A little faster than the rate, so that what the machine delays is made up for.
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

/// Dials one replica that is up, and has two echoes with a pause between them.
async fn dial(replicas: Vec<Replica>, target: String, hold: Duration, number: usize, tally: Arc<Tally>) {
    for turn in 0..replicas.len() {
        let Some(replica) = replicas.get((number + turn) % replicas.len()) else { return };
        let began = Instant::now();
        let Some(dialled) = replica.dial(&target).await else { continue };
        match dialled.context("dial") {
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

/// A connection that moves steadily from now on; every byte of it is compared.
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
