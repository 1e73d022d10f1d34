//! The core together with the local ends of its connections.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use mux::{CloseReason, ConnKey, ConnectId, Fill, Link, Side, Time};
use tokio::time::Instant;

use crate::chunks::Chunks;
use crate::live::{LiveConnection, Traffic};
use crate::local_io::{LocalIo, Read, write_into};
use crate::ready::{ConnWaker, ReadyList};

/// The bytes of a target that are kept: the longest DNS name with a port.
const MAX_TARGET_BYTES: usize = 260;

/// A link's core and its local ends.
pub struct Conns<S> {
    pub(crate) link: Link<S, Bytes>,
    /// The local ends by [`ConnKey::index`]. The core uses an index again only after [`Link::release`].
    locals: Vec<Option<Local>>,
    /// The number of local ends of each [`size`].
    sizes: [usize; 3],
    list: Arc<ReadyList>,
    /// Connections that received bytes in this turn and will be written and flushed once.
    dirty: Vec<ConnKey>,
    /// Payload that was sent and received since the link's start, in bytes.
    moved: (u64, u64),
}

/// One local end, from its opening until it has been notified of its end.
struct Local {
    key: ConnKey,
    waker: Waker,
    io: Option<Box<dyn LocalIo>>,
    /// The core's count of bytes that the local end holds for lack of credit.
    ahead: usize,
    dirty: bool,
    /// The last fill that the local end was told.
    fill: Fill,
    /// The peer sends no more, and the local end will be notified.
    shut_down: bool,
    /// Set once the core has ended the connection.
    close_reason: Option<CloseReason>,
    target: Box<str>,
    since: Instant,
    /// Payload that was sent and received, in bytes.
    moved: (u64, u64),
    /// Bytes wait, and the local end has accepted none since then.
    waits_since: Option<Time>,
}

/// What a connection sent and received: nothing (0), up to [`mux::BULK_BYTES`] bytes (1), or more (2).
fn size((sent, received): (u64, u64)) -> usize {
    usize::from(sent + received > 0) + usize::from(sent + received > mux::BULK_BYTES)
}

impl<S: Side> Conns<S> {
    pub(crate) fn new(link: Link<S, Bytes>, list: Arc<ReadyList>) -> Self {
        Conns { link, locals: Vec::new(), sizes: [0; 3], list, dirty: Vec::new(), moved: (0, 0) }
    }

    /// The core, for dials, answers and drains.
    pub fn link(&mut self) -> &mut Link<S, Bytes> {
        &mut self.link
    }

