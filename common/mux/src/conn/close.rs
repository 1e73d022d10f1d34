//! When a connection that is ending gives up: the deadlines of flushes, half-closed connections and departed local ends.

use std::time::Duration;

use super::state::{Deadline, Flush, Phase, State};
use crate::event::{Cause, CloseReason};
use crate::limits::Limits;
use crate::time::Time;

/// The link's task when a connection's timer expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expired {
    /// Nothing.
    Nothing,
    /// The timer is set again.
    Later(Time),
    /// Agent: CLOSE_REQ is answered; the flush goes on.
    Answer,
    /// The flush ends with this failure.
    FlushFailed(Cause),
    /// Server: the client's close is answered in time. The connect id is kept as long as CLOSE_RSP may still arrive.
    CloseAnswered,
    /// Server: no CLOSE_RSP arrived, and the local end listens. What it was sent is delivered.
    Unanswered,
    /// The connect id is forgotten.
    Forgotten,
    /// The remaining direction of a half-closed connection was idle.
    Idle,
    /// The connection breaks.
    Broke(Cause),
}

impl State {
    /// The connection's timer has expired. `waiting`: bytes wait for the local end.
    pub(crate) fn expire(&self, now: Time, limits: &Limits, half_closed: Duration, waiting: bool) -> Expired {
        match self.phase() {
            Phase::Flushing => self.expire_flush(now, limits),
            Phase::Closing { listens: false } => Expired::CloseAnswered,
            Phase::Closing { listens: true } => Expired::Unanswered,
            Phase::Tombstone => Expired::Forgotten,
            Phase::Open => self.expire_open(now, limits, half_closed, waiting),
            Phase::Dialing { .. } => Expired::Nothing,
        }
    }

    fn expire_flush(&self, now: Time, limits: &Limits) -> Expired {
        let Some(flush) = self.flushing() else { return Expired::Nothing };
        if now >= flush.end(limits) {
            Expired::FlushFailed(Cause::FlushTimeout)
        } else if flush.answer_owed && now >= flush.deadline.since.after(limits.answer_close) {
            Expired::Answer
        } else {
            self.flush_due(limits).map_or(Expired::Nothing, Expired::Later)
        }
    }

    fn expire_open(&self, now: Time, limits: &Limits, half_closed: Duration, waiting: bool) -> Expired {
        if let Some(last_activity) = self.last_activity() {
            // Bytes for a slow local end count as activity too.
            let last_activity = if waiting { now } else { last_activity };
            let due = last_activity.after(half_closed);
            return if due > now { Expired::Later(due) } else { Expired::Idle };
        }
        if let Some(due) = self.departed_due(limits) {
            return if due > now { Expired::Later(due) } else { Expired::Broke(Cause::FlushTimeout) };
        }
        self.write_failure().map_or(Expired::Nothing, |text| Expired::Broke(Cause::Local(text.to_owned())))
    }

    /// When the flush is given up, or its CLOSE_REQ answered.
    pub(crate) fn flush_due(&self, limits: &Limits) -> Option<Time> {
        let flush = self.flushing()?;
        let end = flush.end(limits);
        let answer = flush.deadline.since.after(limits.answer_close);
        Some(if flush.answer_owed { end.min(answer) } else { end })
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
    /// When the flush is given up.
    fn end(&self, limits: &Limits) -> Time {
        if self.time_limit_lifted {
            self.deadline.progress.after(limits.half_closed_agent)
        } else {
            let Deadline { since, progress } = self.deadline;
            progress.after(limits.flush_stall).min(since.after(limits.flush_max))
        }
    }
}
