//! The last steps of a connection: discarding its bytes, and telling its local end.

use std::sync::Arc;
use std::task::{Context, Poll};

use tunnel::{ConnKey, End, Side, Time};

use super::Conns;
use crate::discard::QUANTUM;
use crate::local_io::{CloseReason, Read};

/// A connection's place in the queue for the link's discard budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum DiscardState {
    /// It does not wait.
    #[default]
    Idle,
    /// It waits in the queue.
    Waiting,
    /// It was called: a piece is reserved for it.
    Granted,
}

impl<S: Side> Conns<S> {
    /// Reads from a local end and drops the bytes, as far as the link's discard budget allows now.
    pub(crate) fn poll_discard(&mut self, key: ConnKey, now: Time) -> Poll<std::io::Result<Read>> {
        let Some(slot) = self.find(key) else { return Poll::Pending };
        let allowance = self.take_allowance(slot, now);
        if allowance == 0 {
            // The core sees a source without bytes, and is notified when there is budget.
            self.enqueue(slot);
            return Poll::Pending;
        }
        let read = self.poll_read(key, allowance, now);
        let discarded = match &read {
            Poll::Ready(Ok(Read::Data(bytes))) => bytes.len(),
            _ => 0,
        };
        self.discard_budget.refund(allowance.saturating_sub(discarded));
        read
    }

    /// The core has released a connection: notifies the local end.
    pub(crate) fn ended(&mut self, now: Time, key: ConnKey, end: &End) {
        let Some(slot) = self.find(key) else { return };
        let entry = &mut self.slots[slot];
        entry.queue.clear();
        entry.close_reason = Some(match end {
            End::Flushed => CloseReason::Flushed,
            End::Broken(cause) => CloseReason::Broken(cause.clone()),
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
        if let (Some(local), Some(close_reason)) = (entry.local.as_mut(), entry.close_reason.as_ref()) {
            let ended = local.poll_end(&mut Context::from_waker(&entry.waker), close_reason, &mut left);
            if ended.is_ready() {
                self.slots.remove(slot);
            } else if left == 0 {
                self.enqueue(slot);
            }
        }
        self.discard_budget.refund(left);
        allowance - left
    }

    /// The bytes that this connection may discard now. They are deducted; the caller refunds the rest.
    fn take_allowance(&mut self, slot: usize, now: Time) -> usize {
        let Some(entry) = self.slots.get_mut(slot) else { return 0 };
        if entry.discard_state == DiscardState::Granted {
            entry.discard_state = DiscardState::Idle;
            return QUANTUM;
        }
        let allowance = self.discard_budget.allowance(now);
        self.discard_budget.spend(allowance);
        allowance
    }

    /// Queues a connection that needs more than its allowance.
    fn enqueue(&mut self, slot: usize) {
        if let Some(entry) = self.slots.get_mut(slot)
            && entry.discard_state == DiscardState::Idle
        {
            entry.discard_state = DiscardState::Waiting;
            self.discard_budget.enqueue(&entry.conn_waker);
        }
    }

    /// When [`Conns::grant_discards`] can call the next connection.
    pub(crate) fn discard_due(&self) -> Option<Time> {
        self.discard_budget.due()
    }

    /// Wakes the waiting connections for which a piece is left.
    pub(crate) fn grant_discards(&mut self, now: Time) {
        while let Some(conn_waker) = self.discard_budget.next_waiting(now) {
            // Skips connections that have ended.
            if let Some(entry) = self.slots.get_mut(conn_waker.slot())
                && Arc::ptr_eq(&entry.conn_waker, &conn_waker)
            {
                entry.discard_state = DiscardState::Granted;
                entry.waker.wake_by_ref();
                self.discard_budget.spend(QUANTUM);
            }
        }
    }
}
