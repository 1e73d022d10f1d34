//! Clients beside a fault: each dials, echoes a payload with a checksum, closes, and begins again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::exchange::{echo, echoed, pool};
use crate::figures::percentile;
use crate::frontend::{Conn, Frontend};
use crate::payload::{Payload, unless_lost};
use crate::wait::{DEADLINE, until};

/// The pause of a client between two exchanges.
const PAUSE: Duration = Duration::from_millis(10);

/// Bytes of an exchange.
const BYTES: u64 = 1_000;

/// A latency below this is no effect of a fault: this program, the programs under test and the fault share the same CPUs.
const FLOOR: Duration = Duration::from_millis(50);

/// One dial with its exchange.
struct Sample {
    ended: Instant,
    took: Duration,
    error: Option<String>,
}

/// The running clients. Dropping it ends them.
pub(super) struct Load {
    samples: Arc<Mutex<Vec<Sample>>>,
    _clients: JoinSet<()>,
}

impl Load {
    pub(super) fn start(frontend: &Frontend, target: &str, clients: usize) -> Self {
        let samples = Arc::<Mutex<Vec<Sample>>>::default();
        let mut running = JoinSet::new();
        for client in 0..clients as u64 {
            let (frontend, target, samples) = (frontend.clone(), target.to_owned(), Arc::clone(&samples));
            running.spawn(async move {
                for turn in 0_u64.. {
                    let began = Instant::now();
                    let payload = Payload::new(client << 32 | turn, BYTES);
                    let error = echoed(&frontend, &target, payload).await.err();
                    let error = error.map(|error| format!("{error:#}"));
                    let ended = Instant::now();
                    samples.lock().push(Sample { ended, took: ended - began, error });
                    sleep(PAUSE).await;
                }
            });
        }
        Self { samples, _clients: running }
    }

    /// Waits until `count` more exchanges have succeeded; returns their 99th percentile.
    ///
    /// # Errors
    /// An exchange failed, or they took too long.
    pub(super) async fn next(&self, count: usize) -> Result<Duration> {
        let since = Instant::now();
        self.since(since, count).await
    }

    /// The same for the exchanges that have ended since a moment.
    pub(super) async fn since(&self, since: Instant, count: usize) -> Result<Duration> {
        let enough = || async { (self.all(since).len() >= count).then_some(()) };
        until("exchanges beside the fault", DEADLINE, enough).await?;
        let all = self.all(since);
        let failed: Vec<&String> = all.iter().filter_map(|(_, error)| error.as_ref()).collect();
        ensure!(failed.is_empty(), "{} of {} exchanges failed: {}", failed.len(), all.len(), failed[0]);
        let mut times: Vec<Duration> = all.iter().map(|(took, _)| *took).collect();
        Ok(percentile(&mut times, 99).unwrap_or_default())
    }

    fn all(&self, since: Instant) -> Vec<(Duration, Option<String>)> {
        let samples = self.samples.lock();
        let recent = samples.iter().rev().take_while(|sample| sample.ended >= since);
        recent.map(|sample| (sample.took, sample.error.clone())).collect()
    }
}

/// Fails if the 99th percentile of others has doubled.
pub(super) fn ensure_calm(before: Duration, beside: Duration) -> Result<()> {
    ensure!(beside <= (before * 2).max(FLOOR), "others' p99 {beside:.1?}, and {before:.1?} before the fault");
    Ok(())
}

/// Establishes connections, 32 at a time.
pub(super) async fn dialed(frontend: &Frontend, target: &str, count: usize) -> Result<Vec<Conn>> {
    let dials = (0..count).map(|_| {
        let (frontend, target) = (frontend.clone(), target.to_owned());
        async move { frontend.dial(&target).await }
    });
    pool(32, dials).await
}

/// A connection that echoes a payload with a checksum again and again, until it ends. Returns the moment of its end.
///
/// # Errors
/// Other bytes came back.
pub(super) async fn exchange_until_lost(mut conn: Conn, seed: u64, pause: Duration) -> Result<Instant> {
    for turn in 0.. {
        match unless_lost(echo(conn, Payload::new(seed << 32 | turn, BYTES)).await)? {
            Some(open) => conn = open,
            None => return Ok(Instant::now()),
        }
        sleep(pause).await;
    }
    Ok(Instant::now())
}
