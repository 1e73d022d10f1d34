//! A rate limit for log lines that peers can cause: one a minute for each cause and peer, with the number of suppressed
//! lines.
//!
//! ```text
//! if let Some(suppressed) = limit.due("authentication", address.ip()) {
//!     tracing::error!(%address, suppressed, "Client authentication failed");
//! }
//! ```

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time between two lines about one cause and peer address.
const PERIOD: Duration = Duration::from_secs(60);

/// The highest number of cause and peer pairs, at about 60 bytes each. Further peers share one entry for each cause.
const MAX_ENTRIES: usize = 1_024;

/// Decides which lines are written. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct LogLimit(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Secret, so that no peer can take another one's entry.
    hasher: RandomState,
    entries: HashMap<Key, Entry>,
    /// When expired entries were last removed.
    purged: Option<Instant>,
}

/// The shortest time between two removals of expired entries.
const PURGE_EVERY: Duration = Duration::from_secs(1);

/// A cause and a peer's hash; `None` stands for all peers without an entry.
type Key = (&'static str, Option<u64>);

#[derive(Debug)]
struct Entry {
    at: Instant,
    suppressed: u64,
}

impl LogLimit {
    /// Whether a line about this cause and peer is due: `Some` with the number of lines suppressed since the last one.
    /// `cause` names the place in the code and contains no text of the peer.
    pub fn due(&self, cause: &'static str, peer: IpAddr) -> Option<u64> {
        self.due_for(cause, network(peer))
    }

    /// The same for a peer that is known by another name than its address.
    pub fn due_for(&self, cause: &'static str, peer: impl Hash) -> Option<u64> {
        let (mut state, now) = (self.0.lock(), Instant::now());
        let state = &mut *state;
        let mut key = (cause, Some(state.hasher.hash_one(peer)));
        if state.entries.len() >= MAX_ENTRIES && !state.entries.contains_key(&key) {
            if state.purged.is_none_or(|purged| now.duration_since(purged) >= PURGE_EVERY) {
                state.purged = Some(now);
                state.entries.retain(|_, entry| now.duration_since(entry.at) < PERIOD);
            }
            if state.entries.len() >= MAX_ENTRIES {
                key = (cause, None);
            }
        }
        let Some(entry) = state.entries.get_mut(&key) else {
            state.entries.insert(key, Entry { at: now, suppressed: 0 });
            return Some(0);
        };
        if now.duration_since(entry.at) < PERIOD {
            entry.suppressed += 1;
            return None;
        }
        entry.at = now;
        Some(std::mem::take(&mut entry.suppressed))
    }
}

/// Addresses that one peer can easily obtain count as one: in IPv6 a /64 network.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn peer(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[tokio::test(start_paused = true)]
    async fn one_line_a_minute_says_how_many_were_suppressed() {
        let limit = LogLimit::default();
        let mut lines = Vec::new();
        for second in 0..130 {
            for _ in 0..100 {
                lines.extend(limit.clone().due("token", peer(1)).map(|suppressed| (second, suppressed)));
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(lines, [(0, 0), (60, 5_999), (120, 5_999)]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_cause_and_address_has_its_own_limit() {
        let limit = LogLimit::default();
        assert_eq!(limit.due("token", peer(1)), Some(0));
        assert_eq!(limit.due("token", peer(2)), Some(0));
        assert_eq!(limit.due("metadata", peer(1)), Some(0));
        assert_eq!(limit.due("token", peer(1)), None);
        assert_eq!(limit.due("token", "::ffff:0.0.0.1".parse().unwrap()), None, "the same in IPv6");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_from_many_addresses_is_bounded_too() {
        let limit = LogLimit::default();
        let lines = (0..100_000).filter_map(|number| limit.due("token", peer(number))).count();
        assert_eq!(lines, MAX_ENTRIES + 1);
        assert!(limit.0.lock().entries.len() <= MAX_ENTRIES + 1);
        tokio::time::advance(PERIOD).await;
        assert_eq!(limit.due("token", peer(1 << 20)), Some(0), "there is room for new ones");
        assert_eq!(limit.0.lock().entries.len(), 1);
    }
}
