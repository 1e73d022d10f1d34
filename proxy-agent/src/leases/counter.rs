//! The task that counts leases: a list, then a watch, and a list again whenever the watch may be stale.
//!
//! ```text
//!            ┌──────── error: pause, doubling ────────┐
//!            ▼                                        │
//!   ──▶ list ──ok──▶ watch ── events, ends in order ──┤
//!            ▲          │  a lease is about to expire: list
//!            └── 410 ───┘
//! ```
//!
//! The absence of events never lowers the count: before a lease stops to count, the task lists the leases once more, and while
//! the API cannot be reached the last count holds.

use std::time::Duration;

use cluster::{ApiError, Clock, Freshness, Leases, WatchEvent};
use flags::GoDuration;
use serve::metrics::LeaseCall;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::LabelSelector;
use super::cache::{LeaseCache, Now};
use crate::client_set::Leased;
use crate::metrics::Metrics;

/// Interval of lists if the API does not permit a watch.
const LIST_INTERVAL: Duration = Duration::from_secs(15);
/// The pause after an error. It doubles with each further error.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after an error, without its jitter.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Shortest pause between two watches, or between two checks of expiring leases.
const MIN_WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest duration of a watch; the longest is twice that, at random (client-go: 5 to 10 minutes).
const MIN_WATCH_DURATION: Duration = Duration::from_secs(300);

/// Counts servers by their leases.
pub struct LeaseCounter {
    leases: Leases,
    /// The label selector.
    selector: String,
    /// The wall clock.
    clock: Clock,
    /// Divisor of all pauses; 1 except in tests.
    speedup: u32,
    metrics: Metrics,
    count: watch::Sender<Option<Leased>>,
    cache: LeaseCache,
    began: Instant,
    /// The time of the last complete list, by the monotonic clock. A lease that expired after it counts until the API has
    /// confirmed the expiry.
    believed: Duration,
    /// The API could not be reached since the last list.
    unreachable: bool,
    failures: u32,
    /// Earliest time of the next check of expiring leases.
    next_check: Instant,
}

impl LeaseCounter {
    /// A counter of the leases that the selector matches, and the receiver of its count: `None` before the first list.
    pub fn new(
        leases: Leases,
        selector: &LabelSelector,
        metrics: Metrics,
    ) -> (Self, watch::Receiver<Option<Leased>>) {
        let (count, counted) = watch::channel(None);
        let now = Instant::now();
        let counter = Self {
            leases,
            selector: selector.to_string(),
            clock: Clock::system(),
            speedup: 1,
            metrics,
            count,
            cache: LeaseCache::default(),
            began: now,
            believed: Duration::ZERO,
            unreachable: false,
            failures: 0,
            next_check: now,
        };
        (counter, counted)
    }

