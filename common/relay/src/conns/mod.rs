//! The core together with the local ends of its connections.

mod ends;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use slab::Slab;
use tunnel::{ConnKey, Link, Side, Time};

use self::ends::DiscardState;
use crate::discard::DiscardBudget;
use crate::local_io::{CloseReason, LocalIo, Read};
use crate::queue::Queue;
use crate::ready::{ConnWaker, ReadyList};

/// A link's core and its local ends.
pub struct Conns<S> {
    pub(crate) link: Link<S>,
    slots: Slab<Slot>,
    /// Maps the index of a connection's key to its slot. The slot's own key is compared.
    by_key: Vec<usize>,
    list: Arc<ReadyList>,
    /// Slots that received bytes in this turn and will be written and flushed once.
    dirty: Vec<usize>,
    /// The discard budget for closed connections whose peers still send.
    discard_budget: DiscardBudget,
}

/// One local end, from its opening until it has been notified of its end.
struct Slot {
    key: ConnKey,
    conn_waker: Arc<ConnWaker>,
    waker: Waker,
    local: Option<Box<dyn LocalIo>>,
    queue: Queue,
    /// The queue size that the core knows.
    charged: usize,
    /// The core's count of bytes that the local end holds for lack of credit.
    ahead: usize,
    dirty: bool,
    /// The peer sends no more, and the local end will be notified.
    shut_down: bool,
    /// Set once the core has released the connection.
    close_reason: Option<CloseReason>,
    /// Its place in the queue for the discard budget.
    discard_state: DiscardState,
}

impl<S> std::fmt::Debug for Conns<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conns").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

impl<S: Side> Conns<S> {
    pub(crate) fn new(link: Link<S>, list: Arc<ReadyList>) -> Self {
        Conns {
            link,
            slots: Slab::new(),
            by_key: Vec::new(),
            list,
            dirty: Vec::new(),
            discard_budget: DiscardBudget::default(),
        }
    }

    /// The core, for dials, answers and drains.
    pub fn link(&mut self) -> &mut Link<S> {
        &mut self.link
    }

    /// Connections whose local end has not been notified of its end.
    pub fn local_ends(&self) -> usize {
        self.slots.len()
    }

    /// Creates the slot of a connection that has just opened. Arriving bytes queue there.
    pub fn open(&mut self, key: ConnKey) {
        let entry = self.slots.vacant_entry();
        let slot = entry.key();
        let conn_waker = ConnWaker::new(&self.list, slot);
        let waker = Waker::from(Arc::clone(&conn_waker));
        entry.insert(Slot {
            key,
            conn_waker,
            waker,
            local: None,
            queue: Queue::default(),
            charged: 0,
            ahead: 0,
            dirty: false,
            shut_down: false,
            close_reason: None,
            discard_state: DiscardState::default(),
        });
        if self.by_key.len() <= key.index() {
            self.by_key.resize(key.index() + 1, usize::MAX);
        }
        self.by_key[key.index()] = slot;
    }

    /// Attaches the local end: bytes flow from here on. If the connection has already ended, the local end is notified.
    pub fn attach(&mut self, key: ConnKey, local: Box<dyn LocalIo>) {
        let Some(slot) = self.find_any(key) else { return };
        let entry = &mut self.slots[slot];
        entry.local = Some(local);
        entry.waker.wake_by_ref();
    }

    /// Removes a connection whose local end will never come. The core already knows.
    pub fn discard(&mut self, key: ConnKey) {
        if let Some(slot) = self.find_any(key) {
            self.slots.remove(slot);
        }
    }

    /// The slot of a connection that the core still holds.
    fn find(&self, key: ConnKey) -> Option<usize> {
        let slot = *self.by_key.get(key.index())?;
        let entry = self.slots.get(slot)?;
        (entry.key == key && entry.close_reason.is_none()).then_some(slot)
    }

    /// The slot of a connection, even if the core has released it.
    fn find_any(&self, key: ConnKey) -> Option<usize> {
        let waits = |entry: &Slot| entry.key == key && entry.local.is_none();
        let latest = self.by_key.get(key.index()).copied();
        latest
            .filter(|slot| self.slots.get(*slot).is_some_and(waits))
            // A later connection has taken its place in the index.
            .or_else(|| self.slots.iter().find(|(_, entry)| waits(entry)).map(|(slot, _)| slot))
    }

    /// Queues bytes for a local end. [`Conns::write_dirty`] writes them in the same turn.
    pub(crate) fn deliver(&mut self, key: ConnKey, payload: Bytes) {
        let Some(slot) = self.find(key) else { return };
        let entry = &mut self.slots[slot];
        entry.queue.push(payload);
        if !entry.dirty {
            entry.dirty = true;
            self.dirty.push(slot);
        }
    }

