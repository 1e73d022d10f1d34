//! All connections of one agent stream, for either end of it: the table and the packets.
//!
//! This module has the parts that both ends share; [`Side`] has the parts that differ; `local` has the driver's
//! reports about local ends, `ends` the ends of connections, `schedule` the order of sending, `memory` the connections that
//! are reset for it. Invariant 1: a link is the only owner of its stream's dials and connections; [`Link::stream_lost`] ends
//! them together. The driver keeps invariant 4, which is possible because nothing here waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::conn::{Buffer, Conn, Fill, Fin, Phase, Usage};
use crate::event::{Cause, Control, Disposition, Dropped, Event};
use crate::limits::{Limits, Negotiated, bdp};
use crate::memory::Memory;
use crate::packet::{ConnectId, DialId, Packet};
use crate::payload::Payload;
use crate::schedule::Schedule;
use crate::table::{ConnKey, Table};
use crate::time::Time;

/// One end of an agent stream: [`crate::Server`] or [`crate::Agent`].
pub trait Side: Sized {
    /// How long the remaining direction of a half-closed connection may be idle.
    const MAX_HALF_CLOSED_IDLE: Duration;

    /// Handles a packet from the peer, except DATA, GRANT and FIN, which mean the same at both ends.
    fn handle<P: Payload>(link: &mut Link<Self, P>, now: Time, packet: Packet<P>) -> Disposition;

    /// Closes an open connection in order from this end. The local end receives further bytes only if it `listens`.
    fn close<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey, listens: bool);

    /// The remaining direction of a half-closed connection was idle for [`Side::MAX_HALF_CLOSED_IDLE`].
    fn idle<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey) {
        Self::close(link, now, key, true);
    }

    /// Both sources of a connection have ended by FIN. A server does nothing: the agent sees both FINs too, and sends CLOSE_RSP.
    fn both_ended<P: Payload>(_link: &mut Link<Self, P>, _now: Time, _key: ConnKey) {}

    /// Resets an open connection: tells both the peer and the local end that it broke.
    fn reset<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey, cause: Cause);

    /// The answer to DATA of an unknown connection.
    fn answer_to_unknown(id: ConnectId) -> Control;

    /// The stream was lost while this dial was pending.
    fn dial_lost<P: Payload>(link: &mut Link<Self, P>, key: ConnKey);
}

/// The state of one end of an agent stream. The crate's documentation describes how a driver uses it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Link<S, P> {
    pub(crate) side: S,
    pub(crate) limits: Limits,
    pub(crate) negotiated: Negotiated,
    pub(crate) table: Table<Conn<P>>,
    pub(crate) by_id: BTreeMap<ConnectId, ConnKey>,
    /// Dials without an answer.
    pub(crate) dials: BTreeMap<DialId, ConnKey>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) schedule: Schedule,
    pub(crate) memory: Memory,
    timers: BTreeSet<(Time, ConnKey)>,
    /// The largest connect id ever used on this link: agents count up from 1.
    pub(crate) last_id: i64,
    /// The limit to which windows may grow at the measured RTT, in bytes.
    pub(crate) widest: u32,
    pub(crate) lost: bool,
}

impl<S: Side + Default, P: Payload> Link<S, P> {
    /// A link without connections.
    pub fn new(limits: Limits, negotiated: Negotiated) -> Self {
        Link {
            side: S::default(),
            widest: limits.window_max,
            limits,
            negotiated,
            table: Table::new(),
            by_id: BTreeMap::new(),
            dials: BTreeMap::new(),
            events: VecDeque::new(),
            schedule: Schedule::default(),
            memory: Memory::default(),
            timers: BTreeSet::new(),
            last_id: 0,
            lost: false,
        }
    }
}

impl<S: Side, P: Payload> Link<S, P> {
    // ---- getters ----

    /// The number of dials and connections, including those that only wait for the peer's CLOSE_RSP.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no dials or connections: a driver whose stream is lost may end.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Whether the driver may receive the next packet. While this is false the driver withholds the stream's credit,
    /// because a receive buffer, the sum of all, or the answers that the peer does not read have reached their limit.
    pub fn receiving(&self) -> bool {
        !self.lost && !self.memory.is_over_limit(&self.limits) && !self.outbox_full()
    }

    /// The bytes that wait for this connection's local end. None if the connection has ended.
    pub fn recv(&self, key: ConnKey) -> Option<&Buffer<P>> {
        self.table.get(key).map(Conn::recv)
    }

    /// How full this connection's receive buffer is. Exact after [`Link::advance`].
    pub fn fill(&self, key: ConnKey) -> Fill {
        self.table.get(key).map_or(Fill::Room, |conn| conn.fill(&self.limits))
    }

    /// The connect id of an open connection, for the log.
    pub fn connect_id(&self, key: ConnKey) -> Option<ConnectId> {
        self.table.get(key)?.id
    }

    // ---- handle_* ----

    /// Handles a packet from the peer.
    pub fn handle_packet(&mut self, now: Time, packet: Packet<P>) -> Disposition {
        if self.lost {
            return Disposition::Handled;
        }
        match packet {
            Packet::Data { id, payload } => self.handle_data(now, id, payload),
            Packet::Grant { id, offset } => self.handle_grant(now, id, offset),
            Packet::Fin { id } => self.handle_fin(now, id),
            packet => S::handle(self, now, packet),
        }
    }

