//! The task of one agent stream. It goes in turns: commands, woken connections, arrivals, transmissions, timers.
//!
//! Nothing in a turn waits (invariant 4): a stream that takes no more bytes stops reads, a local end that takes
//! no more bytes gets a queue, and a queue at its bound stops receiving. A turn is bounded too, so that the
//! connection's own task gets to write, and other links on the same core get to run.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::{Instant, Sleep};
use transport::wire::{Incoming, Wire, WireError};
use tunnel::{Event, Link, Packet, ReadOutcome, Side, Terms, Time, Transmit, Verdict};

use crate::conns::Conns;
use crate::local::Read;
use crate::memory::{Bounds, Member};
use crate::owner::{Meter, Owner};
use crate::ready::{Mark, ReadyList};

/// A DATA on the wire carries at most so many bytes: a quarter of the cost per byte of 16 KiB ones, while twice
/// as much brings nothing (measured).
const FRAME: usize = 64 << 10;
/// Bytes read from local ends in one turn.
const TRANSMIT_PER_TURN: usize = 512 << 10;
/// Packets handled in one turn.
const PACKETS_PER_TURN: usize = 256;
/// Bytes received in one turn.
const RECEIVE_PER_TURN: usize = 1 << 20;
/// Transmissions, of whatever size, in one turn.
const STEPS_PER_TURN: usize = 512;

/// How a link's stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEnd {
    /// The peer ended it in order.
    Finished,
    /// We ended it.
    Stopped,
    /// It broke.
    Failed(WireError),
}

/// One agent stream with its connections: a future that runs until the stream has ended and every local end has
/// been told.
#[derive(Debug)]
pub struct Relay<S, W, O, M> {
    conns: Conns<S>,
    wire: Option<W>,
    owner: O,
    meter: M,
    memory: Member,
    list: Arc<ReadyList>,
    ready: Vec<Arc<Mark>>,
    started: Instant,
    timer: Pin<Box<Sleep>>,
    armed: Option<Time>,
    /// Whether receiving stands still because a bound was reached.
    paused: bool,
    /// Nothing can be sent any more; the stream's end has not been read yet.
    send_broken: bool,
    end: Option<LinkEnd>,
}

