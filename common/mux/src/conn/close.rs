//! When a connection that is ending gives up: the deadlines of flushes, half-closed connections and departed local ends.

use std::time::Duration;

use super::Conn;
use super::state::Phase;
use crate::event::{Cause, End};
use crate::limits::Limits;
use crate::payload::Payload;
use crate::time::Time;

/// The delivery of a receive buffer after a close.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Flush {
    /// The last progress is the last time the receive buffer shrank.
    pub(super) deadline: Deadline,
    /// Agent: the CLOSE_REQ that began this flush has no CLOSE_RSP yet.
    pub(super) answer_owed: bool,
    /// The error reported to the local end after the flush; none for an orderly end.
    pub(super) cause: Option<Cause>,
    /// The source has not ended. Its bytes are discarded.
    pub(super) reads: bool,
}

/// The two limits of a wait: its duration, and the time since its last progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Deadline {
    pub(super) since: Time,
    pub(super) progress: Time,
}

impl Deadline {
    pub(super) fn begin(now: Time) -> Self {
        Deadline { since: now, progress: now }
    }

    fn due(self, stall: Duration, limits: &Limits) -> Time {
        self.progress.after(stall).min(self.since.after(limits.flush_max))
    }
}

/// What the link does when a connection's timer expires.
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
    /// The remaining direction of a half-closed connection was idle: the connection is closed in order.
    Idle,
    /// The connection breaks.
    Broke(Cause),
}

impl<P: Payload> Conn<P> {
    /// The connection's timer has expired.
    pub(crate) fn expire(&self, now: Time, limits: &Limits, half_closed: Duration) -> Expired {
        match self.phase() {
            Phase::Flushing => self.expire_flush(now, limits),
            Phase::Closing { listens: false } => Expired::CloseAnswered,
            Phase::Closing { listens: true } => Expired::Unanswered,
            Phase::Tombstone => Expired::Forgotten,
            Phase::Open => self.expire_open(now, limits, half_closed),
            Phase::Dialing { .. } => Expired::Nothing,
        }
    }

    fn expire_flush(&self, now: Time, limits: &Limits) -> Expired {
        let Some(flush) = self.state.flushing() else { return Expired::Nothing };
        if now >= flush.deadline.due(limits.flush_stall, limits) {
            Expired::FlushFailed(Cause::FlushTimeout)
        } else if flush.answer_owed && now >= flush.deadline.since.after(limits.answer_close) {
            Expired::Answer
        } else {
            self.flush_due(limits).map_or(Expired::Nothing, Expired::Later)
        }
    }

    fn expire_open(&self, now: Time, limits: &Limits, half_closed: Duration) -> Expired {
        if let Some(last_activity) = self.state.last_activity() {
            // Bytes for a slow local end count as activity too.
            let last_activity = if self.recv.is_empty() { last_activity } else { now };
            let due = last_activity.after(half_closed);
            return if due > now { Expired::Later(due) } else { Expired::Idle };
        }
        if let Some(due) = self.departed_due(limits) {
            return if due > now { Expired::Later(due) } else { Expired::Broke(Cause::FlushTimeout) };
        }
        self.state
            .write_failure()
            .map_or(Expired::Nothing, |text| Expired::Broke(Cause::Local(text.to_owned())))
    }

    /// When the flush is given up, or its CLOSE_REQ answered.
    pub(crate) fn flush_due(&self, limits: &Limits) -> Option<Time> {
        let flush = self.state.flushing()?;
        let due = flush.deadline.due(limits.flush_stall, limits);
        let answer = flush.deadline.since.after(limits.answer_close);
        Some(if flush.answer_owed { due.min(answer) } else { due })
    }

    /// When the unread bytes of a local end that has gone are given up.
    pub(crate) fn departed_due(&self, limits: &Limits) -> Option<Time> {
        Some(self.state.departed()?.due(limits.credit_stall, limits))
    }

    /// How a flush ends: with this failure or with the cause of the close. None without a flush.
    pub(crate) fn flush_end(&self, failure: Option<Cause>) -> Option<End> {
        let flush = self.state.flushing()?;
        Some(failure.or_else(|| flush.cause.clone()).map_or(End::Flushed, End::Broken))
    }
}
