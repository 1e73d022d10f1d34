//! The order of sending: control packets, grants, then one source after the other.
//!
//! A source that has just become readable is *fresh* and precedes sources that have already been read in this burst: a
//! short exchange does not wait behind a thousand bulk transfers. After eight fresh sources in a row a busy one has its
//! turn, so that fresh ones cannot starve it.

use std::collections::{BTreeSet, VecDeque};

use crate::conn::Conn;
use crate::discard::Discards;
use crate::event::{Control, Transmit};
use crate::link::{Link, Side};
use crate::packet::{ConnectId, Packet};
use crate::payload::Payload;
use crate::table::ConnKey;
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

    fn reads(&self) -> usize {
        self.fresh.len() + self.busy.len()
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
}

impl<S: Side, P: Payload> Link<S, P> {
    // ---- entries ----

    pub(crate) fn send(&mut self, packet: Control) {
        if !self.schedule.shutdown {
            self.schedule.outbox.push_back(Outgoing::Control(packet));
        }
    }

    /// Whether [`Link::poll_transmit`] may return something that needs a budget.
    pub fn has_to_send(&self) -> bool {
        !self.schedule.outbox.is_empty() || !self.schedule.grants.is_empty() || self.schedule.reads() > 0
    }

    /// Whether the outbox is at its limit.
    pub(crate) fn outbox_full(&self) -> bool {
        self.schedule.outbox.len().saturating_sub(self.schedule.stale_dials) >= self.limits.outbox
    }

    /// A connection has ended. While the stream accepts nothing, no turn removes the entries of ended connections.
    pub(crate) fn forget_ended(&mut self) {
        if self.schedule.reads() > 2 * self.table.len() + STALE_ENTRIES {
            let lives = |key: &ConnKey| self.table.get(*key).is_some_and(Conn::is_open);
            self.schedule.fresh.retain(lives);
            self.schedule.busy.retain(lives);
        }
    }

    /// A dial ended before its DIAL_REQ had its turn. Its entry is removed later, together with others.
    pub(crate) fn forget_dial(&mut self) {
        let Schedule { outbox, stale_dials, .. } = &mut self.schedule;
        *stale_dials += 1;
        if *stale_dials > STALE_ENTRIES && *stale_dials > outbox.len() / 2 {
            outbox.retain(|outgoing| match outgoing {
                Outgoing::Control(_) | Outgoing::UnknownConnection(_) => true,
                Outgoing::Dial(key) => self.table.get(*key).is_some(),
            });
            *stale_dials = 0;
        }
    }

    // ---- turns ----

    /// The next thing to send, if `budget` bytes of payload may be sent now. With a budget of 0 nothing is sent, not
    /// even control packets (they would queue without a limit below), but discards continue. Control packets go first;
    /// a close never overtakes its own connection's data, because bytes that were read have been sent. Discards
    /// alternate with reads: a source that never blocks would keep the others from being sent.
    pub fn poll_transmit(&mut self, now: Time, budget: usize) -> Option<Transmit> {
        if budget > 0 {
            if let Some(packet) = self.next_control() {
                return Some(Transmit::Control(packet));
            }
            if std::mem::take(&mut self.schedule.discarded)
                && let Some(read) = self.next_read(budget)
            {
                return Some(read);
            }
        }
        if let Some(discard) = self.next_discard(now) {
            self.schedule.discarded = true;
            return Some(discard);
        }
        if budget > 0 { self.next_read(budget) } else { None }
    }

    fn next_control(&mut self) -> Option<Control> {
        while let Some(outgoing) = self.schedule.outbox.pop_front() {
            match outgoing {
                Outgoing::Control(packet) => return Some(packet),
                Outgoing::UnknownConnection(id) => {
                    self.schedule.unknown_ids.remove(&id);
                    return Some(S::answer_to_unknown(id));
                }
                Outgoing::Dial(key) => {
                    let dial = self.table.get_mut(key);
                    let dial = dial.and_then(|conn| Some((conn.random, conn.state.send_dial()?)));
                    if let Some((random, (protocol, address, trace))) = dial {
                        return Some(Packet::DialReq { random, protocol, address, trace });
                    }
                    self.schedule.stale_dials = self.schedule.stale_dials.saturating_sub(1);
                }
            }
        }
        while let Some(key) = self.schedule.grants.pop_front() {
            let Some(conn) = self.table.get_mut(key) else { continue };
            if let (Some(offset), Some(id)) = (conn.grant(), conn.id) {
                return Some(Packet::Grant { id, offset });
            }
        }
        None
    }

    fn next_read(&mut self, budget: usize) -> Option<Transmit> {
        while let Some(key) = self.schedule.pop_source() {
            match self.table.get_mut(key).and_then(Conn::turn) {
                None => {}
                Some(0) => return Some(Transmit::NoCredit { key }),
                Some(room) => {
                    return Some(Transmit::Read { key, max: budget.min(self.limits.chunk).min(room) });
                }
            }
        }
        None
    }

    fn next_discard(&mut self, now: Time) -> Option<Transmit> {
        while let Some((key, max)) = self.schedule.discards.next(now, &self.limits) {
            // At the server the state of an ended connection may outlive its local end.
            if self.table.end_lingering(key) {
                return Some(Transmit::Linger { key, max });
            }
            if self.table.get_mut(key).is_some_and(Conn::discard_turn) {
                return Some(Transmit::Discard { key, max });
            }
        }
        None
    }
}
