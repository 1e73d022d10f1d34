//! The reports of the driver about local ends: bytes that they accept and send, and how they end.

use crate::event::{Cause, SourceEnd};
use crate::limits::MAX_FLUSH;
use crate::link::{Link, Side};
use crate::packet::Packet;
use crate::payload::Payload;
use crate::table::ConnKey;
use crate::time::Time;

/// The most bytes in one DATA packet. A byte in 64 KiB costs a quarter of a byte in 16 KiB; 128 KiB gain nothing (measured).
const MAX_DATA_BYTES: usize = 64 << 10;

impl<S: Side, P: Payload> Link<S, P> {
    // ---- bytes ----

    /// This connection's source may have bytes.
    pub fn readable(&mut self, key: ConnKey) {
        if let Some(conn) = self.table.get_mut(key) {
            self.schedule.enlist(key, conn, true);
        }
    }

    /// Bytes that were read for a [`crate::Transmit::Read`] or [`crate::Transmit::Discard`]. Returns the packets to send now, in order:
    /// none if the bytes are discarded.
    pub fn push(
        &mut self,
        now: Time,
        key: ConnKey,
        mut payload: P,
    ) -> impl Iterator<Item = Packet<P>> + use<S, P> {
        let mut id = None;
        if let Some(conn) = self.table.get_mut(key) {
            id = conn.id.filter(|_| conn.is_open());
            match id {
                Some(_) => conn.send(now, payload.len()),
                None => self.schedule.discards.spend(payload.len()),
            }
            self.schedule.enlist(key, conn, false);
        }
        std::iter::from_fn(move || {
            let id = id.filter(|_| !payload.is_empty())?;
            Some(Packet::Data { id, payload: payload.split_to(MAX_DATA_BYTES) })
        })
    }

    /// The local end has accepted the first `count` bytes of [`Link::recv`]; the other bytes have to wait. Call this once
    /// after each offer, even if nothing was accepted.
    pub fn advance(&mut self, now: Time, key: ConnKey, count: usize) {
        let growth = self.growth();
        let Some(conn) = self.table.get_mut(key) else { return };
        let before = conn.usage(&self.limits);
        let advanced = conn.advance(now, count, &self.limits, &growth);
        self.memory.count(before, conn.usage(&self.limits), &self.limits);
        if advanced.grant {
            self.schedule.send_grant(key);
        }
        if advanced.progress {
            self.arm_flush(key);
        }
        if advanced.empty {
            self.finish_flush(key, None);
            self.shut_down(key);
        }
        let over_limit = self.memory.is_over_limit(&self.limits);
        if self.memory.begin_measure(now, over_limit) && self.negotiated.credits.is_some() {
            // Only memory is short here, and the drain rates are already known.
            self.reset_slow(now);
        }
    }

    /// The bytes that the local end has read from its source and cannot send for lack of credit. Zero once they are sent.
    pub fn holds_ahead(&mut self, now: Time, key: ConnKey, bytes: usize) {
        self.change(key, |conn| conn.hold_ahead(now, bytes));
    }

    // ---- ends ----

    /// The source of this connection has ended, or its local end broke.
    pub fn end_source(&mut self, now: Time, key: ConnKey, end: SourceEnd) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let open = conn.is_open();
        let write_failure = conn.state.end_source();
        match end {
            SourceEnd::Failed(text) => self.break_off(now, key, Cause::Local(text)),
            SourceEnd::Eof | SourceEnd::Closed if open && write_failure.is_some() => {
                self.arm(key, None);
                self.break_off(now, key, Cause::Local(write_failure.unwrap_or_default()));
            }
            SourceEnd::Eof if open => self.end_direction(now, key),
            SourceEnd::Closed if open => S::close(self, now, key, false),
            SourceEnd::Eof => {}
            SourceEnd::Closed => self.finish_flush(key, None),
        }
    }

    /// The source of an open connection has ended; its local end still listens. Sends FIN if the connection can continue
    /// half-closed.
    fn end_direction(&mut self, now: Time, key: ConnKey) {
        let half_close = self.negotiated.half_close;
        let Some(conn) = self.table.get_mut(key) else { return };
        let Some(id) = conn.id.filter(|_| half_close && conn.state.send_fin(now)) else {
            return S::close(self, now, key, true);
        };
        self.send(Packet::Fin { id });
        self.arm(key, Some(now.after(S::MAX_HALF_CLOSED_IDLE)));
    }

    /// Writes to the local end fail. Bytes that the local end has sent before are still read and sent, to their end or
    /// for 60 s; then the connection breaks.
    pub fn write_failed(&mut self, now: Time, key: ConnKey, text: String) {
        match self.change(key, |conn| conn.fail_writes(text)) {
            None | Some(Ok(true)) => {}
            Some(Ok(false)) => {
                self.arm(key, Some(now.after(MAX_FLUSH)));
                self.readable(key);
            }
            Some(Err(text)) => self.end_source(now, key, SourceEnd::Failed(text)),
        }
    }

    /// The local end has gone, or has only ended, and left bytes that cannot be read for lack of credit. They are still sent, until
    /// the peer takes none for 45 s.
    pub fn local_closed(&mut self, now: Time, key: ConnKey) {
        if let Some(conn) = self.table.get_mut(key)
            && conn.state.depart(now)
        {
            let due = conn.state.departed_due();
            self.arm(key, due);
        }
    }

    // ---- after the end ----

    /// How many bytes the local end of an ended connection may discard now. Zero while others wait: then
    /// [`Link::linger`] and [`crate::Transmit::Linger`] bring its turn.
    pub fn discard_allowance(&mut self, now: Time) -> usize {
        self.schedule.discards.allowance(now, &self.limits)
    }

    /// Whether [`Link::poll_transmit`] would return a discard now, without a budget.
    pub fn has_to_discard(&mut self, now: Time) -> bool {
        self.schedule.discards.is_ready(now, &self.limits)
    }

    /// The local end of an ended connection has discarded this many bytes.
    pub fn discarded(&mut self, bytes: usize) {
        self.schedule.discards.spend(bytes);
    }

    /// The local end of an ended connection has more to discard than its allowance.
    pub fn linger(&mut self, key: ConnKey) {
        if self.table.begin_lingering(key) {
            self.schedule.discards.push(key);
        }
    }

    /// The local end of this connection is gone, and its key may be used again.
    pub fn release(&mut self, key: ConnKey) {
        self.table.release(key);
    }
}
