//! The memory of a link: the sums over its connections, their limits, and the choice of connections to reset.

use crate::conn::{Conn, Usage};
use crate::limits::{DRAIN_WINDOW, Limits};
use crate::payload::Payload;
use crate::table::{ConnKey, Table};
use crate::time::Time;

/// The sums over all connections of a link.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Memory {
    /// Charged bytes of all receive buffers.
    queued: usize,
    /// Bytes that local ends have read from their sources and cannot send yet.
    ahead: usize,
    /// By how much all windows together exceed the limit for a low RTT, in bytes.
    beyond: usize,
    /// Connections whose receive buffer exceeds the hard cap.
    over_hard: usize,
    /// When the link next measures how fast its receive buffers drain.
    next_measure: Option<Time>,
}

impl Memory {
    /// A connection's usage has changed.
    pub(crate) fn count(&mut self, before: Usage, after: Usage, limits: &Limits) {
        let over = |usage: Usage| usize::from(usage.queued > limits.hard_cap);
        self.queued = self.queued - before.queued + after.queued;
        self.ahead = self.ahead - before.ahead + after.ahead;
        self.beyond = self.beyond - before.beyond + after.beyond;
        self.over_hard = self.over_hard - over(before) + over(after);
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    pub(crate) fn held(&self) -> usize {
        self.queued + self.ahead
    }

    pub(crate) fn beyond(&self) -> usize {
        self.beyond
    }

    /// Whether a receive buffer, or all together, exceed their limit.
    pub(crate) fn is_over_limit(&self, limits: &Limits) -> bool {
        self.over_hard > 0 || self.queued > limits.link_budget
    }

    pub(crate) fn next_measure(&self) -> Option<Time> {
        self.next_measure
    }

    /// Begins to measure if that is `needed`. Returns false if it is not, or if the link measures already.
    pub(crate) fn begin_measure(&mut self, now: Time, needed: bool) -> bool {
        let begins = needed && self.next_measure.is_none();
        if begins {
            self.next_measure = Some(now.after(DRAIN_WINDOW));
        }
        begins
    }

    /// Whether the measure has ended.
    pub(crate) fn end_measure(&mut self, now: Time) -> bool {
        self.next_measure.take_if(|due| *due <= now).is_some()
    }

    /// The connections to reset while the link is over a limit, because they drain too slowly. If a receive buffer exceeds
    /// the hard cap, all slow ones above the soft cap are reset at once: a thousand stalled readers must not stop the link
    /// one after the other. If the sum exceeds the budget, the largest are reset first, until half of the budget is free.
    pub(crate) fn slow_readers<P: Payload>(
        &mut self,
        table: &mut Table<Conn<P>>,
        now: Time,
        limits: &Limits,
    ) -> Vec<ConnKey> {
        if !self.is_over_limit(limits) {
            return Vec::new();
        }
        let mut slow: Vec<(usize, ConnKey)> = Vec::new();
        for key in table.keys() {
            let Some(conn) = table.get_mut(key) else { continue };
            if conn.measure(now, limits) == Some(true) {
                slow.push((conn.usage(limits).queued, key));
            }
        }
        slow.sort_unstable_by(|a, b| b.cmp(a));
        let (blocked, crowded) = (self.over_hard > 0, self.queued > limits.link_budget);
        let mut left = self.queued;
        slow.retain(|(queued, _)| {
            let stands_in_line = blocked && *queued > limits.soft_cap.min(limits.hard_cap);
            let reset = stands_in_line || (crowded && left > limits.link_budget / 2);
            left -= if reset { *queued } else { 0 };
            reset
        });
        slow.into_iter().map(|(_, key)| key).collect()
    }

    /// The connections to reset when the process is short of memory: the largest that drain too slowly, until `excess`
    /// bytes are free; if `urgent`, also those that drain well.
    pub(crate) fn largest_to_shed<P: Payload>(
        &mut self,
        table: &mut Table<Conn<P>>,
        now: Time,
        limits: &Limits,
        excess: usize,
        urgent: bool,
    ) -> Vec<ConnKey> {
        let mut waiting: Vec<(usize, ConnKey)> = Vec::new();
        for key in table.keys() {
            let Some(conn) = table.get_mut(key) else { continue };
            let usage = conn.usage(limits);
            let held = usage.queued + usage.ahead;
            if !urgent && !conn.has_stalled(now, limits) {
                conn.measure_anew(now, limits);
            } else if held > 0 {
                waiting.push((held, key));
            }
        }
        waiting.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = excess;
        waiting.retain(|(held, _)| {
            let reset = left > 0;
            left = left.saturating_sub(*held);
            reset
        });
        waiting.into_iter().map(|(_, key)| key).collect()
    }
}
