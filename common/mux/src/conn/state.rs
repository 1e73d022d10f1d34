//! The state of one connection, which changes only by the methods here.
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
//!                                       from Closing too, if the frontend breaks
//!
//!  In Open, each direction ends by itself:
//!
//!  local  (from the local end to the peer):  Sending --> Departed ---> Ended --> FinSent
//!                                               +-----> WriteFailed ----^
//!  remote (from the peer to the local end):  Sending --> FinReceived --> ShutDown
//! ```
//!
//! The local end is notified exactly once (invariant 2): on a transition to *(ended)*, or on entering `Tombstone`, which
//! only keeps the connect id so that late packets are not counted as unknown.

use crate::event::Cause;
use crate::packet::TraceContext;
use crate::time::Time;

/// The target of a dial: protocol, address and trace.
pub(crate) type Target = (String, String, Option<TraceContext>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    inner: Inner,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Inner {
    /// Server: DIAL_REQ is queued as long as this is its target, or sent. Agent: the dialer is running.
    Dialing(Option<Box<Target>>),
    /// Both directions flow, or one of them still does.
    Open { local: Local, remote: Remote },
    /// Server: the frontend has ended and CLOSE_REQ was sent; the link waits for CLOSE_RSP. If the frontend `listens`,
    /// it still receives DATA.
    Closing { listens: bool, remote: Remote },
    /// The local end receives nothing new. Its receive buffer is delivered first, within limits.
    Flushing(Flush),
    /// Server: the local end has been notified. Late packets are recognized until CLOSE_RSP.
    Tombstone,
}

/// The direction from the local end to the peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Local {
    /// The source is read and its bytes are sent.
    Sending,
    /// The local end has gone and its unread bytes lack credit. They are still sent; progress means that bytes were
    /// sent.
    Departed(Time),
    /// Writes to the local end fail for this reason. Its bytes are still sent.
    WriteFailed(String),
    /// The source has ended. The link closes the connection or sends FIN.
    Ended,
    /// FIN has told the peer that the source has ended. The peer was last active at this time.
    FinSent {
        last_activity: Time,
        /// When the idle peer was probed. It has not answered.
        probed: Option<Time>,
    },
}

/// The direction from the peer to the local end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Remote {
    Sending,
    /// The peer sends no more; the receive buffer may hold bytes.
    FinReceived,
    /// The local end was told that the peer sends no more.
    ShutDown,
}

/// The delivery of a receive buffer after a close.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Flush {
    /// When the time limit began, and when the receive buffer last shrank.
    pub(super) since: Time,
    pub(super) progress: Time,
    /// Server: the endpoint has closed in order. The frontend may read the rest as slowly as between native peers.
    pub(super) time_limit_lifted: bool,
    /// Agent: the CLOSE_REQ that began this flush has no CLOSE_RSP yet.
    pub(super) answer_owed: bool,
    /// The error reported to the local end after the flush; none for an orderly end.
    pub(super) cause: Option<Cause>,
    /// The source has not ended. Its bytes are discarded.
    pub(super) reads: bool,
}

/// Where a connection is, for the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Dialing { queued: bool },
    Open,
    Closing { listens: bool },
    Flushing,
    Tombstone,
}

/// The meaning of a FIN of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fin {
    /// The peer had ended before.
    AfterEnd,
    /// The connection is over, or nearly.
    Late,
    /// The peer's direction has ended.
    Received,
    /// Both directions have ended.
    Both,
}

impl State {
    pub(super) fn dialing(target: Option<Target>) -> Self {
        State { inner: Inner::Dialing(target.map(Box::new)) }
    }

    pub(super) fn phase(&self) -> Phase {
        match &self.inner {
            Inner::Dialing(target) => Phase::Dialing { queued: target.is_some() },
            Inner::Open { .. } => Phase::Open,
            Inner::Closing { listens, .. } => Phase::Closing { listens: *listens },
            Inner::Flushing(_) => Phase::Flushing,
            Inner::Tombstone => Phase::Tombstone,
        }
    }

    // ---- questions ----

    /// Whether DATA that arrives now is for the local end.
    pub(crate) fn accepts(&self) -> bool {
        let write_failed = matches!(self.inner, Inner::Open { local: Local::WriteFailed(_), .. });
        self.expects_data() && !write_failed
    }

