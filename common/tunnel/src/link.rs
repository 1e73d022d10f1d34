//! All connections of one agent stream, for either end of it.
//!
//! This module has the parts that both ends share: turns, queues, bounds, flushes and the loss of the stream. The
//! [`Side`] has the parts that differ. Invariant 1: a link is the only owner of its stream's dials and connections;
//! [`Link::stream_lost`] ends them together. The shell keeps invariant 4, which is possible because nothing here waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::buffer::Buffer;
use crate::conn::{Conn, State};
use crate::discard::Discards;
use crate::event::{Cause, Control, Disposition, Dropped, End, Event, Frames, SourceEnd};
use crate::limits::Limits;
use crate::negotiated::Negotiated;
use crate::packet::{ConnectId, DialId, Packet};
use crate::payload::Payload;
use crate::rings::Rings;
use crate::table::{ConnKey, Table};
use crate::time::Time;

/// One end of an agent stream: [`crate::Server`] or [`crate::Agent`].
pub trait Side: Sized {
    /// Handles a packet from the peer, except DATA, GRANT and FIN, which mean the same at both ends.
    #[doc(hidden)]
    fn handle<P: Payload>(link: &mut Link<Self, P>, now: Time, packet: Packet<P>) -> Disposition;

    /// Closes an open connection in order from this end. The local end receives further bytes only if it `listens`.
    #[doc(hidden)]
    fn close<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey, listens: bool);

    /// Both sources of a connection have ended by FIN.
    #[doc(hidden)]
    fn both_ended<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey);

    /// Tells both the peer and the local end that an open connection is over.
    #[doc(hidden)]
    fn hang_up<P: Payload>(link: &mut Link<Self, P>, now: Time, key: ConnKey, end: End);

    /// The answer to DATA of an unknown connection.
    #[doc(hidden)]
    fn answer_to_unknown(id: ConnectId) -> Control;

    /// How long the remaining direction of a half-closed connection may be idle.
    #[doc(hidden)]
    fn half_closed(limits: &Limits) -> Duration;

    /// Answers the CLOSE_REQ that began a flush.
    #[doc(hidden)]
    fn answer_close<P: Payload>(link: &mut Link<Self, P>, key: ConnKey);

    /// The stream was lost while this dial was pending.
    #[doc(hidden)]
    fn dial_lost<P: Payload>(link: &mut Link<Self, P>, key: ConnKey);

    /// The largest connect id ever used on this link: agents count up from 1.
    #[doc(hidden)]
    fn last_id<P: Payload>(link: &Link<Self, P>) -> ConnectId;
}

/// The state of one end of an agent stream. The crate's documentation describes how a shell drives it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Link<S, P> {
    pub(crate) limits: Limits,
    pub(crate) negotiated: Negotiated,
    pub(crate) table: Table<Conn<P>>,
    pub(crate) by_id: BTreeMap<ConnectId, ConnKey>,
    pub(crate) dials: BTreeMap<DialId, ConnKey>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) side: S,
    pub(crate) outbox: VecDeque<Outgoing>,
    /// Ids of unknown connections whose answer is in the outbox, at most one answer each.
    pub(crate) unknown_ids: BTreeSet<ConnectId>,
    /// Connections that owe a GRANT, each at most once.
    pub(crate) grants: VecDeque<ConnKey>,
    pub(crate) rings: Rings,
    /// Flushing connections and lingering local ends, whose bytes are read only to be dropped.
    pub(crate) discards: Discards,
    /// The last read was a discard: the next turn belongs to a source whose bytes are sent.
    pub(crate) discarded: bool,
    timers: BTreeSet<(Time, ConnKey)>,
    /// Canceled dials that are still in the outbox.
    pub(crate) stale_dials: usize,
    /// Charged bytes of all queues.
    pub(crate) total_queued: usize,
    /// Bytes that local ends have read from their sources and cannot send yet.
    pub(crate) total_ahead: usize,
    /// Connections whose queue exceeds the hard cap.
    pub(crate) over_hard: usize,
    /// The limit to which windows may grow at the measured RTT, in bytes.
    pub(crate) widest: u32,
    /// By how much all windows together exceed the limit for a low RTT, in bytes.
    pub(crate) high_bdp_windows: usize,
    /// When the link next measures the queues that hold it up.
    pub(crate) next_measure: Option<Time>,
    pub(crate) lost: bool,
    /// Nothing can be sent any more: the stream was lost, or its sending half broke.
    pub(crate) send_shutdown: bool,
    /// Memory is short: the link accepts no dial.
    pub(crate) memory_pressure: bool,
    /// The link refused a dial because memory is short.
    pub(crate) refused: bool,
}

/// A DIAL_REQ is built when its turn comes, because the dial may have been canceled by then.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Outgoing {
    Control(Control),
    Dial(ConnKey),
    /// The answer to DATA of an unknown connection.
    UnknownConnection(ConnectId),
}

impl<S: Side + Default, P: Payload> Link<S, P> {
    /// A link without connections, to a peer that speaks the upstream protocol only.
    pub fn new(limits: Limits) -> Self {
        Self::with_negotiated(limits, Negotiated::default())
    }

