//! The order of sending: control packets, grants, then one source after the other.
//!
//! A source that has just become readable is *fresh* and precedes sources that have already been read in this burst: a
//! short exchange does not wait behind a thousand bulk transfers. After eight fresh sources in a row a busy one has its
//! turn, so that fresh ones cannot starve it.

use std::collections::{BTreeSet, VecDeque};

use crate::conn::Conn;
use crate::discard::Discards;
use crate::event::{Control, Transmit};
use crate::limits::Limits;
use crate::packet::{ConnectId, Packet};
use crate::payload::Payload;
use crate::table::{ConnKey, Table};
use crate::time::Time;

/// How many fresh connections in a row are read before a busy one.
const FRESH_IN_A_ROW: u32 = 8;

/// How many entries of ended connections may exist before they are removed.
const STALE_ENTRIES: usize = 64;

/// A DIAL_REQ is built when its turn comes, because the dial may have been canceled by then.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Outgoing {
    Control(Control),
    Dial(ConnKey),
    /// The answer to DATA of an unknown connection.
    UnknownConnection(ConnectId),
}

/// The packets and sources that a link has to send. Entries of ended connections are skipped in their turn.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Schedule {
    outbox: VecDeque<Outgoing>,
    /// Ids of unknown connections whose answer is in the outbox, at most one answer each.
    unknown_ids: BTreeSet<ConnectId>,
    /// Canceled dials that are still in the outbox.
    stale_dials: usize,
    /// Connections that owe a GRANT, each at most once.
    grants: VecDeque<ConnKey>,
    /// Sources that may have bytes, each at most once.
    fresh: VecDeque<ConnKey>,
    busy: VecDeque<ConnKey>,
    /// How many fresh sources were read in a row.
    streak: u32,
    pub(crate) discards: Discards,
    /// The last read was a discard: the next turn belongs to a source whose bytes are sent.
    discarded: bool,
    /// Nothing can be sent any more: the stream was lost, or its sending half broke.
    shutdown: bool,
}

impl Schedule {
    // ---- entries ----

    pub(crate) fn send(&mut self, packet: Control) {
        if !self.shutdown {
            self.outbox.push_back(Outgoing::Control(packet));
        }
    }

    /// Answers DATA of an unknown connection, unless the outbox already has an answer for this id. Otherwise a peer
    /// that does not read the answers, because its own DATA blocks it, would fill the outbox.
    pub(crate) fn answer_unknown(&mut self, id: ConnectId) {
        if !self.shutdown && self.unknown_ids.insert(id) {
            self.outbox.push_back(Outgoing::UnknownConnection(id));
        }
    }

    pub(crate) fn send_dial(&mut self, key: ConnKey) {
        self.outbox.push_back(Outgoing::Dial(key));
    }

    pub(crate) fn send_grant(&mut self, key: ConnKey) {
        self.grants.push_back(key);
    }

    /// A source may have bytes. `fresh`: it has just become readable.
    pub(crate) fn enlist<P: Payload>(&mut self, key: ConnKey, conn: &mut Conn<P>, fresh: bool) {
        if !conn.enlist() {
            return;
        }
        match conn.is_open() {
            true if fresh => self.fresh.push_back(key),
            true => self.busy.push_back(key),
            false => self.discards.push(key),
        }
    }

    /// Nothing can be sent any more. The outbox is dropped.
    pub(crate) fn shutdown(&mut self) {
        self.shutdown = true;
        self.outbox.clear();
        self.unknown_ids.clear();
        self.grants.clear();
        self.stale_dials = 0;
    }

    pub(crate) fn is_shutdown(&self) -> bool {
        self.shutdown
    }

    /// Whether something waits for a budget.
    pub(crate) fn has_to_send(&self) -> bool {
        !self.outbox.is_empty() || !self.grants.is_empty() || self.reads() > 0
    }

    /// Whether the outbox is at its limit.
    pub(crate) fn outbox_full(&self, limits: &Limits) -> bool {
        self.outbox.len().saturating_sub(self.stale_dials) >= limits.outbox
    }

    fn reads(&self) -> usize {
        self.fresh.len() + self.busy.len()
    }

