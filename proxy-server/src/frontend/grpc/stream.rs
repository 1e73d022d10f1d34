//! A Proxy stream before and after its connection is attached: the wire, the state machine and the counters.
//!
//! Sends the machine's replies, counts packets, and leaves the orders to the caller.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use grpc::{Code, Incoming, Wire, WireError};
use mux::Packet;
use serve::metrics::{PacketMeter, Segment};
use tokio::time::Instant;

use super::machine::{Machine, Order};
use crate::metrics::Metrics;

/// How many packets one call handles, because many connections share a task.
pub(super) const PACKETS_PER_TURN: usize = 64;

/// The longest message in several frames until the stream is attached to its link, in bytes: what has arrived of it does not count
/// under the memory limit before that. The longest valid DIAL_REQ has about 1.1 KiB.
const FIRST_MESSAGES: usize = 4 << 10;

/// See the module.
#[derive(Debug)]
pub struct Stream<W> {
    /// Carries the packets. Only [`Stream::send`] and [`Stream::pass_on`] send.
    pub(super) wire: W,
    /// The protocol's state.
    pub(super) machine: Machine,
    metrics: Metrics,
    from_client: PacketMeter,
    to_client: PacketMeter,
    /// The number of packets received so far.
    pub(super) received: usize,
    /// The client's direction, or the whole stream, has ended.
    pub(super) ended: bool,
    /// The client receives nothing more.
    pub(super) lost: bool,
    /// A packet was answered by a reply, and the client's window has not been checked since.
    answered: bool,
}

impl<W: Wire> Stream<W> {
    /// A stream that has received nothing yet.
    pub fn new(mut wire: W, metrics: Metrics) -> Self {
        wire.limit_messages(FIRST_MESSAGES);
        Stream {
            wire,
            machine: Machine::default(),
            from_client: metrics.packets.meter(Segment::FromClient),
            to_client: metrics.packets.meter(Segment::ToClient),
            metrics,
            received: 0,
            ended: false,
            lost: false,
            answered: false,
        }
    }

    /// The next order that needs the caller. Returns [`Order::Finish`] on every call once the client's direction has ended and
    /// the resulting order was returned.
    pub fn poll_order(&mut self, cx: &mut Context<'_>) -> Poll<Order> {
        if self.ended {
            return Poll::Ready(Order::Finish);
        }
        for _ in 0..PACKETS_PER_TURN {
            if self.poll_answers_taken(cx).is_pending() {
                if self.machine.has_connection() {
                    return Poll::Pending;
                }
                // Its unread data would not count under the memory limit.
                let text = "the client takes no answers before its connection";
                self.fail(&WireError::new(Code::ResourceExhausted, text));
                return Poll::Ready(self.machine.handle_reset());
            }
            let incoming = match ready!(self.poll_incoming(cx)) {
                Ok(Some(incoming)) => incoming,
                Ok(None) => return Poll::Ready(self.machine.handle_end()),
                Err(()) => return Poll::Ready(self.machine.handle_reset()),
            };
            let reaction = self.machine.handle(incoming);
            self.answered = !reaction.replies.is_empty();
            for packet in reaction.replies {
                // A lost stream fails again when it is read.
                let _lost = self.send(packet);
            }
            match reaction.order {
                Order::Nothing => {}
                Order::Drop(why) => self.metrics.losses.dropped(why),
                order => return Poll::Ready(order),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ready when the client has window for more replies: a client that sends requests but takes no replies is not read
    /// further, because its replies would queue here. A lost stream is ready, too; reading it returns the error.
    fn poll_answers_taken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.answered {
            let _lost = ready!(self.poll_ready(cx));
            self.answered = false;
        }
        Poll::Ready(())
    }

    /// Discards what the client still sends, and deducts its payload from the allowance; ready when the client's direction has
    /// ended. Reads nothing once the allowance is 0.
    pub fn poll_drained(&mut self, cx: &mut Context<'_>, allowance: &mut usize) -> Poll<()> {
        for _ in 0..PACKETS_PER_TURN {
            if self.ended {
                return Poll::Ready(());
            }
            if *allowance == 0 {
                return Poll::Pending;
            }
            if let Ok(Some(Incoming::Packet(Packet::Data { payload, .. }))) = ready!(self.poll_incoming(cx)) {
                *allowance = allowance.saturating_sub(payload.len());
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Incoming>, ()>> {
        Poll::Ready(match ready!(self.wire.poll_packet(cx)) {
            Some(Ok(incoming)) => {
                self.received += 1;
                match &incoming {
                    Incoming::Packet(packet) => self.from_client.count(packet.kind()),
                    Incoming::Unknown(_) | Incoming::Malformed(_) => {
                        tracing::trace!("Ignoring unrecognized packet from frontend")
                    }
                }
                Ok(Some(incoming))
            }
            None => {
                self.ended = true;
                Ok(None)
            }
            Some(Err(error)) => {
                self.fail(&error);
                Err(())
            }
        })
    }

    fn fail(&mut self, error: &WireError) {
        match error.code {
            Code::Canceled => {
                tracing::info!(target: "v2", err = %error, "Stream read from frontend cancelled")
            }
            _ => tracing::error!(err = %error, "Stream read from frontend failure"),
        }
        self.metrics.stream_error(Segment::FromClient, error.code, None);
        self.wire.fail(error);
        (self.ended, self.lost) = (true, true);
    }

    /// The number of payload bytes that may be sent now.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, WireError>> {
        let ready = ready!(self.wire.poll_ready(cx));
        self.lost |= ready.is_err();
        Poll::Ready(ready)
    }

    /// Counts and sends a packet.
    pub fn send(&mut self, packet: Packet<Bytes>) -> Result<(), WireError> {
        let kind = packet.kind();
        self.to_client.count(kind);
        self.wire.send(packet).inspect_err(|error| {
            self.lost = true;
            self.metrics.stream_error(Segment::ToClient, error.code, Some(kind));
        })
    }

    /// Like [`Stream::send`], for packets that pass on an agent's packet.
    pub fn pass_on(&mut self, packet: Packet<Bytes>) -> Result<(), WireError> {
        let start = Instant::now();
        let sent = self.send(packet);
        self.metrics.frontend_write.observe(start.elapsed());
        sent
    }
}
