//! When a connection that is ending gives up: the deadlines of flushes and of departed local ends.

use super::state::{Flush, State};
use crate::event::{Cause, CloseReason};
use crate::limits::{MAX_CLOSE_ANSWER, MAX_CREDIT_STALL, MAX_FLUSH, MAX_FLUSH_STALL, MAX_IDLE_FRONTEND};
use crate::time::Time;

impl State {
    /// When the flush is given up, or its CLOSE_REQ answered.
    pub(crate) fn flush_due(&self) -> Option<Time> {
        let flush = self.flushing()?;
        let end = flush.end();
        Some(flush.answer_due().map_or(end, |answer| end.min(answer)))
    }

    /// When the unread bytes of a local end that has gone are given up.
    pub(crate) fn departed_due(&self) -> Option<Time> {
        Some(self.departed()?.after(MAX_CREDIT_STALL))
    }

    /// How a flush ends: with this failure or with the cause of the close. None without a flush.
    pub(crate) fn flush_end(&self, failure: Option<Cause>) -> Option<CloseReason> {
        let flush = self.flushing()?;
        Some(failure.or_else(|| flush.cause.clone()).map_or(CloseReason::Flushed, CloseReason::Broken))
    }
}

impl Flush {
    /// When the CLOSE_REQ that began the flush is answered.
    pub(crate) fn answer_due(&self) -> Option<Time> {
        self.answer_owed.then(|| self.since.after(MAX_CLOSE_ANSWER))
    }

    /// When the flush is given up.
    pub(crate) fn end(&self) -> Time {
        if self.time_limit_lifted {
            self.progress.after(MAX_IDLE_FRONTEND)
        } else {
            self.progress.after(MAX_FLUSH_STALL).min(self.since.after(MAX_FLUSH))
        }
    }
}