    /// A connection has ended. While the stream accepts nothing, no turn removes the entries of ended connections.
    pub(crate) fn forget_ended<P: Payload>(&mut self, table: &Table<Conn<P>>) {
        if self.reads() > 2 * table.len() + STALE_ENTRIES {
            let lives = |key: &ConnKey| table.get(*key).is_some_and(Conn::is_open);
            self.fresh.retain(lives);
            self.busy.retain(lives);
        }
    }

    /// A dial ended before its DIAL_REQ had its turn. Its entry is removed later, together with others.
    pub(crate) fn forget_dial<P: Payload>(&mut self, table: &Table<Conn<P>>) {
        self.stale_dials += 1;
        if self.stale_dials > STALE_ENTRIES && self.stale_dials > self.outbox.len() / 2 {
            self.outbox.retain(|outgoing| match outgoing {
                Outgoing::Control(_) | Outgoing::UnknownConnection(_) => true,
                Outgoing::Dial(key) => table.get(*key).is_some(),
            });
            self.stale_dials = 0;
        }
    }

    // ---- turns ----

    /// The next thing to send, if `budget` bytes of payload may be sent now. `answer` is the answer to DATA of an unknown
    /// connection.
    pub(crate) fn next<P: Payload>(
        &mut self,
        table: &mut Table<Conn<P>>,
        limits: &Limits,
        now: Time,
        budget: usize,
        answer: fn(ConnectId) -> Control,
    ) -> Option<Transmit> {
        if budget > 0 {
            if let Some(packet) = self.next_control(table, answer) {
                return Some(Transmit::Control(packet));
            }
            if std::mem::take(&mut self.discarded)
                && let Some(read) = self.next_read(table, limits, budget)
            {
                return Some(read);
            }
        }
        if let Some(discard) = self.next_discard(table, limits, now) {
            self.discarded = true;
            return Some(discard);
        }
        if budget > 0 { self.next_read(table, limits, budget) } else { None }
    }

    fn next_control<P: Payload>(
        &mut self,
        table: &mut Table<Conn<P>>,
        answer: fn(ConnectId) -> Control,
    ) -> Option<Control> {
        while let Some(outgoing) = self.outbox.pop_front() {
            match outgoing {
                Outgoing::Control(packet) => return Some(packet),
                Outgoing::UnknownConnection(id) => {
                    self.unknown_ids.remove(&id);
                    return Some(answer(id));
                }
                Outgoing::Dial(key) => {
                    let dial =
                        table.get_mut(key).and_then(|conn| Some((conn.random, conn.state.send_dial()?)));
                    if let Some((random, (protocol, address, trace))) = dial {
                        return Some(Packet::DialReq { random, protocol, address, trace });
                    }
                    self.stale_dials = self.stale_dials.saturating_sub(1);
                }
            }
        }
        while let Some(key) = self.grants.pop_front() {
            let Some(conn) = table.get_mut(key) else { continue };
            if let (Some(offset), Some(id)) = (conn.grant(), conn.id) {
                return Some(Packet::Grant { id, offset });
            }
        }
        None
    }

    fn next_read<P: Payload>(
        &mut self,
        table: &mut Table<Conn<P>>,
        limits: &Limits,
        budget: usize,
    ) -> Option<Transmit> {
        while let Some(key) = self.pop_source() {
            match table.get_mut(key).and_then(Conn::turn) {
                None => {}
                Some(0) => return Some(Transmit::NoCredit { key }),
                Some(room) => {
                    return Some(Transmit::Read { key, max: budget.min(limits.chunk).min(room) });
                }
            }
        }
        None
    }

    fn pop_source(&mut self) -> Option<ConnKey> {
        if (self.streak < FRESH_IN_A_ROW || self.busy.is_empty())
            && let Some(key) = self.fresh.pop_front()
        {
            self.streak += 1;
            return Some(key);
        }
        self.streak = 0;
        self.busy.pop_front().or_else(|| self.fresh.pop_front())
    }

    fn next_discard<P: Payload>(
        &mut self,
        table: &mut Table<Conn<P>>,
        limits: &Limits,
        now: Time,
    ) -> Option<Transmit> {
        while let Some((key, max)) = self.discards.next(now, limits) {
            // At the server the state of an ended connection may outlive its local end.
            if table.end_lingering(key) {
                return Some(Transmit::Linger { key, max });
            }
            if table.get_mut(key).is_some_and(Conn::discard_turn) {
                return Some(Transmit::Discard { key, max });
            }
        }
        None
    }
}
