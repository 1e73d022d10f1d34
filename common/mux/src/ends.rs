//! How connections end: by their sources, by failures, after a flush, with the stream.
//!
//! All ends pass through here and notify the local end exactly once (invariant 2). Accepted bytes are delivered first,
//! within the limits of a flush (invariant 5). With half-close, FIN reports that a source has ended; the connection ends
//! when both sources have ended, or when the remaining direction is idle for [`Side::MAX_HALF_CLOSED_IDLE`] (and, at the
//! server, the agent then answers a probe).

use std::time::Duration;

use crate::conn::{Conn, Phase};
use crate::event::{Cause, CloseReason, Event};
use crate::limits::{CLOSE_TIMEOUT, MAX_CLOSE_ANSWER};
use crate::link::{Link, Side};
use crate::packet::Packet;
use crate::payload::Payload;
use crate::table::ConnKey;
use crate::time::Time;

impl<S: Side, P: Payload> Link<S, P> {
    pub(crate) fn phase(&self, key: ConnKey) -> Option<Phase> {
        self.table.get(key).map(Conn::phase)
    }

    /// A connection's timer has expired.
    pub(crate) fn expire(&mut self, now: Time, key: ConnKey) {
        match self.phase(key) {
            Some(Phase::Open) => self.expire_open(now, key),
            Some(Phase::Flushing) => self.expire_flush(now, key),
            // The client's close is answered in time. The connect id is kept as long as CLOSE_RSP may still arrive.
            Some(Phase::Closing { listens: false }) => {
                self.notify(key, CloseReason::Flushed);
                self.arm(key, Some(now.after(CLOSE_TIMEOUT - MAX_CLOSE_ANSWER)));
            }
            // No CLOSE_RSP arrived, and the local end listens. What it was sent is delivered.
            Some(Phase::Closing { listens: true }) => {
                self.unregister(key);
                self.flush(now, key, Some(Cause::Peer("timed out waiting for CLOSE_RSP".into())), false);
            }
            Some(Phase::Tombstone) => self.remove(key),
            Some(Phase::Dialing { .. }) | None => {}
        }
    }

    fn expire_open(&mut self, now: Time, key: ConnKey) {
        let Some(conn) = self.table.get(key) else { return };
        if let Some(last_activity) = conn.state.last_activity() {
            // Bytes for a slow local end count as activity too.
            let last_activity = if conn.recv().is_empty() { last_activity } else { now };
            let due = last_activity.after(S::MAX_HALF_CLOSED_IDLE);
            if due > now { self.arm(key, Some(due)) } else { S::idle(self, now, key) }
        } else if let Some(due) = conn.state.departed_due() {
            if due > now { self.arm(key, Some(due)) } else { S::reset(self, now, key, Cause::FlushTimeout) }
        } else if let Some(text) = conn.state.write_failure() {
            let cause = Cause::Local(text.to_owned());
            S::reset(self, now, key, cause);
        }
    }

    fn expire_flush(&mut self, now: Time, key: ConnKey) {
        let Some(flush) = self.table.get(key).and_then(|conn| conn.state.flushing()) else { return };
        if now >= flush.end() {
            return self.finish_flush(key, Some(Cause::FlushTimeout));
        }
        if flush.answer_due().is_some_and(|due| now >= due) {
            self.answer_close(key);
        }
        self.arm_flush(key);
    }

    /// Nothing can be sent any more, although the driver has not read the stream's end. The outbox is dropped, so that a
    /// full outbox does not stop the driver from reading that end.
    pub fn shutdown_send(&mut self) {
        self.schedule.shutdown();
    }

    /// The stream is lost: every dial and every connection ends. Received bytes are still delivered, within the limits
    /// of a flush; a local end for which nothing waits is notified at once.
    pub fn stream_lost(&mut self, now: Time) {
        if std::mem::replace(&mut self.lost, true) {
            return;
        }
        self.schedule.shutdown();
        for key in self.table.keys() {
            match self.phase(key) {
                None => {}
                Some(Phase::Dialing { .. }) => S::dial_lost(self, key),
                Some(Phase::Open | Phase::Closing { .. }) => {
                    self.unregister(key);
                    self.flush(now, key, Some(Cause::LinkLost), false);
                }
                Some(Phase::Tombstone) => self.remove(key),
                Some(Phase::Flushing) => {
                    if let Some(conn) = self.table.get_mut(key) {
                        conn.state.answer();
                        conn.state.restore_time_limit(now);
                        self.arm_flush(key);
                    }
                }
            }
        }
    }

