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

use grpc::{Code, Wire, WireError};
use mux::{Event, Link, Negotiated, Side, Time};
use tokio::time::{Instant, Sleep};

use crate::conns::Conns;
use crate::handler::{LinkHandler, Meter};
use crate::memory::{Bounds, LinkAccount};
use crate::ready::{ConnWaker, ReadyList};

/// The most bytes that woken local ends accept or discard in one turn, plus those of the last local end. Bytes that arrive in
/// the turn do not count. When a thousand stalled readers resume at once, packets and pings are still handled in time.
const MOVED_PER_TURN: usize = 1 << 20;

/// The most bytes of an unfinished message that do not count under the memory limit. Messages have at most 64 KiB of payload, unless
/// a Go server passes on a longer one of its client.
const UNFINISHED_MESSAGE: usize = 128 << 10;

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
pub struct Driver<S, W, H, M> {
    pub(crate) conns: Conns<S>,
    pub(crate) wire: Option<W>,
    pub(crate) handler: H,
    pub(crate) meter: M,
    memory: LinkAccount,
    list: Arc<ReadyList>,
    /// Woken connections that have not been served yet.
    ready: VecDeque<Arc<ConnWaker>>,
    started: Instant,
    timer: Pin<Box<Sleep>>,
    armed: Option<Time>,
    /// The RTT to the peer that the core knows.
    rtt: Option<Duration>,
    /// The task receives nothing, because a limit was reached.
    pub(crate) paused: bool,
    /// The task cannot send any more, and has not read the stream's end yet.
    pub(crate) send_broken: bool,
    end: Option<LinkEnd>,
}

