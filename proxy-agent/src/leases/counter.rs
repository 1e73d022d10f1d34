//! The task that keeps the count: a list, then a watch; a list again whenever the watch cannot be believed.
//!
//! ```text
//!            ┌──────── error: pause, doubling ────────┐
//!            ▼                                        │
//!   ──▶ list ──ok──▶ watch ── events, ends in order ──┤
//!            ▲          │  a lease is about to end: list, then believe it
//!            └── 410 ───┘
//! ```
//!
//! A count never falls because of what was *not* heard: before a lease stops counting the API is asked once more,
//! and while it cannot be asked the last count holds.

use std::time::Duration;

use cluster::{ApiError, Clock, Freshness, LeaseList, Leases, Watch, WatchEvent};
use flags::GoDuration;
use serve::metrics::LeaseCall;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::book::{Book, Now};
use crate::args::LabelSelector;
use crate::metrics::Metrics;

/// How often the servers' count is asked for where watching is not allowed.
const POLL: Duration = Duration::from_secs(15);
/// The pause behind an error, doubled each time up to the second.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The least time from one watch, or one check of a lease's end, to the next.
const BREATH: Duration = Duration::from_secs(1);
/// How long a watch lasts at least; up to twice as long, at random (client-go: 5 to 10 minutes).
const WATCH: Duration = Duration::from_secs(300);

/// What to count, and how often to ask.
#[derive(Debug, Clone)]
pub struct CounterSettings {
    /// Which leases.
    pub selector: LabelSelector,
    /// What the wall clock says.
    pub clock: Clock,
    /// By what all pauses are divided; 1 but for tests.
    pub pace: u32,
}

/// Counts servers by their leases.
pub struct LeaseCounter {
    leases: Leases,
    settings: CounterSettings,
    metrics: Metrics,
    count: watch::Sender<Option<usize>>,
    book: Book,
    began: Instant,
    /// Until when ends of leases were believed, on the steady clock: the last complete list. What ended since
    /// counts until the API has confirmed it.
    believed: Duration,
    /// The API could not be asked since.
    blind: bool,
    failures: u32,
    /// The next look at leases that are about to end is not before this.
    next_check: Instant,
}

/// Why a watch is over.
enum Over {
    /// In order: the next one goes on from this version.
    Ended(String),
    /// The version is too old.
    Stale,
    /// Something failed.
    Failed(ApiError),
}

impl LeaseCounter {
    /// A counter of these leases, and where its count is told: `None` before the first list, then at least 1.
    pub fn new(
        leases: Leases,
        settings: CounterSettings,
        metrics: Metrics,
    ) -> (Self, watch::Receiver<Option<usize>>) {
        let (count, counted) = watch::channel(None);
        let book = Book::new(settings.selector.clone());
        let now = Instant::now();
        let counter = Self {
            leases,
            settings,
            metrics,
            count,
            book,
            began: now,
            believed: Duration::ZERO,
            blind: false,
            failures: 0,
            next_check: now,
        };
        (counter, counted)
    }

    /// Counts for ever.
    pub async fn run(mut self) {
        let mut freshness = Freshness::Any;
        loop {
            let mut version = match self.list(freshness).await {
                Ok(version) => version,
                Err(error) => {
                    self.failed("list", &error).await;
                    continue;
                }
            };
            freshness = Freshness::Any;
            loop {
                let began = Instant::now();
                match self.watch(&version).await {
                    Over::Ended(last) => version = last,
                    Over::Stale => {
                        freshness = Freshness::Latest;
                        sleep_until(began + self.paced(BREATH)).await;
                        break;
                    }
                    Over::Failed(error) if error.is(403) || error.is(405) => {
                        tracing::warn!(%error, "Leases cannot be watched; they are listed every 15 s instead");
                        // The list is all that there is to go right.
                        self.failures = 0;
                        sleep(self.paced(jittered(POLL))).await;
                        break;
                    }
                    Over::Failed(error) => {
                        self.failed("watch", &error).await;
                        break;
                    }
                }
                sleep_until(began + self.paced(BREATH)).await;
            }
        }
    }

    /// Lists, and takes the list in; from where to watch.
    async fn list(&mut self, freshness: Freshness) -> Result<String, ApiError> {
        let list = self.ask(freshness).await?;
        let (now, blind) = (self.now(), self.blind || list.slow);
        self.book.list(&list.items, now, blind.then_some(self.believed));
        (self.believed, self.blind) = (now.steady, false);
        self.tell();
        Ok(list.metadata.resource_version)
    }