    // ---- the steps of an end ----

    /// Notifies the local end of the peer's FIN once it has read everything that came before the FIN.
    pub(crate) fn shut_down(&mut self, key: ConnKey) {
        if self.table.get_mut(key).is_some_and(Conn::shut_down) {
            self.events.push_back(Event::ShutDown { key });
        }
    }

    /// Ends a connection for a cause on this side, if its local end has not been notified of an end.
    pub(crate) fn break_off(&mut self, now: Time, key: ConnKey, cause: Cause) {
        match self.phase(key) {
            Some(Phase::Open) => S::reset(self, now, key, cause),
            Some(Phase::Closing { .. }) => self.notify(key, CloseReason::Broken(cause)),
            Some(Phase::Flushing) => self.finish_flush(key, Some(cause)),
            Some(Phase::Dialing { .. } | Phase::Tombstone) | None => {}
        }
    }

    /// The local end receives nothing new. The connection ends once its receive buffer is empty.
    pub(crate) fn flush(&mut self, now: Time, key: ConnKey, cause: Option<Cause>, answer_owed: bool) {
        let Some(conn) = self.table.get_mut(key) else { return };
        if conn.flush(now, cause, answer_owed) {
            self.schedule.discards.push(key);
        }
        if conn.recv().is_empty() { self.finish_flush(key, None) } else { self.arm_flush(key) }
    }

    pub(crate) fn arm_flush(&mut self, key: ConnKey) {
        if let Some(due) = self.table.get(key).and_then(|conn| conn.state.flush_due()) {
            self.arm(key, Some(due));
        }
    }

    /// The local end may take long to read the rest of a flush, if there is one.
    pub(crate) fn flush_without_time_limit(&mut self, key: ConnKey) {
        if let Some(conn) = self.table.get_mut(key) {
            conn.state.lift_time_limit();
            self.arm_flush(key);
        }
    }

    /// Ends a flush: complete, or with the failure.
    pub(crate) fn finish_flush(&mut self, key: ConnKey, failure: Option<Cause>) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let Some(end) = conn.state.flush_end(failure) else { return };
        self.answer_close(key);
        self.finish(key, end);
    }

    /// Agent: answers the CLOSE_REQ that began a flush, unless it is answered.
    fn answer_close(&mut self, key: ConnKey) {
        if self.table.get_mut(key).is_some_and(|conn| conn.state.answer()) {
            self.say_closed(key, String::new());
        }
    }

    /// Agent: sends CLOSE_RSP, the last packet of a connection. From here on the peer cannot name the connection.
    pub(crate) fn say_closed(&mut self, key: ConnKey, error: String) {
        self.unregister(key);
        if let Some(id) = self.connect_id(key) {
            self.send(Packet::CloseRsp { id, error });
        }
    }

    /// Server: sends CLOSE_REQ, after the pause behind the last DATA. `within`: how long the link waits for CLOSE_RSP before it
    /// proceeds without it.
    pub(crate) fn request_close(&mut self, now: Time, key: ConnKey, within: Duration) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let due = conn.last_sent.after(self.limits.close_pause);
        if due > now {
            conn.close_owed = Some(within);
            return self.arm(key, Some(due));
        }
        if let Some(id) = conn.id {
            self.send(Packet::CloseReq { id });
        }
        self.arm(key, Some(now.after(within)));
    }

    /// Ends a connection for its local end and forgets it.
    pub(crate) fn finish(&mut self, key: ConnKey, end: CloseReason) {
        self.remove(key);
        self.events.push_back(Event::Ended { key, end });
    }

    /// Server: notifies the local end, and keeps the connect id until CLOSE_RSP.
    pub(crate) fn notify(&mut self, key: ConnKey, end: CloseReason) {
        self.retire(key);
        self.events.push_back(Event::Ended { key, end });
    }

    /// The local end is done. The connect id stays known until CLOSE_RSP or the timer.
    pub(crate) fn retire(&mut self, key: ConnKey) {
        self.change(key, Conn::retire);
    }
}
