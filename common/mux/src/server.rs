//! The server's end of an agent stream: it sends dials, the agent answers.

use std::time::Duration;

use crate::conn::{Conn, Phase};
use crate::event::{Cause, CloseReason, Control, DialError, Disposition, Dropped, Event};
use crate::limits::{CLOSE_TIMEOUT, MAX_CLOSE_ANSWER, MAX_IDLE_ENDPOINT};
use crate::link::{Link, Side};
use crate::packet::{ConnectId, DialId, Packet, TraceContext};
use crate::payload::Payload;
use crate::table::ConnKey;
use crate::time::Time;

/// How long an agent may take to answer a probe before a half-closed connection is closed.
const PROBE_TIMEOUT: Duration = Duration::from_millis(2_500);

/// The server's end. Invariant 3: the link allocates its own dial ids, counting up. So a frontend's `random` never
/// reaches an agent, and no client can answer another client's dial.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Server {
    last_dial: i64,
    /// Canceled dials that the agent has not answered: as many answers may come late. Native agents answer only those that DIAL_CLS
    /// reached too late.
    canceled: usize,
    drain_reported: bool,
    /// The probe that waits for its answer.
    probing: Option<ConnectId>,
    /// When a probe was last answered.
    answered: Option<Time>,
}

/// The id of a probe, which is no connection's: -1 - `servers`. Every agent, also Go's, answers a CLOSE_REQ of an unknown id
/// with CLOSE_RSP. The answer has passed the agent's packet loop, so it shows more than an answered HTTP/2 ping.
fn probe_id(servers: u32) -> ConnectId {
    ConnectId(!i64::from(servers))
}

impl<P: Payload> Link<Server, P> {
    /// Dials through the agent, which gets the trace context. Ends in exactly one [`Event::Opened`] or [`Event::DialFailed`], unless the caller calls
    /// [`Link::abandon`].
    /// None at the limit of dials or connections, and while the stream accepts so little that the outbox is full.
    pub fn dial(&mut self, protocol: &str, address: &str, trace: Option<TraceContext>) -> Option<ConnKey> {
        if self.table.len() >= self.limits.connections
            || self.dials.len() >= self.limits.pending_dials
            || self.outbox_full()
        {
            return None;
        }
        self.side.last_dial += 1;
        let random = DialId(self.side.last_dial);
        let target = (protocol.to_owned(), address.to_owned(), trace);
        let key = self.table.insert(Conn::dialing(random, Some(target)));
        self.dials.insert(random, key);
        if self.schedule.is_shutdown() {
            self.fail_dial(key, DialError::LinkLost);
        } else {
            self.schedule.send_dial(key);
        }
        Some(key)
    }

    /// The caller no longer needs the dial or the connection. The key is dead; no event follows.
    pub fn abandon(&mut self, now: Time, key: ConnKey) {
        // Not even an event that was already queued. If it was the opening, no local end holds the key.
        if self
            .events
            .iter()
            .any(|event| matches!(event, Event::Opened { key: opened, .. } if *opened == key))
        {
            self.release(key);
        }
        self.events.retain(|event| event.key() != Some(key));
        let Some(conn) = self.table.get(key) else { return };
        let random = conn.random;
        match conn.phase() {
            Phase::Dialing { queued } => {
                self.remove(key);
                if !queued {
                    self.side.canceled += 1;
                    self.send(Packet::DialCls { random });
                }
            }
            Phase::Open => {
                self.request_close(now, key, CLOSE_TIMEOUT);
                self.retire(key);
            }
            Phase::Closing { .. } => self.retire(key),
            Phase::Flushing => self.remove(key),
            Phase::Tombstone => {}
        }
    }

    /// Asks the agent's packet loop for an answer; [`Event::ProbeAnswered`] follows. Announces the number of servers
    /// to a native agent, unless it is 0. False if an earlier probe has no answer yet, or the outbox is full.
    pub fn probe(&mut self, servers: u32) -> bool {
        if self.lost || self.side.probing.is_some() || self.outbox_full() {
            return false;
        }
        let id = probe_id(servers);
        self.side.probing = Some(id);
        self.send(Packet::CloseReq { id });
        true
    }

    fn fail_dial(&mut self, key: ConnKey, error: DialError) {
        self.remove(key);
        self.events.push_back(Event::DialFailed { key, error });
    }

    fn handle_dial_response(&mut self, random: DialId, outcome: Result<ConnectId, String>) -> Disposition {
        if let Ok(id) = &outcome {
            self.last_id = self.last_id.max(id.0);
        }
        match (self.unanswered_dial(random), outcome) {
            (Some(key), Err(text)) => {
                self.fail_dial(key, DialError::Refused(text));
                Disposition::Handled
            }
            (Some(key), Ok(id)) if id.0 <= 0 || self.by_id.contains_key(&id) => {
                self.fail_dial(key, DialError::BadAnswer);
                Disposition::Dropped(Dropped::BadConnectId)
            }
            (Some(key), Ok(id)) => {
                self.register(key, id);
                self.events.push_back(Event::Opened { key, id });
                Disposition::Handled
            }
            (None, Ok(id)) if id.0 <= 0 || self.by_id.contains_key(&id) => {
                Disposition::Dropped(Dropped::UnknownDial)
            }
            (None, outcome) => {
                if let Ok(id) = outcome {
                    // Probably canceled: Go agents ignore DIAL_CLS.
                    self.send(Packet::CloseReq { id });
                }
                self.unexpected_dial_answer(random)
            }
        }
    }

