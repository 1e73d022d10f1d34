//! The last of a connection: what is thrown away, and the word to its local end.

use std::sync::Arc;
use std::task::{Context, Poll};

use tunnel::{ConnKey, End, Side, Time};

use super::Conns;
use crate::local::{Ending, Read};

impl<S: Side> Conns<S> {
    /// Reads from a local end what nobody is to have, as far as the link may throw away now.
    pub(crate) fn poll_discard(&mut self, key: ConnKey, now: Time) -> Poll<std::io::Result<Read>> {
        let allowance = self.waste.allowance(now);
        if allowance == 0 {
            // To the core it is a source that has nothing: it is told when that changes.
            if let Some(slot) = self.find(key) {
                self.park(slot);
            }
            return Poll::Pending;
        }
        let read = self.poll_read(key, allowance, now);
        if let Poll::Ready(Ok(Read::Data(waste))) = &read {
            self.waste.spend(waste.len());
        }
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
        let allowance = self.waste.allowance(now);
        let Some(entry) = self.slots.get_mut(slot) else { return 0 };
        let (Some(local), Some(ending)) = (entry.local.as_mut(), entry.ending.as_ref()) else { return 0 };
        let mut left = allowance;
        let ended = local.poll_end(&mut Context::from_waker(&entry.waker), ending, &mut left);
        let wasted = allowance - left;
        self.waste.spend(wasted);
        if ended.is_ready() {
            self.slots.remove(slot);
        } else if left == 0 {
            self.ask_again(slot, now);
        }
        wasted
    }

    /// An end that used its allowance up goes on in the next turn, or when the link may throw away more.
    fn ask_again(&mut self, slot: usize, now: Time) {
        if self.waste.allowance(now) == 0 {
            self.park(slot);
        } else if let Some(entry) = self.slots.get(slot) {
            entry.waker.wake_by_ref();
        }
    }

    fn park(&mut self, slot: usize) {
        if let Some(entry) = self.slots.get_mut(slot)
            && !std::mem::replace(&mut entry.parked, true)
        {
            self.waste.park(&entry.mark);
        }
    }

    /// When [`Conns::unpark`] is to be called.
    pub(crate) fn waste_due(&self) -> Option<Time> {
        self.waste.due()
    }

    /// Wakes those that waited until more may be thrown away, once it is time.
    pub(crate) fn unpark(&mut self, now: Time) {
        for mark in self.waste.unpark(now) {
            if let Some(entry) = self.slots.get_mut(mark.slot())
                && Arc::ptr_eq(&entry.mark, &mark)
            {
                entry.parked = false;
                entry.waker.wake_by_ref();
            }
        }
    }
}