    /// A link without connections, to a peer with negotiated extensions.
    pub fn with_negotiated(limits: Limits, negotiated: Negotiated) -> Self {
        Link {
            widest: limits.window_max,
            high_bdp_windows: 0,
            limits,
            negotiated,
            table: Table::new(),
            by_id: BTreeMap::new(),
            dials: BTreeMap::new(),
            events: VecDeque::new(),
            side: S::default(),
            outbox: VecDeque::new(),
            unknown_ids: BTreeSet::new(),
            grants: VecDeque::new(),
            rings: Rings::default(),
            discards: Discards::default(),
            discarded: false,
            timers: BTreeSet::new(),
            stale_dials: 0,
            total_queued: 0,
            total_ahead: 0,
            over_hard: 0,
            next_measure: None,
            lost: false,
            send_shutdown: false,
            memory_pressure: false,
            refused: false,
        }
    }
}

impl<S: Side, P: Payload> Link<S, P> {
    // ---- getters ----

    /// The number of dials and connections, including those that only wait for the peer's CLOSE_RSP.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no dials or connections: a shell whose stream is lost may end.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Whether the shell may receive the next packet. While this is false the shell withholds the stream's credit,
    /// because a queue, the sum of all queues, or the answers that the peer does not read have reached their limit.
    pub fn receiving(&self) -> bool {
        !self.lost && !self.held_up() && !self.outbox_full()
    }

    /// Charged bytes that wait for local ends.
    pub fn total_queued(&self) -> usize {
        self.total_queued
    }

    /// Bytes that wait on this side: the charged bytes for local ends, and the bytes that local ends hold for lack of
    /// credit.
    pub fn total_held(&self) -> usize {
        self.total_queued + self.total_ahead
    }

    /// Whether [`Link::poll_transmit`] may return something that needs a budget.
    pub fn has_to_send(&self) -> bool {
        !self.outbox.is_empty() || !self.grants.is_empty() || self.rings.len() > 0
    }

    /// The bytes that wait for this connection's local end. None if the connection has ended.
    pub fn recv(&self, key: ConnKey) -> Option<&Buffer<P>> {
        self.table.get(key).map(|conn| &conn.recv)
    }

    /// The connect id of an open connection, for the log.
    pub fn connect_id(&self, key: ConnKey) -> Option<ConnectId> {
        self.table.get(key)?.id
    }

    /// Whether the stream was lost.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    // ---- handle_* ----

    /// Handles a packet from the peer.
    pub fn handle_packet(&mut self, now: Time, packet: Packet<P>) -> Disposition {
        if self.lost {
            return Disposition::Handled;
        }
        match packet {
            Packet::Grant { id, offset } => self.handle_grant(now, id, offset),
            Packet::Fin { id } => self.handle_fin(now, id),
            Packet::Data { id, payload } => self.handle_data(now, id, payload),
            packet => S::handle(self, now, packet),
        }
    }

    fn handle_data(&mut self, now: Time, id: ConnectId, payload: P) -> Disposition {
        if id.0 == 0 {
            return Disposition::Dropped(Dropped::BadConnectId);
        }
        let Some(&key) = self.by_id.get(&id) else {
            self.answer_unknown(id);
            return self.unknown(id);
        };
        match self.table.get(key) {
            Some(conn) if conn.accepts() => self.admit(now, key, payload),
            Some(conn) if conn.peer_ended() => Disposition::Dropped(Dropped::AfterEnd),
            _ => Disposition::Late,
        }
    }

    /// A packet for an absent connection: late if the connection ever existed.
    pub(crate) fn unknown(&self, id: ConnectId) -> Disposition {
        let was_there = (1..=S::last_id(self).0).contains(&id.0);
        if was_there { Disposition::Late } else { Disposition::Dropped(Dropped::UnknownConnection) }
    }

    /// Accepts DATA for a connection whose local end listens.
    fn admit(&mut self, now: Time, key: ConnKey, payload: P) -> Disposition {
        let Some(conn) = self.table.get_mut(key) else { return Disposition::Late };
        conn.on_activity(now);
        if conn.credit.as_mut().is_none_or(|credit| credit.inflow.receive(payload.len())) {
            conn.recv.push(payload);
            return Disposition::Deliver(key);
        }
        // A peer that exceeds its grant loses the connection.
        self.break_off(now, key, Cause::Overrun);
        Disposition::Dropped(Dropped::Overrun)
    }

    /// Handles all timers that have expired at `now`. Returns true if a measure of drain rates has expired: connections may
    /// have stalled meanwhile.
    pub fn handle_timeout(&mut self, now: Time) -> bool {
        while let Some(&(due, key)) = self.timers.first() {
            if due > now {
                break;
            }
            self.timers.pop_first();
            if let Some(conn) = self.table.get_mut(key) {
                conn.timer = None;
                self.expired(now, key);
            }
        }
        if self.discards.due(&self.limits).is_some_and(|due| due <= now) {
            self.discards.refill(now, &self.limits);
        }
        let measured = self.next_measure.is_some_and(|due| due <= now);
        if measured {
            self.next_measure = None;
            self.measure(now);
        }
        measured
    }

