//! Deletes expired leases of other servers.
//!
//! The times in a lease come from another machine's clock, which may be hours off. So a lease is deleted only if its own times
//! say that it has expired *and* it has not changed for its whole duration by our monotonic clock; or if it has not changed for
//! twice its duration, whatever its times say. A live server renews its lease twice in that time. (Go uses the wall clock
//! alone: a server whose clock is ahead deletes the leases of all others every 15 s.)

use std::collections::HashMap;
use std::time::Duration;

use cluster::{ApiError, Clock, Freshness, Lease, Leases, Moment, lease};
use serve::metrics::LeaseCall;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{LEASE_SECONDS, LeaseSettings, pause};
use crate::metrics::Metrics;

/// Finds expired leases and deletes them.
pub(super) struct Collector {
    leases: Leases,
    settings: LeaseSettings,
    metrics: Metrics,
    sightings: Sightings,
}

impl Collector {
    pub(super) fn new(leases: Leases, settings: LeaseSettings, metrics: Metrics) -> Self {
        Self { leases, settings, metrics, sightings: Sightings::default() }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        let began = Instant::now();
        loop {
            tokio::select! {
                () = self.collect(began) => {}
                () = stop.cancelled() => return,
            }
            if !pause(self.settings.every, &stop).await {
                return;
            }
        }
    }

    async fn collect(&mut self, began: Instant) {
        let asked = Instant::now();
        let listed = self.leases.list(&self.settings.selector(), Freshness::Latest).await;
        let outcome = ApiError::outcome(&listed);
        self.metrics.lease_lists.record(LeaseCall::List, outcome, Some(asked.elapsed()));
        if listed.as_ref().map_or(true, |list| list.slow) {
            // No server could renew meanwhile, so earlier observations prove nothing.
            self.sightings = Sightings::default();
        }
        let leases = match listed {
            Ok(list) => list.items,
            Err(error) => {
                self.metrics.journal.api_failed(&format!("leases: {error}"));
                return tracing::error!("Could not list leases to garbage collect: {error}");
            }
        };
        let own = self.settings.name();
        let others: Vec<Lease> = leases.into_iter().filter(|lease| lease.metadata.name != own).collect();
        for (name, version) in self.sightings.look(&others, Clock::system().now(), began.elapsed()) {
            let asked = Instant::now();
            let deleted = self.leases.delete(&name, Some(&version)).await;
            let outcome = ApiError::outcome(&deleted);
            self.metrics.lease_deletes.record(LeaseCall::Delete, outcome, Some(asked.elapsed()));
            match deleted {
                Ok(()) => {
                    self.metrics.culled_leases.inc();
                    tracing::info!(lease = name, "Expired lease deleted");
                }
                Err(error) if error.is(404) => {
                    tracing::debug!(target: "v4", "Lease {name} was already deleted")
                }
                Err(error) if error.is(409) => tracing::debug!(target: "v4", "Lease {name} was renewed"),
                Err(error) => {
                    self.metrics.journal.api_failed(&format!("leases: {error}"));
                    tracing::error!("Could not delete lease {name}: {error}");
                }
            }
        }
    }
}

/// The version of each lease, and since when it has been unchanged on our monotonic clock.
#[derive(Debug, Default)]
struct Sightings(HashMap<String, (String, Duration)>);

impl Sightings {
    /// Takes a complete list; returns the names and versions of the expired leases. `now` is the wall clock, `elapsed` the
    /// monotonic clock.
    fn look(&mut self, leases: &[Lease], now: Moment, elapsed: Duration) -> Vec<(String, String)> {
        let mut before = std::mem::take(&mut self.0);
        let mut expired = Vec::new();
        for lease in leases {
            let (name, version) = (&lease.metadata.name, &lease.metadata.resource_version);
            let known = before.remove(name).filter(|(seen, _)| seen == version);
            let since = known.map_or(elapsed, |(_, since)| since);
            self.0.insert(name.clone(), (version.clone(), since));
            let unchanged = elapsed.saturating_sub(since);
            // A lease without a duration gets ours, so that no lease is deleted when it is first seen.
            let lasts = Some(lease::duration(lease)).filter(|lasts| !lasts.is_zero());
            let lasts = lasts.unwrap_or(Duration::from_secs(LEASE_SECONDS.unsigned_abs()));
            let over = !lease::is_valid(lease, now);
            if unchanged >= lasts && (over || unchanged >= lasts * 2) {
                expired.push((name.clone(), version.clone()));
            }
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;

    fn lease(name: &str, version: u64, renewed: Option<i64>) -> Lease {
        let mut lease = Lease::new("n", name);
        lease.metadata.resource_version = version.to_string();
        lease.spec.renew_time = renewed.map(Moment::from_seconds);
        lease.spec.lease_duration_seconds = Some(30);
        lease
    }

    /// Lists every 15 s for `steps` steps; returns the step in which the lease was found expired.
    fn found(steps: u64, at: impl Fn(u64) -> Lease) -> Option<u64> {
        let mut sightings = Sightings::default();
        (0..steps).find(|step| {
            let seconds = i64::try_from(step * 15).unwrap();
            let (now, elapsed) = (Moment::from_seconds(NOW + seconds), Duration::from_secs(step * 15));
            !sightings.look(&[at(*step)], now, elapsed).is_empty()
        })
    }

    #[test]
    fn expired_lease_is_found() {
        assert_eq!(found(9, |_| lease("a", 1, Some(NOW))), Some(2));
        assert_eq!(found(9, |_| lease("a", 1, Some(NOW - 5_000))), Some(2));
        assert_eq!(found(9, |_| lease("a", 1, None)), Some(2));
    }

    #[test]
    fn renewed_lease_stays_despite_clock_skew() {
        for skew in [0, 3_600, -3_600, 86_400, -86_400] {
            let renewing = |step: u64| lease("a", step, Some(NOW + skew + i64::try_from(step).unwrap() * 15));
            assert_eq!(found(50, renewing), None, "{skew}");
        }
    }

    #[test]
    fn expired_lease_of_a_fast_clock_is_found() {
        assert_eq!(found(9, |_| lease("a", 1, Some(NOW + 86_400))), Some(4));
    }

    #[test]
    fn a_lease_with_absurd_times_is_found_within_two_hours() {
        for (renewed, lasts) in [(NOW, i64::MAX), (NOW, i64::from(i32::MAX)), (250_000_000_000, i64::MAX)] {
            let absurd = |_| {
                let mut lease = lease("a", 1, Some(renewed));
                lease.spec.lease_duration_seconds = Some(lasts);
                lease
            };
            let step = found(1_000, absurd).expect("found");
            assert!((240..=480).contains(&step), "{renewed} {lasts}: after {} s", step * 15);
        }
    }

    #[test]
    fn a_lease_that_returns_counts_anew() {
        let mut sightings = Sightings::default();
        let now = Moment::from_seconds(NOW);
        let old = [lease("a", 1, Some(NOW - 100))];
        assert!(sightings.look(&old, now, Duration::ZERO).is_empty());
        assert!(sightings.look(&[], now, Duration::from_secs(15)).is_empty());
        assert!(sightings.look(&old, now, Duration::from_secs(30)).is_empty());
        assert_eq!(sightings.look(&old, now, Duration::from_secs(60)).len(), 1);
    }
}