    fn handle_data(&mut self, now: Time, id: ConnectId, payload: P) -> Disposition {
        if id.0 == 0 {
            return Disposition::Dropped(Dropped::BadConnectId);
        }
        let Some(&key) = self.by_id.get(&id) else {
            self.schedule.answer_unknown(id);
            return self.unknown(id);
        };
        match self.table.get_mut(key) {
            Some(conn) if conn.state.accepts() => {
                if conn.receive(now, payload) {
                    return Disposition::Deliver(key);
                }
                // A peer that exceeds its grant loses the connection.
                self.break_off(now, key, Cause::Overrun);
                Disposition::Dropped(Dropped::Overrun)
            }
            Some(conn) if conn.state.peer_ended() => Disposition::Dropped(Dropped::AfterEnd),
            _ => Disposition::Late,
        }
    }

    fn handle_grant(&mut self, now: Time, id: ConnectId, offset: u64) -> Disposition {
        if self.negotiated.credits.is_none() {
            return Disposition::Dropped(Dropped::NotAgreed);
        }
        // The connection may have ended before a late GRANT arrives.
        if let Some(&key) = self.by_id.get(&id)
            && let Some(conn) = self.table.get_mut(key)
            && conn.allow(now, offset)
        {
            self.schedule.enlist(key, conn, false);
        }
        Disposition::Handled
    }

    fn handle_fin(&mut self, now: Time, id: ConnectId) -> Disposition {
        if !self.negotiated.half_close {
            return Disposition::Dropped(Dropped::NotAgreed);
        }
        let Some(&key) = self.by_id.get(&id) else {
            return self.unknown(id);
        };
        match self.table.get_mut(key).map_or(Fin::Late, |conn| conn.state.receive_fin()) {
            Fin::AfterEnd => return Disposition::Dropped(Dropped::AfterEnd),
            Fin::Late => {}
            Fin::Received => self.shut_down(key),
            Fin::Both => {
                S::both_ended(self, now, key);
                self.shut_down(key);
            }
        }
        Disposition::Handled
    }

    /// A packet for an absent connection: late if the connection ever existed.
    pub(crate) fn unknown(&self, id: ConnectId) -> Disposition {
        let was_there = (1..=self.last_id).contains(&id.0);
        if was_there { Disposition::Late } else { Disposition::Dropped(Dropped::UnknownConnection) }
    }

    /// Handles all timers that have expired at `now`. Returns true if a measure of drain rates has expired: connections may
    /// have stalled meanwhile.
    pub fn handle_timeout(&mut self, now: Time) -> bool {
        while let Some(&(due, key)) = self.timers.first() {
            if due > now {
                break;
            }
            self.timers.pop_first();
            let Some(conn) = self.table.get_mut(key) else { continue };
            conn.timer = None;
            if let Some(within) = conn.close_owed.take() {
                self.request_close(now, key, within);
                continue;
            }
            self.expire(now, key);
        }
        self.schedule.discards.refill(now);
        let measured = self.memory.end_measure(now);
        if measured {
            self.reset_slow(now);
        }
        measured
    }

    // ---- the link's surroundings ----

    /// Sets the measured RTT to the peer. At a high RTT windows grow wider, and sooner.
    pub fn set_rtt(&mut self, rtt: Duration) {
        self.widest = bdp(rtt, self.limits.window_max, self.limits.window_high_bdp);
    }

    // ---- poll_* ----

    /// The next event for the driver to handle.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The latest time at which the driver must call [`Link::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(due, _)| *due);
        let discards = self.schedule.discards.due(&self.limits);
        [timer, self.memory.next_measure(), discards].into_iter().flatten().min()
    }

    // ---- for the ends and the sides ----

    /// Changes a connection, and the sums with it.
    pub(crate) fn change<R>(&mut self, key: ConnKey, change: impl FnOnce(&mut Conn<P>) -> R) -> Option<R> {
        let conn = self.table.get_mut(key)?;
        let before = conn.usage(&self.limits);
        let result = change(conn);
        self.memory.count(before, conn.usage(&self.limits), &self.limits);
        Some(result)
    }

    /// Removes all state of a connection.
    pub(crate) fn remove(&mut self, key: ConnKey) {
        self.arm(key, None);
        self.unregister(key);
        let Some(conn) = self.table.remove(key) else { return };
        self.memory.count(conn.usage(&self.limits), Usage::default(), &self.limits);
        if self.dials.get(&conn.random) == Some(&key) {
            self.dials.remove(&conn.random);
        }
        if conn.phase() == (Phase::Dialing { queued: true }) {
            self.forget_dial();
        }
        self.forget_ended();
    }

    /// Removes the connect id from the index: the peer cannot name the connection any more.
    pub(crate) fn unregister(&mut self, key: ConnKey) {
        if let Some(conn) = self.table.get_mut(key) {
            conn.close_owed = None;
        }
        if let Some(id) = self.connect_id(key)
            && self.by_id.get(&id) == Some(&key)
        {
            self.by_id.remove(&id);
        }
    }

    /// Registers a connection that has opened under this id.
    pub(crate) fn register(&mut self, key: ConnKey, id: ConnectId) {
        let growth = self.growth();
        let Some(conn) = self.table.get_mut(key) else { return };
        let grant = conn.open(id, self.negotiated.credits, &growth);
        self.dials.remove(&conn.random);
        self.by_id.insert(id, key);
        self.table.hold(key);
        if grant {
            self.schedule.send_grant(key);
        }
    }

    pub(crate) fn arm(&mut self, key: ConnKey, due: Option<Time>) {
        let Some(conn) = self.table.get_mut(key) else { return };
        if let Some(old) = std::mem::replace(&mut conn.timer, due) {
            self.timers.remove(&(old, key));
        }
        if let Some(due) = due {
            self.timers.insert((due, key));
        }
    }
}
