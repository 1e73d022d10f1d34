//! How connections end: by their sources, by failures, after a flush, with the stream.
//!
//! Every way out passes here, and tells the local end once (invariant 2). What was accepted is delivered first,
//! within the bounds of a flush (invariant 5).

use crate::conn::{Flush, Pace, State};
use crate::event::{Cause, End, Event};
use crate::link::{Link, Outgoing, Side};
use crate::table::ConnKey;
use crate::time::Time;

/// Places in the rings that connections which have gone may hold before they are cleared away.
const STALE_PLACES: usize = 64;

impl<S: Side> Link<S> {
    pub(crate) fn expired(&mut self, now: Time, key: ConnKey) {
        let Some(conn) = self.table.get(key) else { return };
        match &conn.state {
            State::Flushing(flush) => {
                let stalled = now >= flush.pace.due(&self.limits);
                if flush.answer_owed && now >= flush.pace.since.after(self.limits.answer_close) {
                    S::answer_close(self, key);
                }
                if stalled {
                    self.settle(key, Some(Cause::FlushTimeout));
                } else {
                    self.arm_flush(key);
                }
            }
            State::Closing { listens: false } => {
                // Who has closed is answered in time. The number stays known for as long as it is expected back.
                self.tell(key, End::Flushed);
                let left = self.limits.await_close.saturating_sub(self.limits.answer_close);
                self.arm(key, Some(now.after(left)));
            }
            State::Closing { listens: true } => {
                self.unregister(key);
                self.flush(now, key, Some(Cause::Peer("timed out waiting for CLOSE_RSP".into())), false);
            }
            State::Forgetting => self.forget(key),
            State::Open if conn.fin_sent => self.expire_half(now, key),
            State::Open if conn.deaf.is_some() => {
                self.stop_deaf(now, key);
            }
            State::Open => self.expire_leaving(now, key),
            State::Dialing { .. } => {}
        }
    }

    /// The source of an open connection ended, its local end listens on.
    pub(crate) fn source_ended(&mut self, now: Time, key: ConnKey) {
        if !self.end_half(now, key) {
            S::close(self, now, key, true);
        }
    }

    /// Breaks an open connection.
    pub(crate) fn broke(&mut self, now: Time, key: ConnKey, cause: Cause) {
        S::hang_up(self, now, key, End::Broken(cause));
    }

    /// The local end of this connection takes no more. What it has sent before is still read and sent, to its end or
    /// for as long as a flush may take; then the connection breaks.
    pub fn write_failed(&mut self, now: Time, key: ConnKey, text: String) {
        let Some(conn) = self.table.get_mut(key) else { return };
        if conn.state != State::Open || !conn.source_open {
            return self.local_failed(now, key, text);
        }
        if conn.deaf.is_none() {
            conn.deaf = Some(text);
            conn.watch = None;
            self.set_queued(key, 0);
            self.arm(key, Some(now.after(self.limits.flush_max)));
            self.readable(key);
        }
    }

    /// The local end of this connection has gone for good, and left bytes that lack of credit keeps from being read:
    /// they are still sent, within the bounds of a flush.
    pub fn leaving(&mut self, now: Time, key: ConnKey) {
        let Some(conn) = self.table.get_mut(key) else { return };
        if conn.state == State::Open && conn.source_open && conn.deaf.is_none() && conn.leaving.is_none() {
            conn.leaving = Some(Pace::begin(now));
            self.expire_leaving(now, key);
        }
    }

    fn expire_leaving(&mut self, now: Time, key: ConnKey) {
        let Some(pace) = self.table.get(key).and_then(|conn| conn.leaving) else { return };
        let due = pace.progress.after(self.limits.credit_stall).min(pace.since.after(self.limits.flush_max));
        if due > now {
            self.arm(key, Some(due));
        } else {
            self.broke(now, key, Cause::FlushTimeout);
        }
    }

    /// Ends a connection whose local end takes no more; false if it does.
    pub(crate) fn stop_deaf(&mut self, now: Time, key: ConnKey) -> bool {
        let Some(text) = self.table.get_mut(key).and_then(|conn| conn.deaf.take()) else { return false };
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

    /// Ends a connection that has a local end to be told, for a cause on this side.
    pub(crate) fn break_off(&mut self, now: Time, key: ConnKey, cause: Cause) {
        match self.table.get(key).map(|conn| &conn.state) {
            Some(State::Open) => self.broke(now, key, cause),
            Some(State::Closing { .. }) => self.tell(key, End::Broken(cause)),
            Some(State::Flushing(_)) => self.settle(key, Some(cause)),
            Some(State::Dialing { .. } | State::Forgetting) | None => {}
        }
    }

    /// Nothing can be sent any more, although the stream's end has not been read: what waits to be sent is dropped, so
    /// that it does not keep the end from being read.
    pub fn mute(&mut self) {
        self.muted = true;
        self.outbox.clear();
        self.strays.clear();
        self.grants.clear();
        self.stale_dials = 0;
    }

    /// The stream is gone: every dial and every connection ends. What has arrived is still delivered, within the
    /// bounds of a flush; with nothing queued the end is told at once.
    pub fn lose(&mut self, now: Time) {
        if self.lost {
            return;
        }
        self.lost = true;
        self.mute();
        for key in self.table.keys() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            match &mut conn.state {
                State::Dialing { .. } => S::dial_lost(self, key),
                State::Open | State::Closing { .. } => {
                    self.unregister(key);
                    self.flush(now, key, Some(Cause::LinkLost), false);
                }
                State::Forgetting => self.forget(key),
                State::Flushing(flush) => flush.answer_owed = false,
            }
        }
    }