    /// Counts forever.
    pub async fn run(mut self) {
        let (mut freshness, mut told) = (Freshness::Any, false);
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
                    Ok(last) => version = last,
                    // The resource version is too old.
                    Err(error) if error.is(410) => {
                        freshness = Freshness::Latest;
                        sleep_until(began + self.scaled(MIN_WATCH_INTERVAL)).await;
                        break;
                    }
                    Err(error) if error.is(403) || error.is(405) => {
                        if !std::mem::replace(&mut told, true) {
                            tracing::warn!(%error, "Leases cannot be watched; they are listed every 15 s instead");
                            self.metrics.journal.api_failed(&format!("leases: {error}"));
                        }
                        // Without watches a successful list is the only success that resets the failures.
                        self.failures = 0;
                        sleep(self.scaled(jittered(LIST_INTERVAL))).await;
                        break;
                    }
                    Err(error) => {
                        self.failed("watch", &error).await;
                        break;
                    }
                }
                sleep_until(began + self.scaled(MIN_WATCH_INTERVAL)).await;
            }
        }
    }

    /// Lists the leases and takes the list; returns the version from which to watch.
    async fn list(&mut self, freshness: Freshness) -> Result<String, ApiError> {
        let asked = Instant::now();
        let listed = self.leases.list(&self.selector, freshness).await;
        let outcome = ApiError::outcome(&listed);
        self.metrics.lease_lists.record(LeaseCall::List, outcome, Some(asked.elapsed()));
        let list = listed?;
        let (now, unreachable) = (self.now(), self.unreachable || list.slow);
        self.cache.replace_all(&list.items, now, unreachable.then_some(self.believed));
        (self.believed, self.unreachable) = (now.steady, false);
        self.publish();
        Ok(list.metadata.resource_version)
    }

    /// Watches until the watch ends; returns the version from which the next watch continues.
    async fn watch(&mut self, version: &str) -> Result<String, ApiError> {
        let lasting = MIN_WATCH_DURATION.mul_f64(1.0 + rand::random::<f64>());
        let opened = self.leases.watch(&self.selector, version, lasting).await;
        self.metrics.lease_lists.record(LeaseCall::Watch, ApiError::outcome(&opened), None);
        let (mut watch, mut version) = (opened?, version.to_owned());
        loop {
            let check = self.check_at();
            let event = tokio::select! {
                event = watch.next() => event,
                () = sleep_until(check.unwrap_or(self.began)), if check.is_some() => {
                    self.check().await;
                    continue;
                }
            };
            match event? {
                Some(WatchEvent::There(lease)) => {
                    version.clone_from(&lease.metadata.resource_version);
                    self.cache.update(&lease, self.now());
                }
                Some(WatchEvent::Gone(lease)) => {
                    version.clone_from(&lease.metadata.resource_version);
                    self.cache.remove(&lease.metadata.name);
                }
                Some(WatchEvent::Bookmark(at)) => version = at,
                None => return Ok(version),
            }
            self.failures = 0;
            self.publish();
        }
    }

    /// When to check the next lease that expires by the observed events; not too soon after the last check. After a failed check
    /// another one is due even if all leases have been renewed since.
    fn check_at(&self) -> Option<Instant> {
        if self.unreachable {
            return Some(self.next_check);
        }
        let end = self.cache.next_end(self.believed)?;
        Some((self.began + end).max(self.next_check))
    }

    /// A lease has expired by the observed events: lists the leases to confirm that.
    async fn check(&mut self) {
        self.next_check = Instant::now() + self.scaled(MIN_WATCH_INTERVAL);
        match self.list(Freshness::Latest).await {
            Ok(_) => self.failures = 0,
            Err(error) => {
                let count = self.known();
                tracing::warn!(
                    "Could not list leases to update server count, using fallback count ({count}): {error}"
                );
                self.set_unreachable(&error);
                self.next_check = Instant::now() + self.next_pause();
            }
        }
    }

    async fn failed(&mut self, doing: &str, error: &ApiError) {
        self.set_unreachable(error);
        let wait = self.next_pause().max(error.retry_after().unwrap_or_default().min(MAX_PAUSE));
        let (count, retry_in) = (self.known(), GoDuration::from(wait));
        tracing::error!(
            "Could not {doing} leases: {error} (the last count holds: {count}; trying again in {retry_in})"
        );
        sleep(wait).await;
    }

    fn set_unreachable(&mut self, error: &ApiError) {
        self.metrics.journal.api_failed(&format!("leases: {error}"));
        self.unreachable = true;
        if self.count.borrow().is_some() {
            self.publish();
        }
    }

    fn next_pause(&mut self) -> Duration {
        let doubled = MIN_PAUSE.saturating_mul(2_u32.saturating_pow(self.failures)).min(MAX_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.scaled(jittered(doubled))
    }

    fn scaled(&self, pause: Duration) -> Duration {
        pause / self.speedup
    }

    fn now(&self) -> Now {
        Now { wall: self.clock.now(), steady: self.began.elapsed() }
    }

    /// The last count, for the log.
    fn known(&self) -> usize {
        self.count.borrow().as_ref().map_or(1, |leased| leased.count.max(1))
    }

    fn publish(&mut self) {
        let leased = Leased { stale: self.unreachable, ..self.cache.leased(self.believed) };
        let was_empty = self.count.borrow().as_ref().is_some_and(|before| before.count == 0);
        let is_empty = leased.count == 0;
        if self.count.borrow().as_ref() != Some(&leased) {
            self.count.send_replace(Some(leased));
        }
        if is_empty && !was_empty {
            tracing::warn!(
                "No valid leases found, assuming server count of 1, or the count that servers announce"
            );
        }
    }
}

/// Lengthens a pause by up to a quarter, so that agents do not call the API in step.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + rand::random::<f64>() / 4.0)
}

#[cfg(test)]
#[path = "counter_tests.rs"]
mod tests;
