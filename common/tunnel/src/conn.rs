//! One connection's state.
//!
//! ```text
//!            DIAL_RSP ok / dialed                 the peer's close arrives
//!  Dialing ------------------------> Open --------------------------------> Flushing --> (ended)
//!     |                               |  agent: endpoint's end, CLOSE_RSP sent ^
//!     | refused, canceled, lost       |                                        |
//!     v                               | server: frontend's end, CLOSE_REQ sent | CLOSE_RSP
//!  (ended)                            +-----------------------------------> Closing
//!                                     | server: frontend broke, CLOSE_REQ sent
//!                                     +-----------------------------------> Tombstone --> (gone)
//! ```
//! With half-close, `Open` continues after one source has ended (`source_open`, `peer_open`).
//!
//! The local end is notified exactly once (invariant 2): on a transition to *(ended)*, or on entering `Tombstone`, which
//! only keeps the connect id so that late packets are not counted as unknown.

use crate::buffer::Buffer;
use crate::credit::Credit;
use crate::event::Cause;
use crate::limits::Limits;
use crate::packet::{ConnectId, DialId};
use crate::payload::Payload;
use crate::time::Time;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// Server: DIAL_REQ is queued or sent. Agent: the dialer is running.
    Dialing { sent: bool },
    /// Both directions flow.
    Open,
    /// Server: the frontend has ended and CLOSE_REQ was sent; the link waits for CLOSE_RSP. If the frontend `listens`,
    /// it still receives DATA.
    Closing { listens: bool },
    /// The local end receives nothing new. Its queue is delivered first, within limits.
    Flushing(Flush),
    /// Server: the local end has been notified. Late packets are recognized until CLOSE_RSP.
    Tombstone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Flush {
    /// The last progress is the last time the queue shrank.
    pub(crate) deadline: FlushDeadline,
    /// Agent: the CLOSE_REQ that began this flush has no CLOSE_RSP yet.
    pub(crate) answer_owed: bool,
    /// The error reported to the local end after the flush; none for an orderly end.
    pub(crate) cause: Option<Cause>,
}

/// The two limits of a flush: its duration, and the time since its last progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlushDeadline {
    pub(crate) since: Time,
    pub(crate) progress: Time,
}

impl FlushDeadline {
    pub(crate) fn begin(now: Time) -> Self {
        FlushDeadline { since: now, progress: now }
    }

    /// When the flush is given up.
    pub(crate) fn due(self, limits: &Limits) -> Time {
        self.progress.after(limits.flush_stall).min(self.since.after(limits.flush_max))
    }
}

/// How fast a queue drains, while it is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DrainRate {
    pub(crate) since: Time,
    pub(crate) drained: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Conn<P> {
    pub(crate) state: State,
    pub(crate) random: DialId,
    /// Set from `Open` on. The link's index contains it as long as the peer may use it.
    pub(crate) id: Option<ConnectId>,
    /// Server: the target of the dial, until DIAL_REQ is sent.
    pub(crate) target: Option<(String, String)>,
    /// The bytes that wait for the local end.
    pub(crate) recv: Buffer<P>,
    pub(crate) drain_rate: Option<DrainRate>,
    /// The connection is in one of the rings.
    pub(crate) in_ring: bool,
    /// Why writes to the local end fail, although its source has not ended. Set only in `Open`.
    pub(crate) write_closed: Option<String>,
    /// The local end has gone; its unread bytes lack credit. Set only in `Open`. They are still sent, within the limits
    /// of a flush; progress means that bytes were sent.
    pub(crate) local_closed: Option<FlushDeadline>,
    /// Bytes that the local end has read from its source and cannot send for lack of credit, and how fast they drain.
    pub(crate) ahead: usize,
    pub(crate) ahead_drain_rate: Option<DrainRate>,
    /// The local source has not ended.
    pub(crate) source_open: bool,
    /// The peer's source has not ended: no FIN has arrived.
    pub(crate) peer_open: bool,
    /// The local end was notified that the peer's source has ended.
    pub(crate) shut: bool,
    /// Our FIN has told the peer that the local source has ended; the connection continues.
    pub(crate) fin_sent: bool,
    /// When the peer last sent something, since our FIN.
    pub(crate) last_activity: Time,
    /// Flow control, if negotiated. Set from `Open` on.
    pub(crate) credit: Option<Credit>,
    pub(crate) timer: Option<Time>,
}

impl<P: Payload> Conn<P> {
    pub(crate) fn dialing(random: DialId, target: Option<(String, String)>) -> Self {
        Conn {
            state: State::Dialing { sent: false },
            random,
            id: None,
            target,
            recv: Buffer::default(),
            drain_rate: None,
            in_ring: false,
            write_closed: None,
            local_closed: None,
            ahead: 0,
            ahead_drain_rate: None,
            source_open: true,
            peer_open: true,
            shut: false,
            fin_sent: false,
            last_activity: Time::START,
            credit: None,
            timer: None,
        }
    }

    /// Whether the shell delivers DATA that arrives now to the local end.
    pub(crate) fn accepts(&self) -> bool {
        self.write_closed.is_none() && self.expects_data()
    }

    /// Whether the peer may still send, and the local end has not been notified of the end.
    pub(crate) fn expects_data(&self) -> bool {
        self.peer_open && matches!(self.state, State::Open | State::Closing { listens: true })
    }

    /// Whether the peer has sent its last DATA. DATA after its FIN or its close is the peer's fault.
    pub(crate) fn peer_ended(&self) -> bool {
        !self.peer_open || matches!(self.state, State::Flushing(_))
    }

    /// Whether the peer receives grants: to send more or, after its FIN, to know that the local end still reads its
    /// bytes.
    pub(crate) fn grants(&self) -> bool {
        self.expects_data() || self.state == State::Open
    }

    /// Records that the peer is active. Our FIN waits for such activity.
    pub(crate) fn on_activity(&mut self, now: Time) {
        if self.fin_sent {
            self.last_activity = now;
        }
    }

    /// Whether the shell should read the local source, to send or to discard its bytes.
    pub(crate) fn reads(&self) -> bool {
        self.source_open && matches!(self.state, State::Open | State::Flushing(_))
    }
}