    pub(crate) fn arm_flush(&mut self, key: ConnKey) {
        let Some(State::Flushing(flush)) = self.table.get(key).map(|conn| &conn.state) else { return };
        let mut due = flush.pace.due(&self.limits);
        if flush.answer_owed {
            due = due.min(flush.pace.since.after(self.limits.answer_close));
        }
        self.arm(key, Some(due));
    }

    /// No more arrives for the local end: ends at once if nothing is queued, else when it has been taken.
    pub(crate) fn flush(&mut self, now: Time, key: ConnKey, cause: Option<Cause>, answer_owed: bool) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let cause = conn.deaf.take().map(Cause::Local).or(cause);
        conn.state = State::Flushing(Flush { pace: Pace::begin(now), answer_owed, cause });
        if conn.queued == 0 {
            self.settle(key, None);
            return;
        }
        if conn.source_open {
            // Its place in the rings, if it has one, is passed over from now on.
            conn.in_ring = true;
            self.discards.push_back(key);
        }
        self.arm_flush(key);
    }

    /// A flush is over, well or (with a cause) not.
    pub(crate) fn settle(&mut self, key: ConnKey, failure: Option<Cause>) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let State::Flushing(flush) = &mut conn.state else { return };
        let cause = failure.or_else(|| flush.cause.take());
        if flush.answer_owed {
            S::answer_close(self, key);
        }
        self.finish(key, cause.map_or(End::Flushed, End::Broken));
    }

    /// Takes the connection's number out of the peer's reach.
    pub(crate) fn unregister(&mut self, key: ConnKey) {
        if let Some(id) = self.table.get(key).and_then(|conn| conn.id)
            && self.by_id.get(&id) == Some(&key)
        {
            self.by_id.remove(&id);
        }
    }

    /// Ends a connection for its local end and forgets it.
    pub(crate) fn finish(&mut self, key: ConnKey, end: End) {
        self.forget(key);
        self.events.push_back(Event::Ended { key, end });
    }

    /// Server: tells the local end, and keeps the number until the peer's last word.
    pub(crate) fn tell(&mut self, key: ConnKey, end: End) {
        self.retire(key);
        self.events.push_back(Event::Ended { key, end });
    }

    /// The local end is out of it; the number stays known until the peer's last word or the timer.
    pub(crate) fn retire(&mut self, key: ConnKey) {
        self.drop_held(key);
        if let Some(conn) = self.table.get_mut(key) {
            conn.state = State::Forgetting;
            conn.source_open = false;
            conn.watch = None;
        }
    }

    /// Removes every trace.
    pub(crate) fn forget(&mut self, key: ConnKey) {
        self.drop_held(key);
        self.arm(key, None);
        self.unregister(key);
        if let Some(conn) = self.table.remove(key) {
            self.far_windows -= conn.credit.map_or(0, |credit| credit.inflow.beyond(self.limits.window_max));
            if self.dials.get(&conn.random) == Some(&key) {
                self.dials.remove(&conn.random);
            }
            if conn.target.is_some() {
                self.drop_stale_dials();
            }
        }
        // While the stream takes nothing, nobody passes over the places of connections that have gone.
        if self.rings.len() > 2 * self.table.len() + STALE_PLACES {
            let table = &self.table;
            self.rings.retain(|key| table.get(key).is_some_and(|conn| conn.state == State::Open));
        }
    }

    /// A dial went before its DIAL_REQ had its turn: its place in the outbox is cleared away with others, at times.
    fn drop_stale_dials(&mut self) {
        self.stale_dials += 1;
        if self.stale_dials > STALE_PLACES && self.stale_dials > self.outbox.len() / 2 {
            let table = &self.table;
            self.outbox.retain(|outgoing| match outgoing {
                Outgoing::Control(_) | Outgoing::Stray(_) => true,
                Outgoing::Dial(key) => table.get(*key).is_some(),
            });
            self.stale_dials = 0;
        }
    }
}