    // ---- what the shell reports ----

    /// Whether memory is too short to accept dials. Holds until the next call.
    pub fn refuse_dials(&mut self, memory_pressure: bool) {
        self.memory_pressure = memory_pressure;
    }

    /// Whether the link has refused a dial for lack of memory since the last call.
    pub fn take_refused(&mut self) -> bool {
        std::mem::take(&mut self.refused)
    }

    /// This connection's source may have bytes.
    pub fn readable(&mut self, key: ConnKey) {
        if let Some(conn) = self.table.get_mut(key)
            && conn.reads()
            && !conn.in_ring
        {
            conn.in_ring = true;
            if conn.state == State::Open { self.rings.push_fresh(key) } else { self.discards.push(key) }
        }
    }

    /// Bytes that were read for a [`crate::Transmit::Read`] or [`crate::Transmit::Discard`]. Returns the packets to send
    /// now, in order: none if the bytes are discarded.
    pub fn push(&mut self, now: Time, key: ConnKey, payload: P) -> Frames<P> {
        let Some(conn) = self.table.get_mut(key) else { return Frames::none() };
        let (open, len) = (conn.state == State::Open, payload.len());
        if open {
            if let Some(credit) = &mut conn.credit {
                credit.outflow.send(len);
            }
            if let Some(local_closed) = &mut conn.local_closed {
                local_closed.progress = now;
            }
        } else {
            self.discards.spend(len);
        }
        let id = conn.id.filter(|_| open);
        if conn.reads() && !conn.in_ring {
            conn.in_ring = true;
            if open { self.rings.push_busy(key) } else { self.discards.push(key) }
        }
        id.map_or_else(Frames::none, |id| Frames::new(id, payload, self.limits.frame))
    }

    /// The source of this connection has ended, as a read showed.
    pub fn end_source(&mut self, now: Time, key: ConnKey, end: SourceEnd) {
        let Some(conn) = self.table.get_mut(key) else { return };
        conn.source_open = false;
        let open = conn.state == State::Open;
        match end {
            SourceEnd::Eof => {
                if open && !self.end_write_closed(now, key) {
                    self.source_ended(now, key);
                }
            }
            SourceEnd::Closed => {
                if open {
                    if !self.end_write_closed(now, key) {
                        S::close(self, now, key, false);
                    }
                } else {
                    self.finish_flush(key, None);
                }
            }
            SourceEnd::Failed(text) => self.break_off(now, key, Cause::Local(text)),
        }
    }

    /// How many bytes the local end of an ended connection may discard now. Zero while others wait: then
    /// [`Link::linger`] and [`crate::Transmit::Linger`] bring its turn.
    pub fn discard_allowance(&mut self, now: Time) -> usize {
        self.discards.allowance(now, &self.limits)
    }

    /// The local end of an ended connection has discarded this many bytes.
    pub fn discarded(&mut self, bytes: usize) {
        self.discards.spend(bytes);
    }

    /// The local end of an ended connection has more to discard than its allowance.
    pub fn linger(&mut self, key: ConnKey) {
        if self.table.begin_lingering(key) {
            self.discards.push(key);
        }
    }

    /// The local end of this connection is gone, and its key may be used again.
    pub fn release(&mut self, key: ConnKey) {
        self.table.release(key);
    }

    // ---- poll_* ----

    /// The next event for the shell to handle.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The latest time at which the shell must call [`Link::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(due, _)| *due);
        [timer, self.next_measure, self.discards.due(&self.limits)].into_iter().flatten().min()
    }

    // ---- for the sides ----

    pub(crate) fn send(&mut self, packet: Control) {
        if !self.send_shutdown {
            self.outbox.push_back(Outgoing::Control(packet));
        }
    }

    /// Answers DATA of an unknown connection, unless the outbox already has an answer for this id. Otherwise a peer
    /// that does not read the answers, because its own DATA blocks it, would fill the outbox.
    fn answer_unknown(&mut self, id: ConnectId) {
        if !self.send_shutdown && self.unknown_ids.insert(id) {
            self.outbox.push_back(Outgoing::UnknownConnection(id));
        }
    }

    /// Whether the outbox is at its limit.
    pub(crate) fn outbox_full(&self) -> bool {
        self.outbox.len().saturating_sub(self.stale_dials) >= self.limits.outbox
    }

    pub(crate) fn send_dial(&mut self, key: ConnKey) {
        self.outbox.push_back(Outgoing::Dial(key));
    }

    pub(crate) fn arm(&mut self, key: ConnKey, due: Option<Time>) {
        let Some(conn) = self.table.get_mut(key) else { return };
        if let Some(old) = conn.timer.take() {
            self.timers.remove(&(old, key));
        }
        if let Some(due) = due {
            conn.timer = Some(due);
            self.timers.insert((due, key));
        }
    }
}
