//! All connections of one agent stream, for either end of it.
//!
//! What the two ends share is here: turns, queues, bounds, flushes and the loss of the stream. What differs is
//! the [`Side`]. Invariant 1: this is the one owner of the stream's dials and connections; [`Link::lose`] ends
//! them together. Invariant 4 is the shell's, made possible here: nothing in this type waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::conn::{Conn, Flush, State};
use crate::event::{Cause, Control, End, Event, ReadOutcome, Transmit, Verdict};
use crate::limits::Limits;
use crate::packet::{ConnectId, DialId, Packet};
use crate::rings::Rings;
use crate::table::{ConnKey, Table};
use crate::time::Time;

/// One end of an agent stream: [`crate::Server`] or [`crate::Agent`].
pub trait Side: Sized {
    /// Acts on a packet from the peer.
    #[doc(hidden)]
    fn handle(link: &mut Link<Self>, now: Time, packet: Packet<usize>) -> Verdict;

    /// The local source of an open connection ended; the local end takes more only if it `listens`.
    #[doc(hidden)]
    fn source_ended(link: &mut Link<Self>, now: Time, key: ConnKey, listens: bool);

    /// Tells the peer that an open connection broke, and the local end too.
    #[doc(hidden)]
    fn broke(link: &mut Link<Self>, now: Time, key: ConnKey, cause: Cause);

    /// Answers the CLOSE_REQ that began a flush.
    #[doc(hidden)]
    fn answer_close(link: &mut Link<Self>, key: ConnKey);

    /// The stream was lost while this dial was under way.
    #[doc(hidden)]
    fn dial_lost(link: &mut Link<Self>, key: ConnKey);
}

/// The state of one end of an agent stream. See the crate's documentation for how a shell drives it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Link<S> {
    pub(crate) limits: Limits,
    pub(crate) table: Table<Conn>,
    pub(crate) by_id: BTreeMap<ConnectId, ConnKey>,
    pub(crate) dials: BTreeMap<DialId, ConnKey>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) side: S,
    outbox: VecDeque<Outgoing>,
    rings: Rings,
    /// Flushing connections whose source is read only to be thrown away.
    discards: VecDeque<ConnKey>,
    /// The last read was one of those: a source to be sent has its turn.
    discarded: bool,
    timers: BTreeSet<(Time, ConnKey)>,
    /// Charged bytes of all queues.
    pub(crate) total_queued: usize,
    /// Connections whose queue is above the hard cap.
    pub(crate) over_hard: usize,
    /// When queues that hold up the link are measured next.
    pub(crate) next_measure: Option<Time>,
    lost: bool,
}

/// Places in the rings that connections which have gone may hold before they are cleared away.
const STALE_PLACES: usize = 64;

/// A DIAL_REQ is looked up when its turn comes: its dial may have been cancelled meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Outgoing {
    Control(Control),
    Dial(ConnKey),
}

impl<S: Side + Default> Link<S> {
    /// A link without connections.
    pub fn new(limits: Limits) -> Self {
        Link {
            limits,
            table: Table::new(),
            by_id: BTreeMap::new(),
            dials: BTreeMap::new(),
            events: VecDeque::new(),
            side: S::default(),
            outbox: VecDeque::new(),
            rings: Rings::default(),
            discards: VecDeque::new(),
            discarded: false,
            timers: BTreeSet::new(),
            total_queued: 0,
            over_hard: 0,
            next_measure: None,
            lost: false,
        }
    }
}

impl<S: Side> Link<S> {
    // ---- getters ----

    /// Dials and connections that have not gone yet, those that only await the peer's last word included.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether nothing is under way: a shell whose stream is lost may end.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Whether the next packet may be received. While this is false the shell withholds the stream's credit:
    /// a queue, all queues together, or the answers that the peer does not fetch have reached their bound.
    pub fn receiving(&self) -> bool {
        !self.lost && !self.held_up() && !self.outbox_full()
    }

    /// Charged bytes that wait for local ends.
    pub fn total_queued(&self) -> usize {
        self.total_queued
    }

    /// Whether the stream was lost.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    // ---- handle_* ----