    /// Connections whose local end has not finished.
    pub fn local_ends(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// The same without local ends that finish after the end of their connection.
    pub(crate) fn open_local_ends(&self) -> usize {
        self.locals.iter().flatten().filter(|local| local.close_reason.is_none()).count()
    }

    /// Creates the entry of a connection that has just opened.
    pub fn open(&mut self, key: ConnKey) {
        let waker = Waker::from(ConnWaker::new(&self.list, key));
        if self.locals.len() <= key.index() {
            self.locals.resize_with(key.index() + 1, || None);
        }
        self.sizes[0] += 1;
        self.locals[key.index()] = Some(Local {
            key,
            waker,
            io: None,
            ahead: 0,
            dirty: false,
            fill: Fill::Room,
            shut_down: false,
            close_reason: None,
            target: Box::default(),
            since: Instant::now(),
            moved: (0, 0),
            waits_since: None,
        });
    }

    /// Names the target of an open connection, for [`Conns::live`], in at most 260 bytes.
    pub fn set_target(&mut self, key: ConnKey, target: &str) {
        if let Some(local) = self.local(key) {
            local.target = target[..target.floor_char_boundary(MAX_TARGET_BYTES)].into();
        }
    }

    /// What the link carries now.
    pub fn traffic(&self) -> Traffic {
        let ([_, small, bulk], (sent, received)) = (self.sizes, self.moved);
        Traffic { connections: self.local_ends(), small, bulk, sent, received }
    }

    /// At most `limit` connections after the first `skip` ones, in an order that lasts as long as the connections do.
    pub fn live(&self, now: Time, skip: usize, limit: usize) -> Vec<LiveConnection> {
        let live = |local: &Local| LiveConnection {
            id: self.link.connect_id(local.key).unwrap_or(ConnectId(0)),
            target: local.target.clone(),
            client: local.io.as_deref().map_or("", LocalIo::client).into(),
            since: local.since,
            sent: local.moved.0,
            received: local.moved.1,
            queued: self.link.recv(local.key).map_or(0, |recv| recv.len()),
            stalled: local.waits_since.map(|since| now.since(since)),
        };
        self.locals.iter().flatten().skip(skip).take(limit).map(live).collect()
    }

    /// Payload of this connection was sent.
    pub(crate) fn sent(&mut self, key: ConnKey, bytes: usize) {
        self.moved.0 += bytes as u64;
        self.add(key, (bytes as u64, 0));
    }

    /// Adds payload that a connection sent and received.
    fn add(&mut self, key: ConnKey, (sent, received): (u64, u64)) {
        let Some(local) = self.local(key) else { return };
        let before = size(local.moved);
        local.moved = (local.moved.0 + sent, local.moved.1 + received);
        let now = size(local.moved);
        self.sizes[before] -= 1;
        self.sizes[now] += 1;
    }

    /// Attaches the local end: bytes flow from here on. If the connection has already ended, the local end is notified.
    pub fn attach(&mut self, key: ConnKey, io: Box<dyn LocalIo>) {
        if let Some(local) = self.local(key) {
            local.io = Some(io);
            local.waker.wake_by_ref();
        }
    }

    /// Removes a connection whose local end will never come. The core already knows.
    pub fn discard(&mut self, key: ConnKey) {
        if self.local(key).is_some() {
            self.release(key);
        }
    }

    fn local(&mut self, key: ConnKey) -> Option<&mut Local> {
        self.locals.get_mut(key.index())?.as_mut().filter(|local| local.key == key)
    }

    /// The local end of a connection that the core has not ended.
    fn living(&mut self, key: ConnKey) -> Option<&mut Local> {
        self.local(key).filter(|local| local.close_reason.is_none())
    }

    fn release(&mut self, key: ConnKey) {
        if let Some(local) = self.locals[key.index()].take() {
            self.sizes[size(local.moved)] -= 1;
        }
        self.link.release(key);
    }

    /// Payload was received, of whatever connection.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.moved.1 += bytes as u64;
    }

    /// Bytes wait for a local end. [`Conns::write_dirty`] writes them in the same turn.
    pub(crate) fn arrived(&mut self, key: ConnKey, bytes: usize) {
        self.add(key, (0, bytes as u64));
        let Some(local) = self.local(key) else { return };
        if !std::mem::replace(&mut local.dirty, true) {
            self.dirty.push(key);
        }
    }

