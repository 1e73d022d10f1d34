//! The memory of a link: the sums over its connections, their limits, and the choice of connections to reset.

use crate::conn::{Growth, Usage};
use crate::event::Cause;
use crate::limits::{DRAIN_WINDOW, Limits};
use crate::link::{Link, Side};
use crate::payload::Payload;
use crate::table::ConnKey;
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
}

impl<S: Side, P: Payload> Link<S, P> {
    /// Bytes that wait on this side: the charged bytes for local ends, and the bytes that local ends hold for lack of
    /// credit.
    pub fn total_held(&self) -> usize {
        self.memory.queued + self.memory.ahead
    }

    /// How windows may grow now.
    pub(crate) fn growth(&self) -> Growth {
        Growth {
            widest: self.widest,
            base: self.limits.window_max,
            budget: self.limits.high_bdp_budget.saturating_sub(self.memory.beyond),
            spacious: self.memory.queued <= self.limits.link_budget / 4,
            connections: self.by_id.len(),
        }
    }

    /// Resets the connections that hold up the link, because they drain too slowly. If a receive buffer exceeds the hard cap,
    /// all slow ones above the soft cap are reset at once: a thousand stalled readers must not stop the link one after the
    /// other. If the sum exceeds the budget, the largest are reset first, until half of the budget is free.
    pub(crate) fn reset_slow(&mut self, now: Time) {
        if !self.memory.is_over_limit(&self.limits) {
            return;
        }
        let limits = &self.limits;
        let mut slow: Vec<(usize, ConnKey)> = Vec::new();
        for key in self.table.keys() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            if conn.measure(now, limits) == Some(true) {
                slow.push((conn.usage(limits).queued, key));
            }
        }
        slow.sort_unstable_by(|a, b| b.cmp(a));
        let Memory { over_hard, queued: mut left, .. } = self.memory;
        let (blocked, crowded) = (over_hard > 0, left > limits.link_budget);
        slow.retain(|(queued, _)| {
            let stands_in_line = blocked && *queued > limits.soft_cap.min(limits.hard_cap);
            let reset = stands_in_line || (crowded && left > limits.link_budget / 2);
            left -= if reset { *queued } else { 0 };
            reset
        });
        for (_, key) in slow {
            self.break_off(now, key, Cause::Stalled);
        }
        let over_limit = self.memory.is_over_limit(&self.limits);
        self.memory.begin_measure(now, over_limit);
    }

    /// Memory is short: resets the largest connections that drain too slowly until `excess` charged bytes are free; if
    /// `urgent`, also those that drain well. Measures again, by [`Link::poll_timeout`], while bytes are held.
    pub fn shed(&mut self, now: Time, excess: usize, urgent: bool) {
        let mut waiting: Vec<(usize, ConnKey)> = Vec::new();
        for key in self.table.keys() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            let usage = conn.usage(&self.limits);
            let held = usage.queued + usage.ahead;
            if !urgent && !conn.has_stalled(now, &self.limits) {
                conn.measure_anew(now, &self.limits);
            } else if held > 0 {
                waiting.push((held, key));
            }
        }
        waiting.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = excess;
        for (held, key) in waiting {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(held);
            self.break_off(now, key, Cause::Stalled);
        }
        self.memory.begin_measure(now, self.total_held() > 0);
    }
}
