//! One connection: its state, its bytes, its credit and its rules. It knows no link: the link acts on what the methods
//! return.

mod buffer;
mod close;
mod flow;
mod state;

use std::time::Duration;

use self::buffer::DrainRate;
use self::flow::Credit;
use self::state::State;
use crate::event::Cause;
use crate::limits::{Limits, Windows};
use crate::packet::{ConnectId, DialId};
use crate::payload::Payload;
use crate::time::Time;

pub use self::buffer::{Buffer, Fill};
pub(crate) use self::flow::Growth;
pub(crate) use self::state::{Fin, Phase, Target};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Conn<P> {
    pub(crate) state: State,
    pub(crate) random: DialId,
    /// Set from `Open` on. The link's index contains it as long as the peer may use it.
    pub(crate) id: Option<ConnectId>,
    /// The bytes that wait for the local end, and how fast they drain.
    recv: Buffer<P>,
    recv_rate: Option<DrainRate>,
    /// Bytes that the local end has read from its source and cannot send for lack of credit, and how fast they drain.
    ahead: usize,
    ahead_rate: Option<DrainRate>,
    /// Flow control, if negotiated. Set from `Open` on.
    credit: Option<Credit>,
    /// The schedule has an entry for the source.
    in_ring: bool,
    pub(crate) timer: Option<Time>,
    /// When bytes of the source were last sent.
    pub(crate) last_sent: Time,
    /// Server: the timer sends CLOSE_REQ, and then waits for its answer for so long.
    pub(crate) close_owed: Option<Duration>,
}

/// The memory that a connection uses, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// Charged for the receive buffer.
    pub(crate) queued: usize,
    /// Held by the local end for lack of credit.
    pub(crate) ahead: usize,
    /// By how much the window exceeds the limit for a low RTT.
    pub(crate) beyond: usize,
}

/// The consequences of bytes that the local end has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advanced {
    /// A GRANT became due.
    pub(crate) grant: bool,
    /// A flush made progress.
    pub(crate) progress: bool,
    /// No bytes wait any more.
    pub(crate) empty: bool,
}

