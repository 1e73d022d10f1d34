//! The task of one agent stream. Each turn handles commands, woken connections, arrived packets, packets to send, and timers.
//!
//! A turn never waits (invariant 4). When the stream accepts no more bytes, the task stops reading from local ends. When a
//! local end accepts no more bytes, they are queued. When a queue reaches its limit, the task stops receiving. A turn is
//! limited, too, so that the connection's own task can write, and other links on the same thread can run.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use transport::wire::{Wire, WireError};
use tunnel::{Event, Link, Side, Terms, Time};

use crate::conns::Conns;
use crate::memory::{Bounds, Member};
use crate::owner::{Meter, Owner};
use crate::ready::{Mark, ReadyList};

/// The most bytes that woken local ends accept or discard in one turn, plus those of the last local end. Bytes that arrive in
/// the turn do not count. When a thousand stalled readers resume at once, packets and pings are still handled in time.
const MOVED_PER_TURN: usize = 1 << 20;

/// How a link's stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEnd {
    /// The peer ended the stream in order.
    Finished,
    /// We ended the stream.
    Stopped,
    /// The stream failed.
    Failed(WireError),
}

/// One agent stream with its connections: a future that runs until the stream has ended and every local end is notified.
#[derive(Debug)]
pub struct Relay<S, W, O, M> {
    pub(crate) conns: Conns<S>,
    pub(crate) wire: Option<W>,
    pub(crate) owner: O,
    pub(crate) meter: M,
    memory: Member,
    list: Arc<ReadyList>,
    /// Woken connections that have not been served yet.
    ready: VecDeque<Arc<Mark>>,
    started: Instant,
    timer: Pin<Box<Sleep>>,
    armed: Option<Time>,
    /// The smallest RTT to the peer so far.
    way: Option<Duration>,
    /// The task receives nothing, because a limit was reached.
    pub(crate) paused: bool,
    /// The task cannot send any more, and has not read the stream's end yet.
    pub(crate) send_broken: bool,
    end: Option<LinkEnd>,
}

impl<S, W, O, M> Relay<S, W, O, M>
where
    S: Side + Default,
    W: Wire,
    O: Owner<S>,
    M: Meter,
{
    /// A relay over a newly opened stream with the agreed terms.
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
            ready: VecDeque::new(),
            started,
            timer: Box::pin(tokio::time::sleep_until(started)),
            armed: None,
            way: None,
            paused: false,
            send_broken: false,
            end: None,
        }
    }

    fn now(&self) -> Time {
        Time::from_start(self.started.elapsed())
    }

    /// Runs one turn. Returns true if the task must run again at once.
    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.now();
        self.list.take(cx.waker(), &mut self.ready);
        self.measure_way();
        if self.owner.poll_commands(cx, &mut self.conns, now).is_ready() {
            self.stop(now);
        }
        let more_ready = self.serve_ready(now);
        self.conns.link.refuse_dials(self.memory.is_pressed());
        let more_arrivals = self.receive(cx, now);
        self.conns.write_dirty(now);
        self.drain_events(now);
        let more_transmissions = self.transmit(cx, now);
        self.drain_events(now);
        self.conns.call_parked(now);
        self.account(cx, now);
        // If the link fell below its limits after `receive` (a reader left, or the peer read its answers), nothing wakes this
        // task, because it did not poll the wire for packets while it was paused.
        let resumed = self.paused && self.conns.link.receiving();
        more_ready || more_arrivals || more_transmissions || resumed
    }

    /// Reports the RTT to the core once it is measured, and whenever it changes.
    fn measure_way(&mut self) {
        let way = self.wire.as_ref().and_then(Wire::round_trip);
        if way != self.way {
            self.way = way;
            self.conns.link.set_round_trip(way.unwrap_or_default());
        }
    }

    /// Serves woken connections. Returns true if it stopped at the turn's limit before the last one.
    fn serve_ready(&mut self, now: Time) -> bool {
        let mut moved = 0;
        while let Some(mark) = self.ready.pop_front() {
            moved += self.conns.serve(&mark, now);
            if moved >= MOVED_PER_TURN {
                break;
            }
        }
        !self.ready.is_empty()
    }

    /// Reports the held bytes, and resets connections if the process needs their memory.
    fn account(&mut self, cx: &mut Context<'_>, now: Time) {
        if self.conns.link.take_refused() {
            self.memory.make_room();
        }
        // A paused stream holds the bytes that its window has admitted.
        let waiting = if self.paused { self.wire.as_mut().map_or(0, Wire::held) } else { 0 };
        while let Some(excess) = self.memory.hold(self.conns.link.total_held() + waiting, cx.waker()) {
            let before = self.conns.link.total_held();
            self.conns.link.relieve(now, excess.bytes, excess.urgent);
            self.drain_events(now);
            let freed = before.saturating_sub(self.conns.link.total_held());
            if freed < excess.bytes && !excess.urgent {
                self.memory.pass_on();
            }
            if freed == 0 {
                break;
            }
        }
        self.meter.queued(self.conns.link.total_held());
    }

    pub(crate) fn drain_events(&mut self, now: Time) {
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
                    if let tunnel::End::Broken(cause) = &end
                        && !cause.is_abort()
                    {
                        self.meter.broken(cause);
                    }
                    self.owner.ended(key);
                    self.conns.ended(now, key, &end);
                }
                Event::Draining => self.owner.draining(),
            }
        }
    }

    fn stop(&mut self, now: Time) {
        if let Some(wire) = self.wire.as_mut() {
            wire.finish();
            self.lose(now, LinkEnd::Stopped);
        }
    }

    /// The stream is lost: all its dials and connections end now (invariant 1).
    pub(crate) fn lose(&mut self, now: Time, end: LinkEnd) {
        if self.wire.take().is_some() {
            self.end = Some(end);
            // The core must know the queued bytes before it handles the loss.
            self.conns.write_dirty(now);
            if std::mem::take(&mut self.paused) {
                self.meter.paused(false);
            }
            self.conns.link.lose(now);
            self.owner.lost();
        }
    }

    /// Sets the timer to the next time-out of the core or of the discard budget. Returns true if it has expired already.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let due = [self.conns.link.poll_timeout(), self.conns.waste_due()].into_iter().flatten().min();
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
        self.conns.call_parked(now);
        if self.conns.link.poll_timeout().is_some_and(|due| due <= now) {
            self.conns.link.handle_timeout(now);
            self.drain_events(now);
            self.memory.ask_again();
        }
        true
    }

    fn is_done(&self) -> bool {
        self.wire.is_none()
            && self.conns.link.is_empty()
            && self.conns.local_ends() == 0
            && self.owner.is_done()
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