    /// Whether the peer may still send, and the local end has not been notified of the end.
    fn expects_data(&self) -> bool {
        matches!(
            self.inner,
            Inner::Open { remote: Remote::Sending, .. }
                | Inner::Closing { listens: true, remote: Remote::Sending }
        )
    }

    /// Whether the peer has sent its FIN.
    pub(crate) fn remote_ended(&self) -> bool {
        matches!(self.inner, Inner::Open { remote, .. } | Inner::Closing { remote, .. } if remote != Remote::Sending)
    }

    /// Whether the peer has sent its last DATA. DATA after its FIN or its close is the peer's fault.
    pub(crate) fn peer_ended(&self) -> bool {
        self.remote_ended() || matches!(self.inner, Inner::Flushing(_))
    }

    /// Whether the peer receives grants: to send more or, after its FIN, to know that the local end still reads its
    /// bytes.
    pub(super) fn grants(&self) -> bool {
        self.expects_data() || matches!(self.inner, Inner::Open { .. })
    }

    /// Whether the local source is read, to send or to discard its bytes.
    pub(super) fn reads(&self) -> bool {
        match &self.inner {
            Inner::Open { local, .. } => local.reads(),
            Inner::Flushing(flush) => flush.reads,
            _ => false,
        }
    }

    /// Whether our FIN has told the peer that the local end has sent everything.
    pub(crate) fn fin_sent(&self) -> bool {
        self.last_activity().is_some()
    }

    /// When the peer was last active, since our FIN.
    pub(crate) fn last_activity(&self) -> Option<Time> {
        match &self.inner {
            Inner::Open { local: Local::FinSent { last_activity, .. }, .. } => Some(*last_activity),
            _ => None,
        }
    }

    /// When the local end went, or bytes that it left were last sent.
    pub(super) fn departed(&self) -> Option<Time> {
        match &self.inner {
            Inner::Open { local: Local::Departed(progress), .. } => Some(*progress),
            _ => None,
        }
    }

    /// Why writes to the local end fail.
    pub(crate) fn write_failure(&self) -> Option<&str> {
        match &self.inner {
            Inner::Open { local: Local::WriteFailed(text), .. } => Some(text),
            _ => None,
        }
    }

    pub(crate) fn flushing(&self) -> Option<&Flush> {
        if let Inner::Flushing(flush) = &self.inner { Some(flush) } else { None }
    }

    // ---- transitions ----

    /// Server: DIAL_REQ is sent now, to this target. None if the dial has ended.
    pub(crate) fn send_dial(&mut self) -> Option<Target> {
        let Inner::Dialing(target) = &mut self.inner else { return None };
        target.take().map(|target| *target)
    }

    pub(super) fn open(&mut self) {
        self.inner = Inner::Open { local: Local::Sending, remote: Remote::Sending };
    }

    /// The source has ended, or is not read any more. Returns why writes to the local end fail, if they do.
    pub(crate) fn end_source(&mut self) -> Option<String> {
        match &mut self.inner {
            Inner::Open { local, .. } if local.reads() => match std::mem::replace(local, Local::Ended) {
                Local::WriteFailed(text) => Some(text),
                _ => None,
            },
            Inner::Flushing(flush) => {
                flush.reads = false;
                None
            }
            _ => None,
        }
    }

    /// The source has ended, and the peer is told so by FIN. Returns false if the peer has ended too.
    pub(crate) fn send_fin(&mut self, now: Time) -> bool {
        match &mut self.inner {
            Inner::Open { local, remote: Remote::Sending } => {
                *local = Local::FinSent { last_activity: now, probed: None };
                true
            }
            _ => false,
        }
    }

    /// The peer's FIN arrived.
    pub(crate) fn receive_fin(&mut self) -> Fin {
        match &mut self.inner {
            Inner::Open { local, remote: remote @ Remote::Sending } => {
                *remote = Remote::FinReceived;
                if matches!(local, Local::FinSent { .. }) { Fin::Both } else { Fin::Received }
            }
            Inner::Closing { remote: remote @ Remote::Sending, .. } => {
                *remote = Remote::FinReceived;
                Fin::Late
            }
            Inner::Open { .. } | Inner::Closing { .. } | Inner::Flushing(_) => Fin::AfterEnd,
            Inner::Dialing(_) | Inner::Tombstone => Fin::Late,
        }
    }