impl<S, W, O, M> Relay<S, W, O, M>
where
    S: Side + Default,
    W: Wire,
    O: Owner<S>,
    M: Meter,
{
    /// A relay over a stream that has just been opened, on the terms that were agreed for it.
    pub fn new(bounds: &Bounds, terms: Terms, wire: W, owner: O, meter: M) -> Self {
        let list = Arc::new(ReadyList::default());
        let started = Instant::now();
        Relay {
            conns: Conns::new(Link::with_terms(bounds.limits_on(terms), terms), Arc::clone(&list)),
            wire: Some(wire),
            owner,
            meter,
            memory: bounds.memory.join(),
            list,
            ready: Vec::new(),
            started,
            timer: Box::pin(tokio::time::sleep_until(started)),
            armed: None,
            paused: false,
            send_broken: false,
            end: None,
        }
    }

    fn now(&self) -> Time {
        Time::from_start(self.started.elapsed())
    }

    /// One turn; true if there is more to do at once.
    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.now();
        let mut ready = std::mem::take(&mut self.ready);
        self.list.take(cx.waker(), &mut ready);
        if self.owner.poll_commands(cx, &mut self.conns, now).is_ready() {
            self.stop(now);
        }
        for mark in ready.drain(..) {
            self.conns.serve(&mark, now);
        }
        self.ready = ready;
        self.conns.link.refuse_dials(self.memory.is_pressed());
        let more_arrivals = self.receive(cx, now);
        self.conns.write_dirty(now);
        self.drain_events(now);
        let more_transmissions = self.transmit(cx, now);
        self.drain_events(now);
        self.account(cx, now);
        // A bound that was left after `receive` (a queue whose reader went away, answers that were fetched) wakes
        // nobody: the wire was not asked while it held.
        more_arrivals || more_transmissions || (self.paused && self.conns.link.receiving())
    }

    /// Tells how much waits, and lets go of what is too much for the process.
    fn account(&mut self, cx: &mut Context<'_>, now: Time) {
        if let Some(excess) = self.memory.hold(self.conns.link.total_queued(), cx.waker()) {
            self.conns.link.relieve(now, excess.bytes, excess.urgent);
            self.drain_events(now);
            self.memory.hold(self.conns.link.total_queued(), cx.waker());
        }
        self.meter.queued(self.conns.link.total_queued());
    }

    /// Hands on what has arrived. True if the turn's bound cut it short.
    fn receive(&mut self, cx: &mut Context<'_>, now: Time) -> bool {
        let mut bytes = 0;
        for _ in 0..PACKETS_PER_TURN {
            if bytes >= RECEIVE_PER_TURN {
                return true;
            }
            if self.wire.is_none() {
                return false;
            }
            let receiving = self.conns.link.receiving();
            if receiving == self.paused {
                self.paused = !receiving;
                self.meter.paused(self.paused);
            }
            if !receiving {
                return false;
            }
            let Some(wire) = self.wire.as_mut() else { return false };
            match wire.poll_packet(cx) {
                Poll::Pending => return false,
                Poll::Ready(Some(Ok(incoming))) => bytes += self.handle(now, incoming),
                Poll::Ready(Some(Err(error))) => {
                    self.meter.receive_error(&error);
                    wire.fail(&error);
                    self.lose(now, LinkEnd::Failed(error));
                    return false;
                }
                Poll::Ready(None) => {
                    wire.finish();
                    self.lose(now, LinkEnd::Finished);
                    return false;
                }
            }
        }
        true
    }

    fn handle(&mut self, now: Time, incoming: Incoming) -> usize {
        let packet = match incoming {
            Incoming::Packet(packet) => packet,
            Incoming::Unknown(_) => {
                self.meter.unknown();
                return 0;
            }
            Incoming::Malformed(_) => {
                self.meter.malformed();
                return 0;
            }
        };
        self.meter.received(packet.kind());
        if !matches!(packet, Packet::Data { .. }) {
            // What arrived before a close must be written, or accounted for, before the core hears of the close.
            self.conns.write_dirty(now);
        }
        let mut payload = Bytes::new();
        let packet = packet.map(|bytes| {
            payload = bytes;
            payload.len()
        });
        match self.conns.link.handle_packet(now, packet) {
            Verdict::Deliver(key) => {
                let len = payload.len();
                self.conns.deliver(key, payload);
                return len;
            }
            Verdict::Handled => {}
            Verdict::Dropped(reason) => self.meter.dropped(reason),
        }
        self.drain_events(now);
        0
    }

    fn drain_events(&mut self, now: Time) {
        while let Some(event) = self.conns.link.poll_event() {
            match event {
                Event::Dial { key, protocol, address } => {
                    self.owner.dial(&mut self.conns, key, protocol, address);
                }
                Event::DialCancelled { key } => self.owner.dial_cancelled(key),
                Event::Opened { key, id } => {
                    self.conns.open(key);
                    self.owner.opened(&mut self.conns, now, key, id);
                }
                Event::DialFailed { key, error } => self.owner.dial_failed(key, error),
                Event::ShutDown { key } => self.conns.shut_down(key, now),
                Event::Ended { key, end } => {
                    if let tunnel::End::Broken(cause) = &end {
                        self.meter.broken(cause);
                    }
                    self.owner.ended(key);
                    self.conns.ended(key, &end);
                }
                Event::Draining => self.owner.draining(),
            }
        }
    }

    /// Sends while the stream takes bytes. True if the turn's bound cut it short.
    fn transmit(&mut self, cx: &mut Context<'_>, now: Time) -> bool {
        let mut left = TRANSMIT_PER_TURN;
        let mut budget = 0;
        for _ in 0..STEPS_PER_TURN {
            if left == 0 {
                return true;
            }
            if budget == 0 {
                budget = self.poll_budget(cx).min(left);
            }
            match self.conns.link.poll_transmit(budget) {
                None => return false,
                Some(Transmit::Control(packet)) => self.send(packet.map(|never| match never {})),
                Some(Transmit::Read { key, id, max }) => {
                    let outcome = match self.conns.poll_read(key, max) {
                        Poll::Ready(Ok(Read::Data(bytes))) => {
                            let len = bytes.len();
                            self.send_data(id, bytes);
                            budget = budget.saturating_sub(len);
                            left = left.saturating_sub(len);
                            ReadOutcome::Data(len)
                        }
                        other => outcome_of(other),
                    };
                    self.conns.link.read(now, key, outcome);
                }
                Some(Transmit::NoCredit { key }) => self.conns.poll_gone(key, now),
                Some(Transmit::Discard { key }) => {
                    let outcome = outcome_of(self.conns.poll_read(key, FRAME));
                    if let ReadOutcome::Data(len) = outcome {
                        left = left.saturating_sub(len);
                    }
                    self.conns.link.read(now, key, outcome);
                }
            }
        }
        true
    }

    fn poll_budget(&mut self, cx: &mut Context<'_>) -> usize {
        let Some(wire) = self.wire.as_mut().filter(|_| !self.send_broken) else { return 0 };
        match wire.poll_ready(cx) {
            Poll::Ready(Ok(budget)) => budget,
            Poll::Ready(Err(error)) => {
                self.send_broke(&error, tunnel::PacketKind::Data);
                0
            }
            Poll::Pending => 0,
        }
    }

    fn send_data(&mut self, id: tunnel::ConnectId, mut bytes: Bytes) {
        while bytes.len() > FRAME {
            let payload = bytes.split_to(FRAME);
            self.send(Packet::Data { id, payload });
        }
        self.send(Packet::Data { id, payload: bytes });
    }

    fn send(&mut self, packet: Packet<Bytes>) {
        let Some(wire) = self.wire.as_mut() else { return };
        let kind = packet.kind();
        self.meter.sent(kind);
        if let Err(error) = wire.send(packet) {
            self.send_broke(&error, kind);
        }
    }

    /// Nothing can be sent any more. What has arrived is still read: the wire tells the stream's end behind it.
    fn send_broke(&mut self, error: &WireError, kind: tunnel::PacketKind) {
        if !std::mem::replace(&mut self.send_broken, true) {
            self.meter.send_error(error, kind);
        }
    }

    fn stop(&mut self, now: Time) {
        if let Some(wire) = self.wire.as_mut() {
            wire.finish();
            self.lose(now, LinkEnd::Stopped);
        }
    }

    /// The stream is gone: everything that depends on it ends now (invariant 1).
    fn lose(&mut self, now: Time, end: LinkEnd) {
        if self.wire.take().is_some() {
            self.end = Some(end);
            // The core must know what waits before it hears of the loss.
            self.conns.write_dirty(now);
            if std::mem::take(&mut self.paused) {
                self.meter.paused(false);
            }
            self.conns.link.lose(now);
            self.owner.lost();
        }
    }

    /// Sets the timer to what the core waits for. True if that is due already.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let due = self.conns.link.poll_timeout();
        if due != self.armed {
            self.armed = due;
            if let Some(due) = due {
                self.timer.as_mut().reset(self.started + due.since_start());
            }
        }
        if self.armed.is_none() || self.timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.armed = None;
        let now = self.now();
        self.conns.link.handle_timeout(now);
        self.drain_events(now);
        self.memory.ask_again();
        true
    }

    fn is_done(&self) -> bool {
        self.wire.is_none()
            && self.conns.link.is_empty()
            && self.conns.local_ends() == 0
            && self.owner.is_done()
    }
}

/// A read that brought nothing to send, in the core's words.
fn outcome_of(read: Poll<std::io::Result<Read>>) -> ReadOutcome {
    match read {
        Poll::Pending => ReadOutcome::Blocked,
        Poll::Ready(Ok(Read::Data(bytes))) => ReadOutcome::Data(bytes.len()),
        Poll::Ready(Ok(Read::Eof)) => ReadOutcome::Eof,
        Poll::Ready(Ok(Read::Closed)) => ReadOutcome::Closed,
        Poll::Ready(Err(error)) => ReadOutcome::Failed(error.to_string()),
    }
}

impl<S, W, O, M> Future for Relay<S, W, O, M>
where
    S: Side + Default + Unpin,
    W: Wire + Unpin,
    O: Owner<S> + Unpin,
    M: Meter + Unpin,
{
    type Output = LinkEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LinkEnd> {
        let this = self.get_mut();
        let mut more = this.turn(cx);
        more |= this.poll_timer(cx);
        if this.is_done() {
            return Poll::Ready(this.end.take().unwrap_or(LinkEnd::Stopped));
        }
        if more {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
