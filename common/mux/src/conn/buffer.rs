//! The receive buffer of one connection: the bytes that wait for its local end.

use std::collections::VecDeque;

use crate::limits::{DRAIN_WINDOW, Limits};
use crate::payload::Payload;
use crate::time::Time;

/// An empty buffer keeps memory for this many slices. A peer that sends many small ones leaves no more behind.
const RETAINED_SLICES: usize = 16;

/// How full a receive buffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fill {
    /// The peer may send more.
    #[default]
    Room,
    /// The peer has no credit left.
    Full,
    /// It exceeds [`Limits::hard_cap`]: the link receives nothing until it drains.
    HoldsUpLink,
}

/// The bytes that wait for one local end, in the slices in which they arrived. A slice is fresh until the local end was
/// offered it; it is charged only if it then has to wait.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Buffer<P> {
    slices: VecDeque<P>,
    bytes: usize,
    charged: usize,
    /// The number of fresh slices at the back.
    fresh: usize,
}

impl<P> Default for Buffer<P> {
    fn default() -> Self {
        Buffer { slices: VecDeque::new(), bytes: 0, charged: 0, fresh: 0 }
    }
}

impl<P: Payload> Buffer<P> {
    /// The slices, in order.
    pub fn slices(&self) -> &VecDeque<P> {
        &self.slices
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// The charged bytes of all slices but the fresh ones.
    pub(crate) fn charged(&self) -> usize {
        self.charged
    }

    /// Adds a slice that has arrived.
    pub(crate) fn push(&mut self, slice: P) {
        self.bytes += slice.len();
        self.fresh += 1;
        self.slices.push_back(slice);
    }

    /// Drops all bytes.
    pub(crate) fn clear(&mut self) {
        *self = Buffer::default();
    }

    /// Removes the first `count` bytes, at most all, which the local end has accepted. The other slices have to wait:
    /// they are charged, and small fresh ones are copied together, so that they do not pin their receive buffers.
    /// Returns the number of removed bytes.
    pub(crate) fn advance(&mut self, count: usize) -> usize {
        let mut left = count.min(self.bytes);
        let removed = left;
        self.bytes -= removed;
        while let Some(front) = self.slices.front_mut().filter(|_| left > 0) {
            let before = front.len();
            let waited = self.fresh < self.slices.len();
            self.charged -= if waited { P::charge(before) } else { 0 };
            if before <= left {
                left -= before;
                self.slices.pop_front();
                self.fresh = self.fresh.min(self.slices.len());
            } else {
                let front = &mut self.slices[0];
                front.advance(left);
                self.charged += if waited { P::charge(before - left) } else { 0 };
                left = 0;
            }
        }
        self.charge_fresh();
        if self.slices.is_empty() && self.slices.capacity() > RETAINED_SLICES {
            self.slices = VecDeque::new();
        }
        removed
    }

    /// Charges the fresh slices, and copies small ones together.
    fn charge_fresh(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        let old = self.slices.len() - fresh;
        if self.slices.range(old..).all(|slice| slice.len() >= P::COPY_BELOW) {
            self.charged += self.slices.range(old..).map(|slice| P::charge(slice.len())).sum::<usize>();
            return;
        }
        let joins = old > 0 && self.slices[old - 1].len() < P::JOIN_BELOW;
        if joins {
            self.charged -= P::charge(self.slices[old - 1].len());
        }
        let mut small = Vec::new();
        let mut bytes = 0;
        for slice in self.slices.split_off(old - usize::from(joins)) {
            let large = slice.len() >= P::COPY_BELOW;
            if large || bytes >= P::COPY_BELOW {
                self.keep_joined(&mut small);
                bytes = 0;
            }
            if large {
                self.keep(slice);
            } else {
                bytes += slice.len();
                small.push(slice);
            }
        }
        self.keep_joined(&mut small);
    }

    fn keep_joined(&mut self, small: &mut Vec<P>) {
        if !small.is_empty() {
            self.keep(P::join(small));
            small.clear();
        }
    }

    fn keep(&mut self, slice: P) {
        self.charged += P::charge(slice.len());
        self.slices.push_back(slice);
    }
}

/// How fast bytes drain, while there are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DrainRate {
    since: Time,
    drained: usize,
}

impl DrainRate {
    fn begin(now: Time) -> Self {
        DrainRate { since: now, drained: 0 }
    }

    /// Records a change of the number of bytes.
    pub(super) fn record(rate: &mut Option<Self>, now: Time, before: usize, after: usize) {
        if after == 0 {
            *rate = None;
        } else {
            rate.get_or_insert_with(|| Self::begin(now)).drained += before.saturating_sub(after);
        }
    }

    /// The measure begins anew.
    pub(super) fn restart(rate: &mut Option<Self>, now: Time) {
        *rate = Some(Self::begin(now));
    }

    /// Whether fewer bytes drained than they must. None before a whole window has passed.
    pub(super) fn is_slow(&self, now: Time, limits: &Limits) -> Option<bool> {
        let whole = now.since(self.since) >= DRAIN_WINDOW;
        whole.then_some(self.drained < limits.min_drain)
    }
}

#[cfg(test)]
#[path = "buffer_tests.rs"]
mod tests;
