//! The leases that count, as data: the last state of each, and until when it counts.
//!
//! The times in a lease come from another machine's clock. When a lease is first seen they are believed, for at most one
//! duration. After that only renewals matter, by our own monotonic clock: every observed renewal makes the lease count for its
//! duration. So the first renewal, within 15 s, corrects the effect of a clock that is off by a day, here or there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::{Lease, Moment, lease};
use net::host_port::host_port;

use crate::client_set::{Advertised, Leased, ServerAddress};

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// The wall clock.
    pub(super) wall: Moment,
    /// The monotonic clock, since the task's start.
    pub(super) steady: Duration,
}

/// The observed leases.
#[derive(Debug, Default)]
pub(super) struct LeaseCache {
    entries: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    renewed: Option<Moment>,
    /// By the monotonic clock.
    counts_until: Duration,
    holder: Option<Arc<str>>,
    advertised: Option<Advertised>,
}

impl LeaseCache {
    /// Takes a complete list. `unreachable_since`: the API could not be reached since then, so servers could not renew their leases
    /// either, and leases that counted at that time count for a full duration again.
    pub(super) fn replace_all(&mut self, leases: &[Lease], now: Now, unreachable_since: Option<Duration>) {
        let mut before = std::mem::take(&mut self.entries);
        for lease in leases {
            let known = before.remove_entry(&lease.metadata.name);
            let counted = matches!((&known, unreachable_since), (Some((_, entry)), Some(since)) if entry.counts_until > since);
            self.entries.extend(known);
            self.update(lease, now);
            if counted && let Some(entry) = self.entries.get_mut(&lease.metadata.name) {
                entry.counts_until = entry.counts_until.max(now.steady + lease::duration(lease));
            }
        }
    }

    /// Takes the present state of a lease.
    pub(super) fn update(&mut self, lease: &Lease, now: Now) {
        let name = &lease.metadata.name;
        let (renewed, lasts) = (lease.spec.renew_time.or(lease.spec.acquire_time), lease::duration(lease));
        let counts_until = match self.entries.get(name) {
            Some(entry) if entry.renewed == renewed => entry.counts_until,
            Some(_) => now.steady + lasts,
            None => {
                let left = lease::end(lease).map_or(Duration::ZERO, |end| end.since(now.wall));
                now.steady + left.min(lasts)
            }
        };
        let entry = Entry { renewed, counts_until, holder: holder(lease), advertised: advertised(lease) };
        self.entries.insert(name.clone(), entry);
    }

    /// Removes a deleted lease.
    pub(super) fn remove(&mut self, name: &str) {
        self.entries.remove(name);
    }

    /// The leases that count at that moment of the monotonic clock, their holders, and their addresses in order.
    pub(super) fn leased(&self, at: Duration) -> Leased {
        let counted = self.entries.values().filter(|entry| entry.counts_until > at);
        let mut advertised: Vec<_> = counted.clone().filter_map(|entry| entry.advertised.clone()).collect();
        advertised.sort_by_cached_key(|told| (told.dial.to_string(), Arc::clone(&told.server_id)));
        let holders = counted.clone().filter_map(|entry| entry.holder.clone()).collect();
        Leased { count: counted.count(), holders, advertised, stale: false }
    }

    /// When the next of these leases stops to count, unless it is renewed.
    pub(super) fn next_end(&self, at: Duration) -> Option<Duration> {
        self.entries.values().map(|entry| entry.counts_until).filter(|end| *end > at).min()
    }
}

fn holder(lease: &Lease) -> Option<Arc<str>> {
    lease.spec.holder_identity.as_deref().filter(|id| !id.is_empty()).map(Arc::from)
}