impl<P: Payload> Conn<P> {
    /// A dial. At the server, its target.
    pub(crate) fn dialing(random: DialId, target: Option<Target>) -> Self {
        Conn {
            state: State::dialing(target),
            random,
            id: None,
            recv: Buffer::default(),
            recv_rate: None,
            ahead: 0,
            ahead_rate: None,
            credit: None,
            in_ring: false,
            timer: None,
            last_sent: Time::START,
            close_owed: None,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state.phase()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.phase() == Phase::Open
    }

    pub(crate) fn recv(&self) -> &Buffer<P> {
        &self.recv
    }

    pub(crate) fn usage(&self, limits: &Limits) -> Usage {
        let beyond = self.credit.as_ref().map_or(0, |credit| credit.inflow.beyond(limits.window_max));
        Usage { queued: self.recv.charged(), ahead: self.ahead, beyond }
    }

    /// How full the receive buffer is.
    pub(crate) fn fill(&self, limits: &Limits) -> Fill {
        match &self.credit {
            _ if self.recv.charged() > limits.hard_cap => Fill::HoldsUpLink,
            Some(credit) if credit.inflow.is_full() => Fill::Full,
            _ => Fill::Room,
        }
    }

    /// Returns true if a GRANT became due.
    pub(crate) fn open(&mut self, id: ConnectId, windows: Option<Windows>, growth: &Growth) -> bool {
        self.state.open();
        self.id = Some(id);
        self.credit = windows.map(Credit::new);
        self.credit.as_mut().is_some_and(|credit| credit.open(growth))
    }

    // ---- from the peer to the local end ----

    /// Adds DATA to the receive buffer. Returns false if it exceeds the peer's credit.
    pub(crate) fn receive(&mut self, now: Time, payload: P) -> bool {
        self.state.on_activity(now);
        let allowed = self.credit.as_mut().is_none_or(|credit| credit.inflow.receive(payload.len()));
        if allowed {
            self.recv.push(payload);
        }
        allowed
    }

    /// The local end has accepted the first `count` bytes; the other bytes have to wait.
    pub(crate) fn advance(&mut self, now: Time, count: usize, limits: &Limits, growth: &Growth) -> Advanced {
        let before = self.recv.charged();
        let removed = self.recv.advance(count);
        let charged = self.recv.charged();
        if before <= limits.soft_cap && charged > limits.soft_cap {
            DrainRate::restart(&mut self.recv_rate, now);
        } else {
            DrainRate::record(&mut self.recv_rate, now, before, charged);
        }
        let (grants, finished) = (self.state.grants(), self.state.remote_ended());
        let credit = self.credit.as_mut().filter(|_| removed > 0 && grants);
        Advanced {
            grant: credit.is_some_and(|credit| credit.take(removed, growth, finished)),
            progress: charged < before && self.state.flush_progressed(now),
            empty: self.recv.is_empty(),
        }
    }

    /// Drops the bytes that wait for the local end.
    pub(crate) fn drop_recv(&mut self) {
        self.recv.clear();
        self.recv_rate = None;
    }

    /// The offset of the GRANT that became due. None if the peer needs none any more.
    pub(crate) fn grant(&mut self) -> Option<u64> {
        let grants = self.state.grants();
        self.credit.as_mut().filter(|_| grants).map(|credit| credit.inflow.grant())
    }

    /// Returns true if the local end must now be told that the peer sends no more: once, when it has read everything.
    pub(crate) fn shut_down(&mut self) -> bool {
        self.recv.is_empty() && self.state.shut_down()
    }

    /// Writes to the local end fail, and what waits for it is dropped. Its source is still read. Returns whether writes
    /// failed before.
    ///
    /// # Errors
    /// The text, if there is no source to be read.
    pub(crate) fn fail_writes(&mut self, text: String) -> Result<bool, String> {
        let known = self.state.fail_writes(text)?;
        self.drop_recv();
        Ok(known)
    }

    // ---- from the local end to the peer ----

    /// Marks the source for a list of the schedule. Returns false if it is marked already, or is not read.
    pub(crate) fn enlist(&mut self) -> bool {
        self.state.reads() && !std::mem::replace(&mut self.in_ring, true)
    }

    /// The turn of a source whose bytes are sent: at most this many bytes are read, none for lack of credit. None if it has ended, or
    /// its connection has.
    pub(crate) fn turn(&mut self) -> Option<usize> {
        if !self.is_open() {
            return None;
        }
        self.in_ring = false;
        if !self.state.reads() {
            return None;
        }
        Some(self.credit.as_mut().map_or(usize::MAX, |credit| credit.outflow.room_now()))
    }

    /// The turn of a source whose bytes are dropped. Returns false if it has ended.
    pub(crate) fn discard_turn(&mut self) -> bool {
        self.in_ring = false;
        self.state.reads()
    }

    /// Bytes of the source are sent.
    pub(crate) fn send(&mut self, now: Time, bytes: usize) {
        if let Some(credit) = &mut self.credit {
            credit.outflow.send(bytes);
        }
        self.state.on_sent(now);
        self.last_sent = now;
    }

    /// A GRANT arrived. Returns true if a source without credit may be read again.
    pub(crate) fn allow(&mut self, now: Time, offset: u64) -> bool {
        self.state.on_activity(now);
        self.credit.as_mut().is_some_and(|credit| credit.outflow.allow(offset)) && self.is_open()
    }

    /// The local end holds this many bytes for lack of credit.
    pub(crate) fn hold_ahead(&mut self, now: Time, bytes: usize) {
        let before = std::mem::replace(&mut self.ahead, bytes);
        DrainRate::record(&mut self.ahead_rate, now, before, bytes);
    }

    // ---- the end ----

    /// Server: CLOSE_REQ is sent. Without a local end that listens, what waits for it is dropped.
    pub(crate) fn close(&mut self, listens: bool) {
        self.state.close(listens);
        if !listens {
            self.drop_recv();
        }
    }

    /// The local end receives nothing new; its receive buffer is delivered first. Returns true if the source is still
    /// read, to discard its bytes.
    pub(crate) fn flush(&mut self, now: Time, cause: Option<Cause>, answer_owed: bool) -> bool {
        let reads = self.state.flush(now, cause, answer_owed) && !self.recv.is_empty();
        // If the schedule has an entry for bytes to be sent, it is skipped from now on.
        self.in_ring |= reads;
        reads
    }

    /// The local end has been notified of the end. The connect id stays known.
    pub(crate) fn retire(&mut self) {
        self.state.retire();
        self.drop_recv();
        (self.ahead, self.ahead_rate) = (0, None);
    }

    // ---- memory ----

    /// Whether the receive buffer drains too slowly: None if it is not known. The next measure begins.
    pub(crate) fn measure(&mut self, now: Time, limits: &Limits) -> Option<bool> {
        let slow = self.recv_rate?.is_slow(now, limits)?;
        DrainRate::restart(&mut self.recv_rate, now);
        Some(slow)
    }

    /// Whether the receive buffer or the bytes held by the local end drain too slowly.
    pub(crate) fn has_stalled(&self, now: Time, limits: &Limits) -> bool {
        let mut rates = [self.recv_rate, self.ahead_rate].into_iter().flatten();
        rates.any(|rate| rate.is_slow(now, limits) == Some(true))
    }

    /// The next measure begins for what was measured long enough.
    pub(crate) fn measure_anew(&mut self, now: Time, limits: &Limits) {
        for rate in [&mut self.recv_rate, &mut self.ahead_rate] {
            if rate.is_some_and(|rate| rate.is_slow(now, limits).is_some()) {
                DrainRate::restart(rate, now);
            }
        }
    }
}