    /// Acts on a packet from the peer; DATA comes as its length.
    pub fn handle_packet(&mut self, now: Time, packet: Packet<usize>) -> Verdict {
        if self.lost { Verdict::Handled } else { S::handle(self, now, packet) }
    }

    /// Acts on what is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
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
        if self.next_measure.is_some_and(|due| due <= now) {
            self.next_measure = None;
            self.measure(now);
        }
    }

    fn expired(&mut self, now: Time, key: ConnKey) {
        let Some(conn) = self.table.get(key) else { return };
        match &conn.state {
            State::Flushing(flush) => {
                let stalled = now >= flush.progress.after(self.limits.flush_stall)
                    || now >= flush.since.after(self.limits.flush_max);
                if flush.answer_owed && now >= flush.since.after(self.limits.answer_close) {
                    S::answer_close(self, key);
                }
                if stalled {
                    self.settle(key, Some(Cause::FlushTimeout));
                } else {
                    self.arm_flush(key);
                }
            }
            State::Closing { .. } => {
                self.unregister(key);
                self.flush(now, key, Some(Cause::Peer("timed out waiting for CLOSE_RSP".into())), false);
            }
            State::Forgetting => self.forget(key),
            State::Open => {
                self.stop_deaf(now, key);
            }
            State::Dialing { .. } => {}
        }
    }

    // ---- what the shell reports ----

    /// This connection's source may have bytes.
    pub fn readable(&mut self, key: ConnKey) {
        if let Some(conn) = self.table.get_mut(key)
            && conn.reads()
            && !conn.in_ring
        {
            conn.in_ring = true;
            if conn.state == State::Open { self.rings.push_fresh(key) } else { self.discards.push_back(key) }
        }
    }

    /// The answer to [`Transmit::Read`] and [`Transmit::Discard`].
    pub fn read(&mut self, now: Time, key: ConnKey, outcome: ReadOutcome) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let open = conn.state == State::Open;
        match outcome {
            ReadOutcome::Blocked => {}
            ReadOutcome::Data(_) => {
                if conn.reads() && !conn.in_ring {
                    conn.in_ring = true;
                    if open { self.rings.push_busy(key) } else { self.discards.push_back(key) }
                }
            }
            ReadOutcome::Eof => {
                conn.source_open = false;
                if open && !self.stop_deaf(now, key) {
                    S::source_ended(self, now, key, true);
                }
            }
            ReadOutcome::Closed => {
                conn.source_open = false;
                if open {
                    if !self.stop_deaf(now, key) {
                        S::source_ended(self, now, key, false);
                    }
                } else {
                    self.settle(key, None);
                }
            }
            ReadOutcome::Failed(text) => self.local_failed(now, key, text),
        }
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

    /// Ends a connection whose local end takes no more; false if it does.
    fn stop_deaf(&mut self, now: Time, key: ConnKey) -> bool {
        let Some(text) = self.table.get_mut(key).and_then(|conn| conn.deaf.take()) else { return false };
        self.arm(key, None);
        S::broke(self, now, key, Cause::Local(text));
        true
    }

    /// The local end of this connection broke.
    pub fn local_failed(&mut self, now: Time, key: ConnKey, text: String) {
        let Some(conn) = self.table.get_mut(key) else { return };
        conn.source_open = false;
        match conn.state {
            State::Open => S::broke(self, now, key, Cause::Local(text)),
            State::Closing { .. } => {
                self.tell(key, End::Broken(Cause::Local(text)));
            }
            State::Flushing(_) => self.settle(key, Some(Cause::Local(text))),
            State::Dialing { .. } | State::Forgetting => {}
        }
    }

    /// The stream is gone: every dial and every connection ends. What has arrived is still delivered, within the
    /// bounds of a flush; with nothing queued the end is told at once.
    pub fn lose(&mut self, now: Time) {
        if self.lost {
            return;
        }
        self.lost = true;
        self.outbox.clear();
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

    // ---- poll_* ----

    /// What is to be sent next, if `budget` bytes of payload may go out now; nothing is while that is 0, control
    /// packets included (they would pile up below, where no bound is kept), but discards go on. Control goes
    /// first; a close never overtakes its own connection's data, because what was read has been sent. Discards
    /// take turns with reads: a source that never blocks would keep the others from being sent.
    pub fn poll_transmit(&mut self, budget: usize) -> Option<Transmit> {
        if budget > 0 {
            if let Some(packet) = self.next_control() {
                return Some(Transmit::Control(packet));
            }
            if std::mem::take(&mut self.discarded)
                && let Some(read) = self.next_read(budget)
            {
                return Some(read);
            }
        }
        if let Some(key) = self.next_discard() {
            self.discarded = true;
            return Some(Transmit::Discard { key });
        }
        if budget > 0 { self.next_read(budget) } else { None }
    }

    fn next_control(&mut self) -> Option<Control> {
        while let Some(outgoing) = self.outbox.pop_front() {
            match outgoing {
                Outgoing::Control(packet) => return Some(packet),
                Outgoing::Dial(key) => {
                    if let Some(packet) = self.dial_request(key) {
                        return Some(packet);
                    }
                }
            }
        }
        None
    }

    fn next_read(&mut self, budget: usize) -> Option<Transmit> {
        let shared = self.rings.len() > 2;
        while let Some(key) = self.rings.pop() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            if conn.state != State::Open {
                continue;
            }
            conn.in_ring = false;
            if let (true, Some(id)) = (conn.source_open, conn.id) {
                let chunk = if shared { self.limits.chunk_shared } else { self.limits.chunk_alone };
                return Some(Transmit::Read { key, id, max: budget.min(chunk) });
            }
        }
        None
    }

    fn next_discard(&mut self) -> Option<ConnKey> {
        while let Some(key) = self.discards.pop_front() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            conn.in_ring = false;
            if conn.source_open {
                return Some(key);
            }
        }
        None
    }

    fn dial_request(&mut self, key: ConnKey) -> Option<Control> {
        let conn = self.table.get_mut(key)?;
        let (protocol, address) = conn.target.take()?;
        conn.state = State::Dialing { sent: true };
        Some(Packet::DialReq { random: conn.random, protocol, address })
    }

    /// Something for the shell to act on.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Link::handle_timeout`] is to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(due, _)| *due);
        match (timer, self.next_measure) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    // ---- for the sides ----

    pub(crate) fn send(&mut self, packet: Control) {
        if !self.lost {
            self.outbox.push_back(Outgoing::Control(packet));
        }
    }

    /// Whether more is waiting to be sent than ever should.
    pub(crate) fn outbox_full(&self) -> bool {
        self.outbox.len() >= self.limits.outbox
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

    pub(crate) fn arm_flush(&mut self, key: ConnKey) {
        let Some(State::Flushing(flush)) = self.table.get(key).map(|conn| &conn.state) else { return };
        let mut due =
            flush.progress.after(self.limits.flush_stall).min(flush.since.after(self.limits.flush_max));
        if flush.answer_owed {
            due = due.min(flush.since.after(self.limits.answer_close));
        }
        self.arm(key, Some(due));
    }

    /// No more arrives for the local end: ends at once if nothing is queued, else when it has been taken.
    pub(crate) fn flush(&mut self, now: Time, key: ConnKey, cause: Option<Cause>, answer_owed: bool) {
        let Some(conn) = self.table.get_mut(key) else { return };
        let cause = conn.deaf.take().map(Cause::Local).or(cause);
        conn.state = State::Flushing(Flush { since: now, progress: now, answer_owed, cause });
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
        self.set_queued(key, 0);
        if let Some(conn) = self.table.get_mut(key) {
            conn.state = State::Forgetting;
            conn.source_open = false;
            conn.watch = None;
        }
    }

    /// Removes every trace.
    pub(crate) fn forget(&mut self, key: ConnKey) {
        self.set_queued(key, 0);
        self.arm(key, None);
        self.unregister(key);
        if let Some(conn) = self.table.remove(key)
            && self.dials.get(&conn.random) == Some(&key)
        {
            self.dials.remove(&conn.random);
        }
        // While the stream takes nothing, nobody passes over the places of connections that have gone.
        if self.rings.len() > 2 * self.table.len() + STALE_PLACES {
            let table = &self.table;
            self.rings.retain(|key| table.get(key).is_some_and(|conn| conn.state == State::Open));
        }
    }
}
