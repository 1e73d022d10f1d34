//! The discard budget: how many bytes a link may read only to drop them.
//!
//! After a close we keep reading and discarding, because the peer may not read our last bytes until its own writes
//! drain: a socket closed with unread bytes answers with a reset, which destroys the bytes that the peer has not read.
//! But a peer that sends without end would occupy a core. So each link may discard a fixed number of bytes in each
//! interval, over all its connections; the others wait for the next interval.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::Limits;
use crate::table::ConnKey;
use crate::time::Time;

/// The interval of [`Limits::discard_budget`].
const INTERVAL: Duration = Duration::from_millis(10);

/// The connections whose bytes are discarded, and the budget for them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Discards {
    /// In the order of their turns. A connection may have ended since: the caller checks.
    ring: VecDeque<ConnKey>,
    /// The start of the current interval; `None` before the first.
    began: Option<Time>,
    /// Bytes discarded in the interval.
    used: usize,
}

impl Discards {
    pub(crate) fn push(&mut self, key: ConnKey) {
        self.ring.push_back(key);
    }

    /// Whether a connection can be called now.
    pub(crate) fn is_ready(&mut self, now: Time, limits: &Limits) -> bool {
        !self.ring.is_empty() && self.left(now, limits) > 0
    }

    /// The next connection, and how many bytes it may discard now. None without a whole quantum.
    pub(crate) fn next(&mut self, now: Time, limits: &Limits) -> Option<(ConnKey, usize)> {
        if !self.is_ready(now, limits) {
            return None;
        }
        self.ring.pop_front().map(|key| (key, limits.discard_quantum))
    }

    /// How many bytes a connection may discard that was not called: none while others wait.
    pub(crate) fn allowance(&mut self, now: Time, limits: &Limits) -> usize {
        if self.ring.is_empty() { self.left(now, limits) } else { 0 }
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        self.used = self.used.saturating_add(bytes);
    }

    /// When the next waiting connection can be called, if the budget is used up.
    pub(crate) fn due(&self, limits: &Limits) -> Option<Time> {
        let began = self.began.filter(|_| !self.ring.is_empty() && self.quantum(limits) == 0)?;
        Some(began.after(INTERVAL))
    }

    /// Starts a new interval when the current one is over.
    pub(crate) fn refill(&mut self, now: Time) {
        if self.began.is_none_or(|began| now >= began.after(INTERVAL)) {
            (self.began, self.used) = (Some(now), 0);
        }
    }

    fn left(&mut self, now: Time, limits: &Limits) -> usize {
        self.refill(now);
        self.quantum(limits)
    }

    /// A quantum, if that much is left.
    fn quantum(&self, limits: &Limits) -> usize {
        let left = limits.discard_budget.saturating_sub(self.used);
        if left < limits.discard_quantum { 0 } else { limits.discard_quantum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    fn at(millis: u64) -> Time {
        Time::from_start(Duration::from_millis(millis))
    }

    /// The connections that are called at this time and discard all that they may.
    fn called(discards: &mut Discards, millis: u64) -> Vec<usize> {
        let mut called = Vec::new();
        while let Some((key, max)) = discards.next(at(millis), &Limits::default()) {
            discards.spend(max);
            called.push(key.index());
        }
        called
    }

    #[test]
    fn discard_budget_limits_bytes_per_interval() {
        let (mut discards, limits) = (Discards::default(), Limits::default());
        for millis in [0, 10, 25] {
            for _ in 0..limits.discard_budget / limits.discard_quantum {
                assert_eq!(discards.allowance(at(millis), &limits), limits.discard_quantum);
                discards.spend(limits.discard_quantum);
            }
            assert_eq!(discards.allowance(at(millis + 9), &limits), 0, "{millis}");
        }
    }

    #[test]
    fn waiting_connections_get_budget_in_order_and_before_new_ones() {
        let (mut discards, limits) = (Discards::default(), Limits::default());
        assert_eq!(discards.allowance(at(0), &limits), limits.discard_quantum);
        discards.spend(limits.discard_budget);
        assert_eq!(discards.due(&limits), None, "nobody waits");
        let mut table = Table::new();
        let keys: Vec<ConnKey> = (0..20).map(|n| table.insert(n)).collect();
        keys.iter().for_each(|key| discards.push(*key));
        assert_eq!(discards.next(at(9), &limits), None);
        assert_eq!(discards.due(&limits), Some(at(10)));
        assert_eq!(called(&mut discards, 12), (0..16).collect::<Vec<_>>());
        assert_eq!(called(&mut discards, 21), []);
        assert_eq!(discards.allowance(at(21), &limits), 0, "others are before it");
        assert_eq!(discards.due(&limits), Some(at(22)), "nobody who comes later puts that off");
        assert_eq!(called(&mut discards, 22), (16..20).collect::<Vec<_>>());
        assert_eq!(
            (discards.due(&limits), discards.allowance(at(23), &limits)),
            (None, limits.discard_quantum)
        );
    }
}
