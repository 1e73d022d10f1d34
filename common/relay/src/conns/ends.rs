//! The last of a connection: what is thrown away, and the word to its local end.

use std::sync::Arc;
use std::task::{Context, Poll};

use tunnel::{ConnKey, End, Side, Time};

use super::Conns;
use crate::local::{Ending, Read};
use crate::waste::PIECE;

/// Where a connection stands with what its link may throw away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Place {
    /// It has not asked.
    #[default]
    Outside,
    /// In line.
    Waiting,
    /// Called: a piece is set aside for it.
    Called,
}

impl<S: Side> Conns<S> {
    /// Reads from a local end what nobody is to have, as far as the link may throw away now.
    pub(crate) fn poll_discard(&mut self, key: ConnKey, now: Time) -> Poll<std::io::Result<Read>> {
        let Some(slot) = self.find(key) else { return Poll::Pending };
        let allowance = self.take_allowance(slot, now);
        if allowance == 0 {
            // To the core it is a source that has nothing: it is told when that changes.
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

    /// The core has let go of a connection: tells the local end.
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

    /// Goes on with an end. Yields how many bytes were thrown away.
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

    /// What this connection may throw away now. It is spent: the rest is given back.
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

    /// Puts a connection in line: it asks for more than it may have now.
    fn park(&mut self, slot: usize) {
        if let Some(entry) = self.slots.get_mut(slot)
            && entry.place == Place::Outside
        {
            entry.place = Place::Waiting;
            self.waste.park(&entry.mark);
        }
    }

    /// When [`Conns::call_parked`] finds somebody to call.
    pub(crate) fn waste_due(&self) -> Option<Time> {
        self.waste.due()
    }

    /// Wakes those in line for whom there is a piece.
    pub(crate) fn call_parked(&mut self, now: Time) {
        while let Some(mark) = self.waste.call(now) {
            // Who has ended meanwhile is passed over.
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