    async fn ask(&self, freshness: Freshness) -> Result<LeaseList, ApiError> {
        let asked = Instant::now();
        // The selector is applied there, to spare both sides the leases of everybody else, and here again.
        let listed = self.leases.list(&self.settings.selector.to_string(), freshness).await;
        if let Some(status) = self.count_call(LeaseCall::List, &listed) {
            self.metrics.lease_lists.observe(status, asked.elapsed());
        }
        listed
    }

    /// Counts a call under its status, which is returned; without an answer it has none (as in Go), and is counted by
    /// itself.
    fn count_call<T>(&self, call: LeaseCall, result: &Result<T, ApiError>) -> Option<u16> {
        match ApiError::outcome(result) {
            Ok((status, reason)) => {
                self.metrics.lease_lists.count(status, reason);
                Some(status)
            }
            Err(why) => {
                self.metrics.unanswered.count(call, why);
                None
            }
        }
    }

    /// Watches until that is over.
    async fn watch(&mut self, version: &str) -> Over {
        let lasting = WATCH.mul_f64(1.0 + rand::random::<f64>());
        let opened = self.leases.watch(&self.settings.selector.to_string(), version, lasting).await;
        self.count_call(LeaseCall::Watch, &opened);
        match opened {
            Ok(watch) => self.follow(watch, version.to_owned()).await,
            Err(error) if error.is(410) => Over::Stale,
            Err(error) => Over::Failed(error),
        }
    }

    async fn follow(&mut self, mut watch: Watch, mut version: String) -> Over {
        loop {
            let check = self.check_at();
            let event = tokio::select! {
                event = watch.next() => event,
                () = at(check) => {
                    self.check().await;
                    continue;
                }
            };
            match event {
                Ok(Some(WatchEvent::There(lease))) => {
                    version.clone_from(&lease.metadata.resource_version);
                    self.book.there(&lease, self.now());
                }
                Ok(Some(WatchEvent::Gone(lease))) => {
                    version.clone_from(&lease.metadata.resource_version);
                    self.book.gone(&lease.metadata.name);
                }
                Ok(Some(WatchEvent::Bookmark(at))) => version = at,
                Ok(None) => return Over::Ended(version),
                Err(error) if error.is(410) => return Over::Stale,
                Err(error) => return Over::Failed(error),
            }
            self.failures = 0;
            self.tell();
        }
    }

    /// When the next lease ends, by what was heard; not too soon behind the last check.
    fn check_at(&self) -> Option<Instant> {
        let end = self.book.next_end(self.believed)?;
        Some((self.began + end).max(self.next_check))
    }

    /// A lease has ended by what was heard; before that is believed the API is asked.
    async fn check(&mut self) {
        self.next_check = Instant::now() + self.paced(BREATH);
        match self.list(Freshness::Latest).await {
            Ok(_) => self.failures = 0,
            Err(error) => {
                let count = *self.count.borrow();
                tracing::warn!(
                    "Could not list leases to update server count, using fallback count ({}): {error}",
                    count.unwrap_or(1)
                );
                self.blind = true;
                self.next_check = Instant::now() + self.next_pause();
            }
        }
    }

    async fn failed(&mut self, doing: &str, error: &ApiError) {
        self.blind = true;
        let wait = self.next_pause().max(error.retry_after().unwrap_or_default().min(LONGEST_PAUSE));
        let (count, retry_in) = (self.count.borrow().unwrap_or(1), GoDuration::from(wait));
        tracing::error!(
            "Could not {doing} leases: {error} (the last count holds: {count}; trying again in {retry_in})"
        );
        sleep(wait).await;
    }

    fn next_pause(&mut self) -> Duration {
        let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.paced(jittered(doubled))
    }

    fn paced(&self, pause: Duration) -> Duration {
        pause / self.settings.pace.max(1)
    }

    fn now(&self) -> Now {
        Now { wall: self.settings.clock.now(), steady: self.began.elapsed() }
    }

    fn tell(&mut self) {
        let valid = self.book.count(self.believed);
        let count = valid.max(1);
        let changed = self.count.send_if_modified(|told| told.replace(count) != Some(count));
        if changed && valid == 0 {
            tracing::warn!("No valid leases found, assuming server count of 1");
        }
    }
}

/// Longer by up to a quarter, so that agents do not ask in step.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + rand::random::<f64>() / 4.0)
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl std::fmt::Debug for LeaseCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseCounter").field("leases", &self.leases).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "counter_tests.rs"]
mod tests;
