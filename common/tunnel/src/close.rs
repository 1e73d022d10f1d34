//! How connections end: by their sources, by failures, after a flush, with the stream.
//!
//! All ends pass through here and notify the local end exactly once (invariant 2). Accepted bytes are delivered first,
//! within the limits of a flush (invariant 5).

use crate::conn::{Flush, FlushDeadline, State};
use crate::event::{Cause, End, Event};
use crate::link::{Link, Outgoing, Side};
use crate::payload::Payload;
use crate::table::ConnKey;
use crate::time::Time;

/// How many ring entries of ended connections may exist before they are removed.
const STALE_ENTRIES: usize = 64;

impl<S: Side, P: Payload> Link<S, P> {
    pub(crate) fn expired(&mut self, now: Time, key: ConnKey) {
        let Some(conn) = self.table.get(key) else { return };
        match &conn.state {
            State::Flushing(flush) => {
                let stalled = now >= flush.deadline.due(&self.limits);
                if flush.answer_owed && now >= flush.deadline.since.after(self.limits.answer_close) {
                    S::answer_close(self, key);
                }
                if stalled {
                    self.finish_flush(key, Some(Cause::FlushTimeout));
                } else {
                    self.arm_flush(key);
                }
            }
            State::Closing { listens: false } => {
                // The client's close is answered in time. The id is kept as long as CLOSE_RSP may still arrive.
                self.notify(key, End::Flushed);
                let left = self.limits.await_close.saturating_sub(self.limits.answer_close);
                self.arm(key, Some(now.after(left)));
            }
            State::Closing { listens: true } => {
                self.unregister(key);
                self.flush(now, key, Some(Cause::Peer("timed out waiting for CLOSE_RSP".into())), false);
            }
            State::Tombstone => self.remove(key),
            State::Open if conn.fin_sent => self.expire_half(now, key),
            State::Open if conn.write_closed.is_some() => {
                self.end_write_closed(now, key);
            }
            State::Open => self.expire_local_closed(now, key),
            State::Dialing { .. } => {}
        }
    }

    /// The source of an open connection has ended; its local end still listens.
    pub(crate) fn source_ended(&mut self, now: Time, key: ConnKey) {
        if !self.end_half(now, key) {
            S::close(self, now, key, true);
        }
    }

    /// Breaks an open connection.
    pub(crate) fn broke(&mut self, now: Time, key: ConnKey, cause: Cause) {
        S::hang_up(self, now, key, End::Broken(cause));
    }

    /// Writes to the local end fail. Bytes that the local end has sent before are still read and sent, to their end or
    /// for [`Limits::flush_max`](crate::Limits::flush_max); then the connection breaks.
    pub fn write_failed(&mut self, now: Time, key: ConnKey, text: String) {
        let Some(conn) = self.table.get_mut(key) else { return };
        if conn.state != State::Open || !conn.source_open {
            return self.local_failed(now, key, text);
        }
        if conn.write_closed.is_none() {
            conn.write_closed = Some(text);
            conn.drain_rate = None;
            self.drop_recv(key);
            self.arm(key, Some(now.after(self.limits.flush_max)));
            self.readable(key);
        }
    }

    /// The local end has gone and left bytes that cannot be read for lack of credit. They are still sent, within the
    /// limits of a flush.
    pub fn local_closed(&mut self, now: Time, key: ConnKey) {
        let Some(conn) = self.table.get_mut(key) else { return };
        if conn.state == State::Open
            && conn.source_open
            && conn.write_closed.is_none()
            && conn.local_closed.is_none()
        {
            conn.local_closed = Some(FlushDeadline::begin(now));
            self.expire_local_closed(now, key);
        }
    }

    fn expire_local_closed(&mut self, now: Time, key: ConnKey) {
        let Some(deadline) = self.table.get(key).and_then(|conn| conn.local_closed) else { return };
        let due = deadline
            .progress
            .after(self.limits.credit_stall)
            .min(deadline.since.after(self.limits.flush_max));
        if due > now {
            self.arm(key, Some(due));
        } else {
            self.broke(now, key, Cause::FlushTimeout);
        }
    }

    /// Ends a connection whose local end cannot be written to. Returns false if it can.
    pub(crate) fn end_write_closed(&mut self, now: Time, key: ConnKey) -> bool {
        let Some(text) = self.table.get_mut(key).and_then(|conn| conn.write_closed.take()) else {
            return false;
        };
        self.arm(key, None);
        self.broke(now, key, Cause::Local(text));
        true
    }

    /// The local end of this connection broke.
    pub fn local_failed(&mut self, now: Time, key: ConnKey, text: String) {
        let Some(conn) = self.table.get_mut(key) else { return };
        conn.source_open = false;
        self.break_off(now, key, Cause::Local(text));
    }

    /// Ends a connection for a cause on this side, if its local end has not been notified of an end.
    pub(crate) fn break_off(&mut self, now: Time, key: ConnKey, cause: Cause) {
        match self.table.get(key).map(|conn| &conn.state) {
            Some(State::Open) => self.broke(now, key, cause),
            Some(State::Closing { .. }) => self.notify(key, End::Broken(cause)),
            Some(State::Flushing(_)) => self.finish_flush(key, Some(cause)),
            Some(State::Dialing { .. } | State::Tombstone) | None => {}
        }
    }