    /// The agent gives up a dial, or answers our own DIAL_CLS. (No Go agent sends this.)
    fn handle_dial_close(&mut self, random: DialId) -> Disposition {
        match self.unanswered_dial(random) {
            Some(key) => {
                self.fail_dial(key, DialError::Closed);
                Disposition::Handled
            }
            None => {
                self.unexpected_dial_answer(random);
                Disposition::Late
            }
        }
    }

    /// The answer to a dial that does not wait for one: it was canceled, or the agent invented the answer.
    fn unexpected_dial_answer(&mut self, random: DialId) -> Disposition {
        let canceled = (1..=self.side.last_dial).contains(&random.0) && !self.dials.contains_key(&random);
        match self.side.canceled.checked_sub(1) {
            Some(others) if canceled => {
                self.side.canceled = others;
                Disposition::Late
            }
            _ => Disposition::Dropped(Dropped::UnknownDial),
        }
    }

    /// The dial that was sent under this number and has no answer yet.
    fn unanswered_dial(&self, random: DialId) -> Option<ConnKey> {
        let key = *self.dials.get(&random)?;
        (self.phase(key) == Some(Phase::Dialing { queued: false })).then_some(key)
    }

    fn handle_close_response(&mut self, now: Time, id: ConnectId, error: String) -> Disposition {
        if self.side.probing.take_if(|probe| *probe == id).is_some() {
            self.side.answered = Some(now);
            self.events.push_back(Event::ProbeAnswered);
            return Disposition::Handled;
        }
        let Some(&key) = self.by_id.get(&id) else {
            return self.unknown(id);
        };
        self.unregister(key);
        self.arm(key, None);
        let cause = (!error.is_empty()).then_some(Cause::Peer(error));
        // The endpoint has ended first, or its FIN was on the way when the client ended.
        let endpoint_ended = |conn: &Conn<P>| conn.is_open() || conn.state.remote_ended();
        let orderly_end = cause.is_none() && self.table.get(key).is_some_and(endpoint_ended);
        match self.phase(key) {
            Some(Phase::Tombstone) => self.remove(key),
            _ => self.flush(now, key, cause, false),
        }
        if orderly_end {
            self.flush_without_time_limit(key);
        }
        Disposition::Handled
    }
}

impl Side for Server {
    const MAX_HALF_CLOSED_IDLE: Duration = MAX_IDLE_ENDPOINT;

    fn handle<P: Payload>(link: &mut Link<Self, P>, now: Time, packet: Packet<P>) -> Disposition {
        match packet {
            Packet::DialRsp { random, outcome } => link.handle_dial_response(random, outcome),
            Packet::CloseRsp { id, error } => link.handle_close_response(now, id, error),
            Packet::Drain => {
                if !std::mem::replace(&mut link.side.drain_reported, true) {
                    link.events.push_back(Event::Draining);
                }
                Disposition::Handled
            }
            Packet::DialCls { random } => link.handle_dial_close(random),
            Packet::DialReq { .. }
            | Packet::CloseReq { .. }
            | Packet::Data { .. }
            | Packet::Grant { .. }
            | Packet::Fin { .. } => Disposition::Dropped(Dropped::WrongDirection),
        }
    }

    fn close<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey, listens: bool) {
        link.request_close(now, key, if listens { CLOSE_TIMEOUT } else { MAX_CLOSE_ANSWER });
        link.change(key, |conn| conn.close(listens));
    }

    fn reset<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey, cause: Cause) {
        link.request_close(now, key, CLOSE_TIMEOUT);
        link.notify(key, CloseReason::Broken(cause));
    }

    /// The endpoint may be silent because the agent, or the path to it, is blocked. So the link closes the connection only after the
    /// agent has answered a probe: everything that it sent before has then arrived. Without an answer in time the link waits
    /// again, and an answer that arrives meanwhile counts.
    fn idle<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey) {
        let Some(conn) = link.table.get_mut(key) else { return };
        match conn.state.mark_probed(now) {
            Some(probed) if link.side.answered >= Some(probed) => Self::close(link, now, key, true),
            Some(_) => link.arm(key, Some(now.after(MAX_IDLE_ENDPOINT))),
            None => {
                link.events.push_back(Event::ProbeWanted);
                link.arm(key, Some(now.after(PROBE_TIMEOUT)));
            }
        }
    }

    fn answer_to_unknown(id: ConnectId) -> Control {
        Packet::CloseReq { id }
    }

    fn dial_lost<P: Payload>(link: &mut Link<Self, P>, key: ConnKey) {
        link.fail_dial(key, DialError::LinkLost);
    }
}
