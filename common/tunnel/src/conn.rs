//! One connection's state.
//!
//! ```text
//!            DIAL_RSP ok / dialled                the peer's close arrives
//!  Dialing ------------------------> Open --------------------------------> Flushing --> (ended)
//!     |                               |  agent: endpoint's end, CLOSE_RSP sent ^
//!     | refused, cancelled, lost      |                                        |
//!     v                               | server: frontend's end, CLOSE_REQ sent | CLOSE_RSP
//!  (ended)                            +-----------------------------------> Closing
//!                                     | server: frontend broke, CLOSE_REQ sent
//!                                     +-----------------------------------> Forgetting --> (gone)
//! ```
//! Where half-close was agreed on, `Open` outlives the end of one source (`source_open`, `peer_open`).
//!
//! The local end is told exactly once (invariant 2): on leaving towards *(ended)*, or on entering `Forgetting`,
//! which only keeps the number on the wire from being taken for a stranger's.

use crate::credit::Credit;
use crate::event::Cause;
use crate::limits::Limits;
use crate::packet::{ConnectId, DialId};
use crate::time::Time;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// Server: DIAL_REQ waits or was sent. Agent: the dialler is at work.
    Dialing { sent: bool },
    /// Both directions flow.
    Open,
    /// Server: the frontend ended and CLOSE_REQ is on its way; CLOSE_RSP is awaited. The frontend takes what
    /// still arrives if it `listens`.
    Closing { listens: bool },
    /// No more arrives for the local end; what is queued goes out first, within bounds.
    Flushing(Flush),
    /// Server: the local end has been told; late packets are not a stranger's until CLOSE_RSP.
    Forgetting,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Flush {
    /// Progress is a queue that shrinks.
    pub(crate) pace: Pace,
    /// Agent: the CLOSE_REQ that began this has no CLOSE_RSP yet.
    pub(crate) answer_owed: bool,
    /// What the local end is told after the flush, nothing for an orderly end.
    pub(crate) cause: Option<Cause>,
}

/// The bounds of a flush: how long it lasts, and how long it moves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pace {
    pub(crate) since: Time,
    pub(crate) progress: Time,
}

impl Pace {
    pub(crate) fn begin(now: Time) -> Self {
        Pace { since: now, progress: now }
    }

    /// When it is given up.
    pub(crate) fn due(self, limits: &Limits) -> Time {
        self.progress.after(limits.flush_stall).min(self.since.after(limits.flush_max))
    }
}

/// How fast what waits drains, while anything does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Watch {
    pub(crate) since: Time,
    pub(crate) drained: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Conn {
    pub(crate) state: State,
    pub(crate) random: DialId,
    /// Set from `Open` on; registered in the link's index as long as the peer may name it.
    pub(crate) id: Option<ConnectId>,
    /// Server: what to dial, until DIAL_REQ is sent.
    pub(crate) target: Option<(String, String)>,
    /// Charged bytes that wait for the local end.
    pub(crate) queued: usize,
    pub(crate) watch: Option<Watch>,
    /// Stands in one of the rings.
    pub(crate) in_ring: bool,
    /// Why the local end takes no more, although its source has not ended: set in `Open` alone.
    pub(crate) deaf: Option<String>,
    /// The local end has gone, but for what it left unread while it lacks credit: set in `Open` alone. That is sent
    /// within the bounds of a flush; progress is something sent.
    pub(crate) leaving: Option<Pace>,
    /// Bytes that the local end itself holds of its source, while they lack credit, and how fast they go on their way.
    pub(crate) ahead: usize,
    pub(crate) ahead_watch: Option<Watch>,
    /// The local source has not ended.
    pub(crate) source_open: bool,
    /// The peer's source has not ended: no FIN came.
    pub(crate) peer_open: bool,
    /// The local end was told that the peer's source has ended.
    pub(crate) shut: bool,
    /// The peer was told that the local source has ended, while the connection goes on.
    pub(crate) fin_sent: bool,
    /// When the peer last sent something, since our FIN.
    pub(crate) heard: Time,
    /// Flow control, where it was agreed on: set from `Open` on.
    pub(crate) credit: Option<Credit>,
    pub(crate) timer: Option<Time>,
}

impl Conn {
    pub(crate) fn dialing(random: DialId, target: Option<(String, String)>) -> Self {
        Conn {
            state: State::Dialing { sent: false },
            random,
            id: None,
            target,
            queued: 0,
            watch: None,
            in_ring: false,
            deaf: None,
            leaving: None,
            ahead: 0,
            ahead_watch: None,
            source_open: true,
            peer_open: true,
            shut: false,
            fin_sent: false,
            heard: Time::START,
            credit: None,
            timer: None,
        }
    }

    /// Whether what arrives now is for the local end.
    pub(crate) fn accepts(&self) -> bool {
        self.deaf.is_none() && self.hears()
    }

    /// Whether the peer may send more for a local end that has not been told its end.
    pub(crate) fn hears(&self) -> bool {
        self.peer_open && matches!(self.state, State::Open | State::Closing { listens: true })
    }

    /// Whether the peer has sent its last DATA: what follows its FIN or its close is a fault of its own.
    pub(crate) fn peer_ended(&self) -> bool {
        !self.peer_open || matches!(self.state, State::Flushing(_))
    }

    /// Whether the peer is told how far the local end has got: to send more or, behind its FIN, to know that what it
    /// has sent is still being taken.
    pub(crate) fn grants(&self) -> bool {
        self.hears() || self.state == State::Open
    }

    /// The peer has shown life: what our FIN waits for.
    pub(crate) fn hear(&mut self, now: Time) {
        if self.fin_sent {
            self.heard = now;
        }
    }

    /// Whether there is a local end that takes what is queued for it.
    pub(crate) fn listens(&self) -> bool {
        self.deaf.is_none()
            && matches!(self.state, State::Open | State::Closing { listens: true } | State::Flushing(_))
    }

    /// Whether the shell should read the local source, to send or to throw away.
    pub(crate) fn reads(&self) -> bool {
        self.source_open && matches!(self.state, State::Open | State::Flushing(_))
    }
}
