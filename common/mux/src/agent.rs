//! The agent's end of an agent stream: it receives dial requests and allocates connect ids.

use std::time::Duration;

use crate::conn::{Conn, Phase, Target};
use crate::event::{Cause, CloseReason, Control, Disposition, Dropped, Event};
use crate::limits::{MAX_IDLE_FRONTEND, Negotiated};
use crate::link::{Link, Side};
use crate::packet::{ConnectId, DialId, Packet, cut_error};
use crate::payload::Payload;
use crate::table::ConnKey;
use crate::time::Time;

/// The agent's end. Connect ids count up from 1 on each stream, or from the value given to [`Link::number_beyond`]. An
/// id is never used twice on a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Agent;

/// The text of a Go agent's answer to DATA of an unknown connection.
const UNRECOGNIZED: &str = "unrecognized connectID";
/// The text of a Go agent's answer to a CLOSE_REQ of an unknown connection.
const UNKNOWN: &str = "Unknown connectID";
/// Servers map a text with `too many open files` to status 503: the agent is full, the target is not at fault.
const FULL: &str = "too many open files: this agent stream carries as many dials or connections as it may";

impl<P: Payload> Link<Agent, P> {
    /// Later connections get ids above `id`. Needed for servers that treat the ids of all streams of an agent as one
    /// sequence.
    pub fn number_beyond(&mut self, id: ConnectId) {
        self.last_id = self.last_id.max(id.0);
    }

    /// Reports the outcome of an [`Event::Dial`]; an error is the text that a Go dialer would give. Returns false if
    /// the dial failed or was canceled: the caller closes the socket.
    pub fn dialed(&mut self, key: ConnKey, outcome: Result<(), String>) -> bool {
        let Some(Phase::Dialing { .. }) = self.phase(key) else { return false };
        let Some(random) = self.dial_id(key) else { return false };
        // As at Go agents, a failed dial consumes a number too.
        self.last_id += 1;
        match outcome {
            Ok(()) => {
                let id = ConnectId(self.last_id);
                self.register(key, id);
                self.send(Packet::DialRsp { random, outcome: Ok(id) });
                true
            }
            Err(text) => {
                self.remove(key);
                // On the wire an empty error means success.
                let text = if text.is_empty() { "dial failed" } else { cut_error(&text) };
                self.send(Packet::DialRsp { random, outcome: Err(text.to_owned()) });
                false
            }
        }
    }

    /// The server's id of a pending dial, or of the dial that opened a connection; for the log.
    pub fn dial_id(&self, key: ConnKey) -> Option<DialId> {
        self.table.get(key).map(|conn| conn.random)
    }

    /// Asks the server to send no new dials. The driver calls this once.
    pub fn drain(&mut self) {
        self.send(Packet::Drain);
    }

    fn handle_dial_request(&mut self, random: DialId, (protocol, address, trace): Target) -> Disposition {
        if self.dials.contains_key(&random) {
            return Disposition::Dropped(Dropped::DuplicateDial);
        }
        if self.table.len() >= self.limits.connections || self.dials.len() >= self.limits.pending_dials {
            self.send(Packet::DialRsp { random, outcome: Err(FULL.to_owned()) });
            return Disposition::Handled;
        }
        let key = self.table.insert(Conn::dialing(random, None));
        self.dials.insert(random, key);
        self.events.push_back(Event::Dial { key, protocol, address, trace });
        Disposition::Handled
    }

    fn handle_close_request(&mut self, now: Time, id: ConnectId) -> Disposition {
        let Some(&key) = self.by_id.get(&id) else {
            self.send(Packet::CloseRsp { id, error: UNKNOWN.to_owned() });
            if id.0 >= 0 {
                return self.unknown(id);
            }
            // No connection has such an id: the server probes this packet loop.
            let count = u32::try_from(!id.0).ok().filter(|servers| *servers > 0);
            self.events.extend(count.map(|servers| Event::ServerCount { servers }));
            return Disposition::Handled;
        };
        if self.phase(key) == Some(Phase::Open) {
            self.flush(now, key, None, true);
        }
        Disposition::Handled
    }

    fn handle_dial_close(&mut self, random: DialId) -> Disposition {
        let Some(&key) = self.dials.get(&random) else {
            // The DIAL_CLS crossed our DIAL_RSP.
            return Disposition::Late;
        };
        self.cancel_dial(key);
        if self.negotiated == Negotiated::default() {
            // A Go server updates its count of pending dials only when an agent answers. It counts a DIAL_RSP for this dial as a
            // failure, but not a DIAL_CLS.
            self.send(Packet::DialCls { random });
        }
        Disposition::Handled
    }

    fn cancel_dial(&mut self, key: ConnKey) {
        self.remove(key);
        self.events.push_back(Event::DialCanceled { key });
    }
}

impl Side for Agent {
    const MAX_HALF_CLOSED_IDLE: Duration = MAX_IDLE_FRONTEND;

    fn handle<P: Payload>(link: &mut Link<Self, P>, now: Time, packet: Packet<P>) -> Disposition {
        match packet {
            Packet::DialReq { random, protocol, address, trace } => {
                link.handle_dial_request(random, (protocol, address, trace))
            }
            Packet::CloseReq { id } => link.handle_close_request(now, id),
            Packet::DialCls { random } => link.handle_dial_close(random),
            Packet::DialRsp { .. }
            | Packet::CloseRsp { .. }
            | Packet::Data { .. }
            | Packet::Drain
            | Packet::Grant { .. }
            | Packet::Fin { .. } => Disposition::Dropped(Dropped::WrongDirection),
        }
    }

    fn close<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey, listens: bool) {
        link.say_closed(key, String::new());
        if listens {
            link.flush(now, key, None, false);
        } else {
            link.finish(key, CloseReason::Flushed);
        }
    }

    fn both_ended<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey) {
        Self::close(link, now, key, true);
    }

    fn reset<P: Payload>(link: &mut Link<Self, P>, _now: Time, key: ConnKey, cause: Cause) {
        let said_all = link.table.get(key).is_some_and(|conn| conn.state.fin_sent());
        let text = match &cause {
            // The endpoint had sent all its bytes, so the frontend sees an orderly end, as without half-close.
            Cause::Local(_) if said_all => String::new(),
            // A Go agent reports no failed endpoint: konnectivity-client would return the text from Close.
            Cause::Local(_) if link.negotiated == Negotiated::default() => String::new(),
            cause => cause.to_string(),
        };
        link.say_closed(key, text);
        link.finish(key, CloseReason::Broken(cause));
    }

    fn answer_to_unknown(id: ConnectId) -> Control {
        Packet::CloseRsp { id, error: UNRECOGNIZED.to_owned() }
    }

    fn dial_lost<P: Payload>(link: &mut Link<Self, P>, key: ConnKey) {
        link.cancel_dial(key);
    }
}