    /// Writes the bytes that arrived in this turn.
    pub(crate) fn write_dirty(&mut self, now: Time) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            if let Some(local) = self.local(key) {
                local.dirty = false;
                self.write(key, now);
            }
        }
        self.dirty = dirty;
    }

    /// Serves a connection whose sockets woke it. Returns the number of bytes that its local end accepted or that were
    /// discarded.
    pub(crate) fn serve(&mut self, conn_waker: &ConnWaker, now: Time) -> usize {
        conn_waker.clear_listed();
        let key = conn_waker.key;
        let Some(local) = self.local(key).filter(|local| local.io.is_some()) else { return 0 };
        if local.close_reason.is_some() {
            let allowance = self.link.discard_allowance(now);
            return self.end(key, allowance);
        }
        let accepted = self.write(key, now);
        self.link.readable(key);
        accepted
    }

    /// Offers the received bytes to the local end, and tells the core how many it accepted. Returns their number.
    fn write(&mut self, key: ConnKey, now: Time) -> usize {
        let Conns { link, locals, .. } = self;
        let entry = locals.get_mut(key.index()).and_then(Option::as_mut);
        let Some(local) = entry.filter(|local| local.key == key && local.close_reason.is_none()) else {
            return 0;
        };
        let Some(recv) = link.recv(key) else { return 0 };
        let (waited, bytes) = (!recv.is_empty(), recv.len());
        let mut chunks = Chunks::new(recv.slices(), recv.len());
        let mut shut = Poll::Pending;
        let mut cx = Context::from_waker(&local.waker);
        let written = match local.io.as_mut() {
            Some(io) => write_into(io.as_mut(), &mut chunks, &mut cx).and_then(|more| {
                if local.shut_down && !more {
                    shut = io.poll_shut_down(&mut cx)?;
                }
                Ok(more)
            }),
            None => Ok(false),
        };
        match written {
            Ok(true) => local.waker.wake_by_ref(),
            Ok(false) => {}
            Err(error) => {
                link.write_failed(now, key, error.to_string());
                return 0;
            }
        }
        local.shut_down &= shut.is_pending();
        let accepted = chunks.accepted();
        if waited {
            link.advance(now, key, accepted);
        }
        if accepted > 0 || !waited {
            local.waits_since = (accepted < bytes).then_some(now);
        } else {
            local.waits_since.get_or_insert(now);
        }
        let fill = link.fill(key);
        if let Some(io) = local.io.as_mut().filter(|_| local.fill != fill) {
            local.fill = fill;
            io.filled(fill);
        }
        accepted
    }

    /// The peer sends no more, and everything that it sent was written.
    pub(crate) fn shut_down(&mut self, key: ConnKey, now: Time) {
        if let Some(local) = self.living(key) {
            local.shut_down = true;
            self.write(key, now);
        }
    }

    /// Reads from a local end.
    pub(crate) fn poll_read(&mut self, key: ConnKey, max: usize, now: Time) -> Poll<std::io::Result<Read>> {
        let Some(local) = self.living(key) else { return Poll::Pending };
        let Some(io) = local.io.as_mut() else { return Poll::Pending };
        let read = io.poll_read(&mut Context::from_waker(&local.waker), max);
        // If the read is pending, a message may be unfinished.
        if local.ahead > 0 || read.is_pending() {
            self.report_ahead(key, now);
        }
        read
    }

    /// Tells the core how many bytes the local end holds that cannot be sent yet.
    fn report_ahead(&mut self, key: ConnKey, now: Time) {
        let Some(local) = self.local(key) else { return };
        let ahead = local.io.as_mut().map_or(0, |io| io.held());
        if std::mem::replace(&mut local.ahead, ahead) != ahead {
            self.link.holds_ahead(now, key, ahead);
        }
    }

    /// Checks whether a local end without credit has gone.
    pub(crate) fn poll_closed(&mut self, key: ConnKey, now: Time) {
        let Some(local) = self.living(key) else { return };
        let Some(io) = local.io.as_mut() else { return };
        let closed = io.poll_closed(&mut Context::from_waker(&local.waker)).is_ready();
        self.report_ahead(key, now);
        if closed {
            self.link.local_closed(now, key);
        }
    }

    /// The core has ended a connection: notifies the local end.
    pub(crate) fn ended(&mut self, now: Time, key: ConnKey, end: CloseReason) {
        let Some(local) = self.living(key) else { return };
        local.close_reason = Some(end);
        if local.io.is_some() {
            let allowance = self.link.discard_allowance(now);
            self.end(key, allowance);
        }
    }

    /// Continues an end, which may discard this many bytes. Returns the number of discarded bytes.
    pub(crate) fn end(&mut self, key: ConnKey, allowance: usize) -> usize {
        let Some(local) = self.local(key) else { return 0 };
        let (Some(io), Some(close_reason)) = (local.io.as_mut(), local.close_reason.as_ref()) else {
            return 0;
        };
        let mut left = allowance;
        let ended = io.poll_end(&mut Context::from_waker(&local.waker), close_reason, &mut left);
        let discarded = allowance - left;
        self.link.discarded(discarded);
        if ended.is_ready() {
            self.release(key);
        } else if left == 0 {
            self.link.linger(key);
        }
        discarded
    }
}
