//! Half-close: FIN reports that a source has ended; the other direction continues.
//!
//! Only if both peers negotiated it. The connection ends when both sources have ended, or when the remaining direction
//! is idle for [`Limits::half_closed_server`] or [`Limits::half_closed_agent`].
//!
//! [`Limits::half_closed_server`]: crate::Limits::half_closed_server
//! [`Limits::half_closed_agent`]: crate::Limits::half_closed_agent

use crate::conn::State;
use crate::event::{Disposition, Dropped, End, Event};
use crate::link::{Link, Side};
use crate::packet::{ConnectId, Packet};
use crate::payload::Payload;
use crate::table::ConnKey;
use crate::time::Time;

impl<S: Side, P: Payload> Link<S, P> {
    /// The local source of an open connection ended while its local end still listens. Sends FIN and returns true if
    /// the connection can continue half-closed.
    pub(crate) fn end_half(&mut self, now: Time, key: ConnKey) -> bool {
        let Some(conn) = self.table.get_mut(key) else { return false };
        let (true, true, Some(id)) = (self.negotiated.half_close, conn.peer_open, conn.id) else {
            return false;
        };
        conn.fin_sent = true;
        conn.last_activity = now;
        self.send(Packet::Fin { id });
        let due = now.after(S::half_closed(&self.limits));
        self.arm(key, Some(due));
        true
    }

    /// The timer of a connection whose FIN was sent.
    pub(crate) fn expire_half(&mut self, now: Time, key: ConnKey) {
        let Some(conn) = self.table.get(key) else { return };
        // A queue for a slow local end counts as activity too.
        let last_activity = if conn.recv.charged() > 0 { now } else { conn.last_activity };
        let due = last_activity.after(S::half_closed(&self.limits));
        if due > now {
            self.arm(key, Some(due));
        } else {
            S::close(self, now, key, true);
        }
    }

    pub(crate) fn handle_fin(&mut self, now: Time, id: ConnectId) -> Disposition {
        if !self.negotiated.half_close {
            return Disposition::Dropped(Dropped::NotAgreed);
        }
        let Some(&key) = self.by_id.get(&id) else {
            return self.unknown(id);
        };
        let Some(conn) = self.table.get_mut(key) else { return Disposition::Handled };
        if !std::mem::replace(&mut conn.peer_open, false) {
            return Disposition::Dropped(Dropped::AfterEnd);
        }
        if conn.state == State::Open {
            if conn.fin_sent {
                S::both_ended(self, now, key);
            }
            self.shut_when_flushed(key);
        }
        Disposition::Handled
    }

    /// Notifies the local end of the peer's FIN once it has read everything that came before the FIN.
    pub(crate) fn shut_when_flushed(&mut self, key: ConnKey) {
        if let Some(conn) = self.table.get_mut(key)
            && conn.state == State::Open
            && !conn.peer_open
            && !conn.shut
            && conn.write_closed.is_none()
            && conn.recv.is_empty()
        {
            conn.shut = true;
            self.events.push_back(Event::ShutDown { key });
        }
    }

    /// The answer to [`Event::ShutDown`] for a local end without half-close (a gRPC frontend): the peer's FIN ends the
    /// connection.
    pub fn cannot_half_close(&mut self, now: Time, key: ConnKey) {
        if self.table.get(key).is_some_and(|conn| conn.state == State::Open && conn.shut) {
            S::hang_up(self, now, key, End::Flushed);
        }
    }
}