    /// Nothing can be sent any more, although the shell has not read the stream's end. The outbox is dropped, so that a
    /// full outbox does not stop the shell from reading that end.
    pub fn shutdown_send(&mut self) {
        self.send_shutdown = true;
        self.outbox.clear();
        self.unknown_ids.clear();
        self.grants.clear();
        self.stale_dials = 0;
    }

    /// The stream is lost: every dial and every connection ends. Received bytes are still delivered, within the limits
    /// of a flush; a local end with an empty queue is notified at once.
    pub fn stream_lost(&mut self, now: Time) {
        if self.lost {
            return;
        }
        self.lost = true;
        self.shutdown_send();
        for key in self.table.keys() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            match &mut conn.state {
                State::Dialing { .. } => S::dial_lost(self, key),
                State::Open | State::Closing { .. } => {
                    self.unregister(key);
                    self.flush(now, key, Some(Cause::LinkLost), false);
                }
                State::Tombstone => self.remove(key),
                State::Flushing(flush) => flush.answer_owed = false,
            }
        }
    }

    pub(crate) fn arm_flush(&mut self, key: ConnKey) {
        let Some(State::Flushing(flush)) = self.table.get(key).map(|conn| &conn.state) else { return };
        let mut due = flush.deadline.due(&self.limits);
        if flush.answer_owed {
            due = due.min(flush.deadline.since.after(self.limits.answer_close));
        }
        self.arm(key, Some(due));
    }

    /// The local end receives nothing new. The connection ends once its queue is empty.
    pub(crate) fn flush(&mut self, now: Time, key: ConnKey, cause: Option<Cause>, answer_owed: bool) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let cause = conn.write_closed.take().map(Cause::Local).or(cause);
        conn.state = State::Flushing(Flush { deadline: FlushDeadline::begin(now), answer_owed, cause });
        if conn.recv.is_empty() {
            self.finish_flush(key, None);
            return;
        }
        if conn.source_open {
            // If the rings contain the connection, its entry is skipped from now on.
            conn.in_ring = true;
            self.discards.push(key);
        }
        self.arm_flush(key);
    }

    /// Ends a flush: complete, or with the failure.
    pub(crate) fn finish_flush(&mut self, key: ConnKey, failure: Option<Cause>) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let State::Flushing(flush) = &mut conn.state else { return };
        let cause = failure.or_else(|| flush.cause.take());
        if flush.answer_owed {
            S::answer_close(self, key);
        }
        self.finish(key, cause.map_or(End::Flushed, End::Broken));
    }

    /// Removes the connect id from the index: the peer cannot name the connection any more.
    pub(crate) fn unregister(&mut self, key: ConnKey) {
        if let Some(id) = self.table.get(key).and_then(|conn| conn.id)
            && self.by_id.get(&id) == Some(&key)
        {
            self.by_id.remove(&id);
        }
    }

    /// Ends a connection for its local end and forgets it.
    pub(crate) fn finish(&mut self, key: ConnKey, end: End) {
        self.remove(key);
        self.events.push_back(Event::Ended { key, end });
    }

    /// Server: notifies the local end, and keeps the connect id until CLOSE_RSP.
    pub(crate) fn notify(&mut self, key: ConnKey, end: End) {
        self.retire(key);
        self.events.push_back(Event::Ended { key, end });
    }

    /// The local end is done. The connect id stays known until CLOSE_RSP or the timer.
    pub(crate) fn retire(&mut self, key: ConnKey) {
        self.drop_held(key);
        if let Some(conn) = self.table.get_mut(key) {
            conn.state = State::Tombstone;
            conn.source_open = false;
            conn.drain_rate = None;
        }
    }

    /// Removes all state of a connection.
    pub(crate) fn remove(&mut self, key: ConnKey) {
        self.drop_held(key);
        self.arm(key, None);
        self.unregister(key);
        if let Some(conn) = self.table.remove(key) {
            self.high_bdp_windows -=
                conn.credit.map_or(0, |credit| credit.inflow.beyond(self.limits.window_max));
            if self.dials.get(&conn.random) == Some(&key) {
                self.dials.remove(&conn.random);
            }
            if conn.target.is_some() {
                self.drop_stale_dials();
            }
        }
        // While the stream accepts nothing, no turn removes the ring entries of ended connections.
        if self.rings.len() > 2 * self.table.len() + STALE_ENTRIES {
            let table = &self.table;
            self.rings.retain(|key| table.get(key).is_some_and(|conn| conn.state == State::Open));
        }
    }

    /// A dial ended before its DIAL_REQ had its turn. Its outbox entry is removed later, together with others.
    fn drop_stale_dials(&mut self) {
        self.stale_dials += 1;
        if self.stale_dials > STALE_ENTRIES && self.stale_dials > self.outbox.len() / 2 {
            let table = &self.table;
            self.outbox.retain(|outgoing| match outgoing {
                Outgoing::Control(_) | Outgoing::UnknownConnection(_) => true,
                Outgoing::Dial(key) => table.get(*key).is_some(),
            });
            self.stale_dials = 0;
        }
    }
}