/// The address that a lease tells; none if it is not `HOST:PORT`.
fn advertised(lease: &Lease) -> Option<Advertised> {
    let (host, port) = host_port(lease.metadata.annotations.get(lease::AGENT_ADDRESS)?)?;
    Some(Advertised { dial: ServerAddress { host: host.to_owned(), port }, server_id: holder(lease)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;

    fn at(seconds: u64) -> Now {
        let wall = Moment::from_seconds(NOW + i64::try_from(seconds).unwrap());
        Now { wall, steady: Duration::from_secs(seconds) }
    }

    fn lease(name: &str, renewed: i64) -> Lease {
        let mut lease = Lease::new("n", name);
        lease.spec.renew_time = Some(Moment::from_seconds(NOW + renewed));
        lease.spec.lease_duration_seconds = Some(30);
        lease
    }

    fn count(cache: &LeaseCache, seconds: u64) -> usize {
        cache.leased(Duration::from_secs(seconds)).count
    }

    #[test]
    fn holders_and_addresses_are_those_of_leases_that_count() {
        let told = |name: &str, address: &str| {
            let mut lease = lease(name, 0);
            lease.metadata.annotations.insert(lease::AGENT_ADDRESS.into(), address.into());
            lease.spec.holder_identity = Some(name.into());
            lease
        };
        let mut cache = LeaseCache::default();
        let mut over = told("over", "10.0.0.9:1");
        over.spec.renew_time = Some(Moment::from_seconds(NOW - 30));
        cache.replace_all(
            &[told("b", "[::1]:2"), told("a", "10.0.0.1:1"), told("bad", "10.0.0.1"), over],
            at(0),
            None,
        );
        let leased = cache.leased(Duration::ZERO);
        let shown: Vec<_> =
            leased.advertised.iter().map(|told| format!("{} {}", told.dial, told.server_id)).collect();
        assert_eq!((leased.count, shown), (3, vec!["10.0.0.1:1 a".to_owned(), "[::1]:2 b".to_owned()]));
        assert_eq!(leased.holders, ["a", "b", "bad"].map(Arc::from).into());
        cache.update(&told("a", "10.0.0.2:1"), at(1));
        assert_eq!(cache.leased(Duration::ZERO).advertised[0].dial.host, "10.0.0.2", "without a renewal");
    }

    #[test]
    fn leases_count_while_they_are_valid() {
        let mut cache = LeaseCache::default();
        let mut never = lease("never", 0);
        never.spec.renew_time = None;
        cache.replace_all(&[lease("a", 0), lease("b", -10), lease("over", -30), never], at(0), None);
        assert_eq!((count(&cache, 0), count(&cache, 19), count(&cache, 20), count(&cache, 30)), (2, 2, 1, 0));
        assert_eq!(cache.next_end(Duration::ZERO), Some(Duration::from_secs(20)));
        cache.update(&lease("b", 15), at(15));
        assert_eq!((count(&cache, 29), count(&cache, 30), count(&cache, 45)), (2, 1, 0));
        cache.remove("b");
        assert_eq!((count(&cache, 29), cache.next_end(Duration::from_secs(31))), (1, None));
    }

    #[test]
    fn a_lease_with_absurd_times_counts_for_an_hour_at_most() {
        for (renewed, lasts) in
            [(0, i64::MAX), (0, i64::from(i32::MAX)), (250_000_000_000, i64::MAX), (i64::MIN, 30)]
        {
            let mut absurd = lease("a", 0);
            absurd.spec.renew_time = Some(Moment::from_seconds(renewed.saturating_add(NOW)));
            absurd.spec.lease_duration_seconds = Some(lasts);
            let mut cache = LeaseCache::default();
            cache.replace_all(&[absurd.clone()], at(0), None);
            assert_eq!(count(&cache, 3_600), 0, "{renewed} {lasts}: at first sight");
            absurd.spec.renew_time = Some(Moment::from_seconds(NOW + 1));
            cache.update(&absurd, at(10));
            assert_eq!((count(&cache, 11), count(&cache, 3_610)), (1, 0), "{renewed} {lasts}: renewed");
            // Seen again after an outage.
            cache.replace_all(&[absurd], at(20), Some(Duration::from_secs(15)));
            assert_eq!(
                (count(&cache, 21), count(&cache, 3_620)),
                (1, 0),
                "{renewed} {lasts}: after an outage"
            );
        }
    }

    #[test]
    fn complete_list_removes_missing_leases() {
        let mut cache = LeaseCache::default();
        cache.replace_all(&[lease("a", 0), lease("b", 0)], at(0), None);
        cache.replace_all(&[lease("b", 0)], at(5), None);
        assert_eq!((count(&cache, 5), count(&cache, 30)), (1, 0));
    }

    #[test]
    fn clocks_that_are_off_are_made_good_by_the_first_renewal() {
        for skew in [3_600, -3_600, 86_400, -86_400] {
            let mut cache = LeaseCache::default();
            cache.replace_all(&[lease("a", skew), lease("dead", skew)], at(0), None);
            for step in 1..8 {
                let seconds = step * 15;
                cache.update(&lease("a", skew + i64::try_from(seconds).unwrap()), at(seconds));
                let dead = usize::from(skew > 0 && seconds < 30);
                assert_eq!(count(&cache, seconds), 1 + dead, "{skew} after {seconds} s");
            }
        }
    }

    #[test]
    fn an_expired_lease_that_was_never_seen_does_not_count_after_an_outage() {
        let mut cache = LeaseCache::default();
        cache.replace_all(&[lease("over", -30), lease("a", 0)], at(5), Some(Duration::ZERO));
        assert_eq!((count(&cache, 5), count(&cache, 30)), (1, 0));
    }

    #[test]
    fn after_an_outage_counted_leases_get_time_to_renew() {
        let mut cache = LeaseCache::default();
        cache.replace_all(&[lease("a", 0), lease("over", -29)], at(0), None);
        // The API was unreachable from 10 s to 300 s; "over" had expired before.
        cache.replace_all(&[lease("a", 0), lease("over", -29)], at(300), Some(Duration::from_secs(10)));
        assert_eq!((count(&cache, 300), count(&cache, 329), count(&cache, 330)), (1, 1, 0));
    }
}
