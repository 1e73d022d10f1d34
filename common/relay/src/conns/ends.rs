//! The last steps of a connection: discarding its bytes, and telling its local end.

use std::sync::Arc;
use std::task::{Context, Poll};

use tunnel::{ConnKey, End, Side, Time};

use super::Conns;
use crate::local::{Ending, Read};
use crate::waste::PIECE;

/// A connection's place in the queue for the link's discard budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Place {
    /// It does not wait.
    #[default]
    Outside,
    /// It waits in the queue.
    Waiting,
    /// It was called: a piece is reserved for it.
    Called,
}

impl<S: Side> Conns<S> {
    /// Reads from a local end and drops the bytes, as far as the link's discard budget allows now.
    pub(crate) fn poll_discard(&mut self, key: ConnKey, now: Time) -> Poll<std::io::Result<Read>> {
        let Some(slot) = self.find(key) else { return Poll::Pending };
        let allowance = self.take_allowance(slot, now);
        if allowance == 0 {
            // The core sees a source without bytes, and is notified when there is budget.
            self.park(slot);
            return Poll::Pending;
        }
        let read = self.poll_read(key, allowance, now);
        let wasted = match &read {
            Poll::Ready(Ok(Read::Data(waste))) => waste.len(),
            _ => 0,
        };
        self.waste.refund(allowance.saturating_sub(wasted));
        read
    }

    /// The core has released a connection: notifies the local end.
    pub(crate) fn ended(&mut self, now: Time, key: ConnKey, end: &End) {
        let Some(slot) = self.find(key) else { return };
        let entry = &mut self.slots[slot];
        entry.queue.clear();
        entry.ending = Some(match end {
            End::Flushed => Ending::Flushed,
            End::Broken(cause) => Ending::Broken(cause.clone()),
        });
        if entry.local.is_some() {
            self.end(slot, now);
        }
    }

    /// Continues an end. Returns the number of bytes discarded.
    pub(super) fn end(&mut self, slot: usize, now: Time) -> usize {
        let allowance = self.take_allowance(slot, now);
        let mut left = allowance;
        let Some(entry) = self.slots.get_mut(slot) else { return 0 };
        if let (Some(local), Some(ending)) = (entry.local.as_mut(), entry.ending.as_ref()) {
            let ended = local.poll_end(&mut Context::from_waker(&entry.waker), ending, &mut left);
            if ended.is_ready() {
                self.slots.remove(slot);
            } else if left == 0 {
                self.park(slot);
            }
        }
        self.waste.refund(left);
        allowance - left
    }

    /// The bytes that this connection may discard now. They are deducted; the caller refunds the rest.
    fn take_allowance(&mut self, slot: usize, now: Time) -> usize {
        let Some(entry) = self.slots.get_mut(slot) else { return 0 };
        if entry.place == Place::Called {
            entry.place = Place::Outside;
            return PIECE;
        }
        let allowance = self.waste.allowance(now);
        self.waste.spend(allowance);
        allowance
    }

    /// Queues a connection that needs more than its allowance.
    fn park(&mut self, slot: usize) {
        if let Some(entry) = self.slots.get_mut(slot)
            && entry.place == Place::Outside
        {
            entry.place = Place::Waiting;
            self.waste.park(&entry.mark);
        }
    }

    /// When [`Conns::call_parked`] can call the next connection.
    pub(crate) fn waste_due(&self) -> Option<Time> {
        self.waste.due()
    }

    /// Wakes the waiting connections for which a piece is left.
    pub(crate) fn call_parked(&mut self, now: Time) {
        while let Some(mark) = self.waste.call(now) {
            // Skips connections that have ended.
            if let Some(entry) = self.slots.get_mut(mark.slot())
                && Arc::ptr_eq(&entry.mark, &mark)
            {
                entry.place = Place::Called;
                entry.waker.wake_by_ref();
                self.waste.spend(PIECE);
            }
        }
    }
}
