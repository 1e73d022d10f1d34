//! The agent's end of an agent stream: it is asked to dial, and numbers the connections.

use std::time::Duration;

use crate::conn::{Conn, State};
use crate::credit::Credit;
use crate::event::{Cause, Control, Dropped, End, Event, Verdict};
use crate::limits::Limits;
use crate::link::{Link, Side};
use crate::packet::{ConnectId, DialId, Packet, cut_error};
use crate::table::ConnKey;
use crate::time::Time;

/// The agent's end. Connect ids count up from 1 on each stream, or from where [`Link::number_beyond`] says, and are never used twice
/// on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Agent {
    last_id: i64,
    pending: usize,
    draining: bool,
}

/// What a Go agent says of a DATA that it cannot place.
const UNRECOGNIZED: &str = "unrecognized connectID";
/// What a Go agent says of a CLOSE_REQ that it cannot place.
const UNKNOWN: &str = "Unknown connectID";
/// Servers map a text that contains `too many open files` to status 503: this agent is full, not the target bad.
const FULL: &str = "too many open files: this agent stream carries as many dials or connections as it may";

/// What an agent says whose memory is short.
const PRESSED: &str =
    "out of memory for connections: payload that waits for slow readers fills --memory-limit";

impl Link<Agent> {
    /// Connections that open from now on get ids above this one. For servers that take the ids of all streams of an agent for one
    /// sequence.
    pub fn number_beyond(&mut self, id: ConnectId) {
        self.side.last_id = self.side.last_id.max(id.0);
    }

    /// The outcome of an [`Event::Dial`]; on failure the text that a Go dialler would give. False if nobody waits
    /// for it any more: the socket is to be closed.
    pub fn dialed(&mut self, key: ConnKey, outcome: Result<(), String>) -> bool {
        let Some(conn) = self.table.get_mut(key) else { return false };
        if !matches!(conn.state, State::Dialing { .. }) {
            return false;
        }
        let random = conn.random;
        self.side.pending -= 1;
        self.dials.remove(&random);
        // Failed dials consume a number too, as Go's do.
        self.side.last_id += 1;
        match outcome {
            Ok(()) => {
                let id = ConnectId(self.side.last_id);
                conn.state = State::Open;
                conn.id = Some(id);
                conn.credit = self.terms.credits.map(Credit::new);
                self.by_id.insert(id, key);
                self.send(Packet::DialRsp { random, outcome: Ok(id) });
                true
            }
            Err(text) => {
                self.forget(key);
                // An empty error would mean success.
                let text = if text.is_empty() { "dial failed" } else { cut_error(&text) };
                self.send(Packet::DialRsp { random, outcome: Err(text.to_owned()) });
                false
            }
        }
    }

    /// The number of an open connection, for the log.
    pub fn connect_id(&self, key: ConnKey) -> Option<ConnectId> {
        self.table.get(key)?.id
    }

    /// The server's number of a dial, or of the dial that brought a connection, for the log.
    pub fn dial_id(&self, key: ConnKey) -> Option<DialId> {
        Some(self.table.get(key)?.random)
    }

    /// Asks the server for no new dials, once.
    pub fn drain(&mut self) {
        if !std::mem::replace(&mut self.side.draining, true) {
            self.send(Packet::Drain);
        }
    }

    fn handle_dial_request(&mut self, random: DialId, protocol: String, address: String) -> Verdict {
        if self.dials.contains_key(&random) {
            return Verdict::Dropped(Dropped::DuplicateDial);
        }
        if self.pressed {
            self.refused = true;
            self.send(Packet::DialRsp { random, outcome: Err(PRESSED.to_owned()) });
            return Verdict::Handled;
        }
        if self.table.len() >= self.limits.connections || self.side.pending >= self.limits.pending_dials {
            self.send(Packet::DialRsp { random, outcome: Err(FULL.to_owned()) });
            return Verdict::Handled;
        }
        let key = self.table.insert(Conn::dialing(random, None));
        self.dials.insert(random, key);
        self.side.pending += 1;
        self.events.push_back(Event::Dial { key, protocol, address });
        Verdict::Handled
    }

    fn handle_close_request(&mut self, now: Time, id: ConnectId) -> Verdict {
        let Some(&key) = self.by_id.get(&id) else {
            self.send(Packet::CloseRsp { id, error: UNKNOWN.to_owned() });
            return self.unknown(id);
        };
        if self.table.get(key).is_some_and(|conn| conn.state == State::Open) {
            self.flush(now, key, None, true);
        }
        Verdict::Handled
    }

    fn handle_dial_close(&mut self, random: DialId) -> Verdict {
        let Some(&key) = self.dials.get(&random) else {
            // It crossed our answer.
            return Verdict::Late;
        };
        self.cancel_dial(key);
        Verdict::Handled
    }

    fn cancel_dial(&mut self, key: ConnKey) {
        self.side.pending -= 1;
        self.forget(key);
        self.events.push_back(Event::DialCancelled { key });
    }

    /// The last word about a connection; the peer can no longer name it.
    fn say_closed(&mut self, key: ConnKey, error: String) {
        self.unregister(key);
        if let Some(id) = self.table.get(key).and_then(|conn| conn.id) {
            self.send(Packet::CloseRsp { id, error });
        }
    }
}

impl Side for Agent {
    fn handle(link: &mut Link<Self>, now: Time, packet: Packet<usize>) -> Verdict {
        match packet {
            Packet::DialReq { random, protocol, address } => {
                link.handle_dial_request(random, protocol, address)
            }
            Packet::CloseReq { id } => link.handle_close_request(now, id),
            Packet::DialCls { random } => link.handle_dial_close(random),
            Packet::DialRsp { .. }
            | Packet::CloseRsp { .. }
            | Packet::Data { .. }
            | Packet::Drain
            | Packet::Grant { .. }
            | Packet::Fin { .. } => Verdict::Dropped(Dropped::WrongDirection),
        }
    }

    fn close(link: &mut Link<Self>, now: Time, key: ConnKey, listens: bool) {
        link.say_closed(key, String::new());
        if listens {
            link.flush(now, key, None, false);
        } else {
            link.finish(key, End::Flushed);
        }
    }

    fn both_ended(link: &mut Link<Self>, now: Time, key: ConnKey) {
        Self::close(link, now, key, true);
    }

    fn hang_up(link: &mut Link<Self>, _now: Time, key: ConnKey, end: End) {
        let said_all = link.table.get(key).is_some_and(|conn| conn.fin_sent);
        let text = match &end {
            End::Flushed => String::new(),
            // The endpoint had sent everything: for the frontend that is an orderly end, as it is without half-close.
            End::Broken(Cause::Local(_)) if said_all => String::new(),
            End::Broken(cause) => cause.to_string(),
        };
        link.say_closed(key, text);
        link.finish(key, end);
    }

    fn answer_to_stray(id: ConnectId) -> Control {
        Packet::CloseRsp { id, error: UNRECOGNIZED.to_owned() }
    }

    fn half_closed(limits: &Limits) -> Duration {
        limits.half_closed_agent
    }

    fn answer_close(link: &mut Link<Self>, key: ConnKey) {
        if let Some(conn) = link.table.get_mut(key)
            && let State::Flushing(flush) = &mut conn.state
        {
            flush.answer_owed = false;
        }
        link.say_closed(key, String::new());
    }

    fn dial_lost(link: &mut Link<Self>, key: ConnKey) {
        link.cancel_dial(key);
    }

    fn last_id(link: &Link<Self>) -> ConnectId {
        ConnectId(link.side.last_id)
    }
}