    /// The local end has read everything. Returns true if it must now be told that the peer sends no more.
    pub(super) fn shut_down(&mut self) -> bool {
        match &mut self.inner {
            Inner::Open { local, remote: remote @ Remote::FinReceived }
                if !matches!(local, Local::WriteFailed(_)) =>
            {
                *remote = Remote::ShutDown;
                true
            }
            _ => false,
        }
    }

    /// Writes to the local end fail. Returns whether they did before, or an error if nothing is left to read.
    pub(super) fn fail_writes(&mut self, text: String) -> Result<bool, String> {
        match &mut self.inner {
            Inner::Open { local: Local::WriteFailed(_), .. } => Ok(true),
            Inner::Open { local, .. } if local.reads() => {
                *local = Local::WriteFailed(text);
                Ok(false)
            }
            _ => Err(text),
        }
    }

    /// The local end has gone and its unread bytes lack credit. Returns false if that is known.
    pub(crate) fn depart(&mut self, now: Time) -> bool {
        match &mut self.inner {
            Inner::Open { local: local @ Local::Sending, .. } => {
                *local = Local::Departed(now);
                true
            }
            _ => false,
        }
    }

    /// Bytes of the source were sent.
    pub(super) fn on_sent(&mut self, now: Time) {
        if let Inner::Open { local: Local::Departed(progress), .. } = &mut self.inner {
            *progress = now;
        }
    }

    /// The peer is active. Our FIN waits for such activity.
    pub(super) fn on_activity(&mut self, now: Time) {
        if let Inner::Open { local: Local::FinSent { last_activity, probed }, .. } = &mut self.inner {
            (*last_activity, *probed) = (now, None);
        }
    }

    /// The link probes the idle peer. Returns the time of an earlier probe without an answer.
    pub(crate) fn mark_probed(&mut self, now: Time) -> Option<Time> {
        let Inner::Open { local: Local::FinSent { probed, .. }, .. } = &mut self.inner else { return None };
        probed.replace(probed.unwrap_or(now))
    }

    /// Server: CLOSE_REQ is sent.
    pub(super) fn close(&mut self, listens: bool) {
        let remote = match self.inner {
            Inner::Open { remote, .. } | Inner::Closing { remote, .. } => remote,
            _ => Remote::Sending,
        };
        self.inner = Inner::Closing { listens, remote };
    }

    /// The local end receives nothing new. Returns whether its source is still read, to discard its bytes.
    pub(super) fn flush(&mut self, now: Time, cause: Option<Cause>, answer_owed: bool) -> bool {
        let reads = self.reads();
        let cause = self.end_source().map(Cause::Local).or(cause);
        let (since, progress) = (now, now);
        self.inner =
            Inner::Flushing(Flush { since, progress, time_limit_lifted: false, answer_owed, cause, reads });
        reads
    }

    /// The flush may take any time while it progresses.
    pub(crate) fn lift_time_limit(&mut self) {
        if let Inner::Flushing(flush) = &mut self.inner {
            flush.time_limit_lifted = true;
        }
    }

    /// The stream is lost: a flush whose time limit was lifted has the ordinary one from now on.
    pub(crate) fn restore_time_limit(&mut self, now: Time) {
        if let Inner::Flushing(flush) = &mut self.inner
            && std::mem::take(&mut flush.time_limit_lifted)
        {
            (flush.since, flush.progress) = (now, now);
        }
    }

    /// The receive buffer of a flush shrank. Returns false if there is no flush.
    pub(super) fn flush_progressed(&mut self, now: Time) -> bool {
        let Inner::Flushing(flush) = &mut self.inner else { return false };
        flush.progress = now;
        true
    }

    /// The CLOSE_REQ that began the flush is answered, or needs no answer any more. Returns false if it needed none.
    pub(crate) fn answer(&mut self) -> bool {
        let Inner::Flushing(flush) = &mut self.inner else { return false };
        std::mem::take(&mut flush.answer_owed)
    }

    /// The local end has been notified. The connect id stays known.
    pub(super) fn retire(&mut self) {
        self.inner = Inner::Tombstone;
    }
}

impl Local {
    fn reads(&self) -> bool {
        matches!(self, Local::Sending | Local::Departed(_) | Local::WriteFailed(_))
    }
}
