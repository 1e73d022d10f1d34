//! The memory of a link: the sums of its receive buffers, their limits, and the choice of connections to reset.

use crate::conn::{DrainRate, State};
use crate::event::Cause;
use crate::link::{Link, Side};
use crate::payload::Payload;
use crate::table::ConnKey;
use crate::time::Time;

impl<S: Side, P: Payload> Link<S, P> {
    /// The local end has accepted the first `count` bytes of [`Link::recv`]; the other bytes have to wait. Call this once
    /// after each offer, even if nothing was accepted.
    pub fn advance(&mut self, now: Time, key: ConnKey, count: usize) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let before = conn.recv.charged();
        let removed = conn.recv.advance(count);
        let charged = conn.recv.charged();
        if removed > 0 {
            self.taken(key, removed);
        }
        if charged != before || charged == 0 {
            self.recv_changed(now, key, before, charged);
        }
    }

    fn recv_changed(&mut self, now: Time, key: ConnKey, before: usize, charged: usize) {
        self.count_queued(before, charged);
        let (soft, window) = (self.limits.soft_cap, self.limits.drain_window);
        let Some(conn) = self.table.get_mut(key) else { return };
        if charged == 0 {
            conn.drain_rate = None;
        } else if before <= soft && charged > soft {
            conn.drain_rate = Some(DrainRate { since: now, drained: 0 });
        } else {
            let drain_rate = conn.drain_rate.get_or_insert(DrainRate { since: now, drained: 0 });
            drain_rate.drained += before.saturating_sub(charged);
        }
        if let State::Flushing(flush) = &mut conn.state {
            if charged < before {
                flush.deadline.progress = now;
                self.arm_flush(key);
            }
            if charged == 0 {
                self.finish_flush(key, None);
            }
        }
        if charged == 0 {
            self.shut_when_flushed(key);
        }
        if self.held_up() && self.next_measure.is_none() {
            self.next_measure = Some(now.after(window));
            if self.negotiated.credits.is_some() {
                // Only memory is short here, and the drain rates are already known.
                self.measure(now);
            }
        }
    }

    /// Reports the bytes that the local end has read from its source and cannot send for lack of credit. Zero once they
    /// are sent.
    pub fn holds_ahead(&mut self, now: Time, key: ConnKey, bytes: usize) {
        let Some(before) = self.set_ahead(key, bytes) else { return };
        let Some(conn) = self.table.get_mut(key) else { return };
        if bytes == 0 {
            conn.ahead_drain_rate = None;
        } else {
            let drain_rate = conn.ahead_drain_rate.get_or_insert(DrainRate { since: now, drained: 0 });
            drain_rate.drained += before.saturating_sub(bytes);
        }
    }

    pub(crate) fn held_up(&self) -> bool {
        self.over_hard > 0 || self.total_queued > self.limits.link_budget
    }

    /// A connection's charged bytes have changed: updates the sums.
    fn count_queued(&mut self, before: usize, charged: usize) {
        let hard = self.limits.hard_cap;
        self.total_queued = self.total_queued - before + charged;
        self.over_hard = self.over_hard - usize::from(before > hard) + usize::from(charged > hard);
    }

    /// Drops the bytes that wait for a local end.
    pub(crate) fn drop_recv(&mut self, key: ConnKey) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let before = conn.recv.charged();
        conn.recv.clear();
        self.count_queued(before, 0);
    }

    /// The same for the bytes that the local end holds for lack of credit.
    fn set_ahead(&mut self, key: ConnKey, bytes: usize) -> Option<usize> {
        let conn = self.table.get_mut(key)?;
        let before = std::mem::replace(&mut conn.ahead, bytes);
        self.total_ahead = self.total_ahead - before + bytes;
        Some(before)
    }

    /// Drops a connection's bytes, and forgets those that its local end holds.
    pub(crate) fn drop_held(&mut self, key: ConnKey) {
        self.drop_recv(key);
        self.set_ahead(key, 0);
    }

    /// Resets connections that drain too slowly while the link is held up. If a queue exceeds the hard cap, all slow
    /// ones above the soft cap are reset at once: a thousand stalled readers must not hold up the link one after the
    /// other. If the sum exceeds the budget, the largest are reset first, until half of the budget is free.
    pub(crate) fn measure(&mut self, now: Time) {
        if !self.held_up() {
            return;
        }
        let mut slow: Vec<(usize, ConnKey)> = Vec::new();
        for key in self.table.keys() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            let Some(drain_rate) = &mut conn.drain_rate else { continue };
            if now.since(drain_rate.since) < self.limits.drain_window {
                continue;
            }
            if drain_rate.drained < self.limits.min_drain {
                slow.push((conn.recv.charged(), key));
            }
            *drain_rate = DrainRate { since: now, drained: 0 };
        }
        slow.sort_unstable_by(|a, b| b.cmp(a));
        let (blocked, crowded) = (self.over_hard > 0, self.total_queued > self.limits.link_budget);
        for (queued, key) in slow {
            let stands_in_line = blocked && queued > self.limits.soft_cap.min(self.limits.hard_cap);
            if stands_in_line || (crowded && self.total_queued > self.limits.link_budget / 2) {
                self.break_off(now, key, Cause::Stalled);
            }
        }
        if self.held_up() {
            self.next_measure = Some(now.after(self.limits.drain_window));
        }
    }

    /// Memory is short: resets the largest connections that drain too slowly until `excess` charged bytes are free; if
    /// `urgent`, also those that drain well. Measures again, by [`Link::poll_timeout`], while bytes are queued.
    pub fn shed(&mut self, now: Time, excess: usize, urgent: bool) {
        let window = self.limits.drain_window;
        let mut waiting: Vec<(usize, ConnKey)> = Vec::new();
        for key in self.table.keys() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            let rates = [&mut conn.drain_rate, &mut conn.ahead_drain_rate].into_iter().flatten();
            let mut judged: Vec<_> =
                rates.filter(|drain_rate| now.since(drain_rate.since) >= window).collect();
            let slow = judged.iter().any(|drain_rate| drain_rate.drained < self.limits.min_drain);
            if !slow && !urgent {
                judged.iter_mut().for_each(|drain_rate| **drain_rate = DrainRate { since: now, drained: 0 });
            }
            let held = conn.recv.charged() + conn.ahead;
            if held > 0 && (slow || urgent) {
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
        if self.total_held() > 0 && self.next_measure.is_none() {
            self.next_measure = Some(now.after(window));
        }
    }
}
