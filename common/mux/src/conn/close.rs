//! When a connection that is ending gives up: the deadlines of flushes and of departed local ends.

use super::state::{Flush, State};
use crate::event::{Cause, CloseReason};
use crate::limits::Limits;
use crate::time::Time;

impl State {
    /// When the flush is given up, or its CLOSE_REQ answered.
    pub(crate) fn flush_due(&self, limits: &Limits) -> Option<Time> {
        let flush = self.flushing()?;
        let end = flush.end(limits);
        Some(flush.answer_due(limits).map_or(end, |answer| end.min(answer)))
    }

    /// When the unread bytes of a local end that has gone are given up.
    pub(crate) fn departed_due(&self, limits: &Limits) -> Option<Time> {
        Some(self.departed()?.after(limits.credit_stall))
    }

    /// How a flush ends: with this failure or with the cause of the close. None without a flush.
    pub(crate) fn flush_end(&self, failure: Option<Cause>) -> Option<CloseReason> {
        let flush = self.flushing()?;
        Some(failure.or_else(|| flush.cause.clone()).map_or(CloseReason::Flushed, CloseReason::Broken))
    }
}

impl Flush {
    /// When the CLOSE_REQ that began the flush is answered.
    pub(crate) fn answer_due(&self, limits: &Limits) -> Option<Time> {
        self.answer_owed.then(|| self.since.after(limits.answer_close))
    }

    /// When the flush is given up.
    pub(crate) fn end(&self, limits: &Limits) -> Time {
        if self.time_limit_lifted {
            self.progress.after(limits.half_closed_agent)
        } else {
            self.progress.after(limits.flush_stall).min(self.since.after(limits.flush_max))
        }
    }
}