    /// Writes the bytes that arrived in this turn.
    pub(crate) fn write_dirty(&mut self, now: Time) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            if let Some(entry) = self.slots.get_mut(slot) {
                entry.dirty = false;
                self.write(slot, now);
            }
        }
        self.dirty = dirty;
    }

    /// Serves a connection whose sockets woke it. Returns the number of bytes that its local end accepted or that were
    /// discarded.
    pub(crate) fn serve(&mut self, conn_waker: &Arc<ConnWaker>, now: Time) -> usize {
        conn_waker.clear_listed();
        let slot = conn_waker.slot();
        let Some(entry) = self.slots.get(slot) else { return 0 };
        if !Arc::ptr_eq(&entry.conn_waker, conn_waker) || entry.local.is_none() {
            return 0;
        }
        if entry.close_reason.is_some() {
            return self.end(slot, now);
        }
        let key = entry.key;
        let taken = self.write(slot, now);
        self.link.readable(key);
        taken
    }

    /// Writes the queue to the local end as far as possible, and tells the core what is left. Returns the number of
    /// bytes written.
    fn write(&mut self, slot: usize, now: Time) -> usize {
        let Some(entry) = self.slots.get_mut(slot) else { return 0 };
        if entry.close_reason.is_some() {
            return 0;
        }
        let key = entry.key;
        let (waiting, mut shut) = (entry.queue.len(), Poll::Pending);
        let mut cx = Context::from_waker(&entry.waker);
        let written = match entry.local.as_mut() {
            Some(local) => entry.queue.write_into(local.as_mut(), &mut cx).and_then(|more| {
                if entry.shut_down && !more {
                    shut = local.poll_shut_down(&mut cx)?;
                }
                Ok(more)
            }),
            None => Ok(false),
        };
        let more = match written {
            Ok(more) => more,
            Err(error) => {
                // An empty queue would end a flush in order, although the socket may have lost accepted bytes.
                entry.queue.clear();
                entry.charged = 0;
                self.link.write_failed(now, key, error.to_string());
                return 0;
            }
        };
        let taken = waiting - entry.queue.len();
        if more {
            entry.waker.wake_by_ref();
        }
        entry.shut_down &= shut.is_pending();
        entry.queue.compact();
        let charged = entry.queue.charged();
        if taken > 0 {
            self.link.taken(key, taken);
        }
        if charged != entry.charged {
            entry.charged = charged;
            self.link.queued(now, key, charged);
        }
        if shut == Poll::Ready(false) {
            self.link.cannot_half_close(now, key);
        }
        taken
    }

    /// The peer sends no more, and everything that it sent was written.
    pub(crate) fn shut_down(&mut self, key: ConnKey, now: Time) {
        if let Some(slot) = self.find(key) {
            self.slots[slot].shut_down = true;
            self.write(slot, now);
        }
    }

    /// Reads from a local end.
    pub(crate) fn poll_read(&mut self, key: ConnKey, max: usize, now: Time) -> Poll<std::io::Result<Read>> {
        let Some(slot) = self.find(key) else { return Poll::Pending };
        let entry = &mut self.slots[slot];
        let Some(local) = entry.local.as_mut() else { return Poll::Pending };
        let read = local.poll_read(&mut Context::from_waker(&entry.waker), max);
        if let Poll::Ready(Ok(Read::Closed)) = read {
            // The local end does not listen any more.
            entry.queue.clear();
            entry.charged = 0;
        }
        if entry.ahead > 0 {
            self.report_ahead(slot, now);
        }
        read
    }

    /// Tells the core how many bytes the local end holds for lack of credit.
    fn report_ahead(&mut self, slot: usize, now: Time) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let ahead = entry.local.as_mut().map_or(0, |local| local.held());
        if ahead != entry.ahead {
            entry.ahead = ahead;
            self.link.holds_ahead(now, entry.key, ahead);
        }
    }

    /// Checks whether a local end without credit has gone.
    pub(crate) fn poll_gone(&mut self, key: ConnKey, now: Time) {
        let Some(slot) = self.find(key) else { return };
        let entry = &mut self.slots[slot];
        let Some(local) = entry.local.as_mut() else { return };
        let gone = local.poll_gone(&mut Context::from_waker(&entry.waker)).is_ready();
        self.report_ahead(slot, now);
        if gone {
            self.link.local_closed(now, key);
        }
    }
}