impl<S: Side + Default, W: Wire, H: LinkHandler<S>, M: Meter> Driver<S, W, H, M> {
    /// A driver over a newly opened stream with the agreed terms.
    pub fn new(bounds: &Bounds, negotiated: Negotiated, wire: W, handler: H, meter: M) -> Self {
        let list = Arc::new(ReadyList::default());
        let started = Instant::now();
        Driver {
            conns: Conns::new(Link::new(bounds.limits_for(negotiated), negotiated), Arc::clone(&list)),
            wire: Some(wire),
            handler,
            meter,
            memory: bounds.memory.join(),
            list,
            ready: VecDeque::new(),
            started,
            timer: Box::pin(tokio::time::sleep_until(started)),
            armed: None,
            rtt: None,
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
        self.update_rtt();
        if self.handler.poll_commands(cx, &mut self.conns, now).is_ready() {
            self.stop(now);
        }
        let more_ready = self.serve_ready(now);
        let more_arrivals = self.receive(cx, now);
        self.conns.write_dirty(now);
        self.drain_events(now);
        let more_transmissions = self.transmit(cx, now);
        self.drain_events(now);
        let more_ends = self.report_memory(cx, now);
        // If the link fell below its limits after `receive` (a reader left, or the peer read its answers), nothing wakes this
        // task, because it did not poll the wire for packets while it was paused.
        let resumed = self.paused && self.conns.link.receiving();
        // The same holds for a local end whose connection ended after `transmit`.
        let discards = self.conns.link.has_to_discard(now);
        more_ready || more_arrivals || more_transmissions || more_ends || resumed || discards
    }

    /// Reports the RTT to the core once it is measured, and whenever it changes.
    fn update_rtt(&mut self) {
        let rtt = self.wire.as_ref().and_then(Wire::rtt);
        if rtt != self.rtt {
            self.rtt = rtt;
            self.conns.link.set_rtt(rtt.unwrap_or_default());
        }
    }

    /// Serves woken connections. Returns true if it stopped at the turn's limit before the last one.
    fn serve_ready(&mut self, now: Time) -> bool {
        let mut moved = 0;
        while let Some(conn_waker) = self.ready.pop_front() {
            moved += self.conns.serve(&conn_waker, now);
            if moved >= MOVED_PER_TURN {
                break;
            }
        }
        !self.ready.is_empty()
    }

    /// Reports the held bytes, and resets connections if the process needs their memory. Returns true if this ended
    /// something: the next turn sends the closes and notifies the local ends.
    fn report_memory(&mut self, cx: &mut Context<'_>, now: Time) -> bool {
        let mut ended = false;
        // A paused stream holds the bytes that its window has admitted, and any stream the rest of them and those of an unfinished
        // message.
        let held = self.wire.as_ref().map_or(0, Wire::held);
        let waiting = if self.paused || held > UNFINISHED_MESSAGE { held } else { 0 };
        while let Some(shed_request) = self.memory.report(self.conns.link.total_held() + waiting, cx.waker())
        {
            let before = self.conns.link.total_held();
            self.conns.link.shed(now, shed_request.bytes, shed_request.urgent);
            self.drain_events(now);
            let freed = before.saturating_sub(self.conns.link.total_held());
            ended |= freed > 0;
            if freed < shed_request.bytes && !shed_request.urgent {
                self.memory.skip();
            }
            if freed == 0 {
                if waiting > 0 && before == 0 && (self.paused || shed_request.urgent) {
                    // The peer reads no answers or finishes no message, and no connection waits for bytes of this stream.
                    let text = "answers are not read or a message is unfinished, and memory is short";
                    self.fail(now, WireError::new(Code::ResourceExhausted, text));
                    self.drain_events(now);
                    ended = true;
                }
                break;
            }
        }
        self.meter.queued(self.conns.link.total_held());
        self.meter.carries(self.conns.traffic());
        ended
    }

    /// Ends the stream for an error of its receiving direction.
    pub(crate) fn fail(&mut self, now: Time, error: WireError) {
        self.meter.receive_error(&error);
        if let Some(wire) = self.wire.as_mut() {
            wire.fail(&error);
        }
        self.stream_lost(now, LinkEnd::Failed(error));
    }

    pub(crate) fn drain_events(&mut self, now: Time) {
        while let Some(event) = self.conns.link.poll_event() {
            match event {
                Event::Dial { key, protocol, address, trace } => {
                    self.handler.dial(&mut self.conns, key, (protocol, address), trace);
                }
                Event::DialCanceled { key } => self.handler.dial_canceled(key),
                Event::Opened { key, id } => {
                    self.conns.open(key);
                    self.handler.opened(&mut self.conns, now, key, id);
                }
                Event::DialFailed { key, error } => self.handler.dial_failed(key, error),
                Event::ShutDown { key } => self.conns.shut_down(key, now),
                Event::Ended { key, end } => {
                    if let mux::CloseReason::Broken(cause) = &end
                        && !cause.is_abort()
                    {
                        self.meter.broken(cause);
                    }
                    self.conns.ended(now, key, end);
                }
                Event::Draining => self.handler.draining(),
                Event::ProbeWanted => self.handler.probe_wanted(&mut self.conns),
                Event::ProbeAnswered => self.handler.probe_answered(),
                Event::ServerCount { servers } => self.handler.server_count(servers),
            }
        }
    }

    fn stop(&mut self, now: Time) {
        if let Some(wire) = self.wire.as_mut() {
            wire.finish();
            self.stream_lost(now, LinkEnd::Stopped);
        }
    }

    /// The stream is lost: all its dials and connections end now (invariant 1).
    pub(crate) fn stream_lost(&mut self, now: Time, end: LinkEnd) {
        if self.wire.take().is_some() {
            if std::mem::take(&mut self.paused) {
                self.meter.paused(false);
            }
            self.conns.link.stream_lost(now);
            self.handler.lost(&end, self.conns.open_local_ends());
            self.end = Some(end);
        }
    }

    /// Sets the timer to the next time-out of the core. Returns true if it has expired already.
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
        let measured = self.conns.link.handle_timeout(now);
        self.drain_events(now);
        if measured {
            self.memory.end_cooldown();
        }
        true
    }

    fn is_done(&self) -> bool {
        self.wire.is_none() && self.conns.link.is_empty() && self.conns.local_ends() == 0
    }
}

impl<S, W, H, M> Future for Driver<S, W, H, M>
where
    S: Side + Default + Unpin,
    W: Wire + Unpin,
    H: LinkHandler<S> + Unpin,
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
