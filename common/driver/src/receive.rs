//! Receives the packets of one turn and passes them to the core.

use std::task::{Context, Poll};

use grpc::{Incoming, Wire};
use mux::{Disposition, Dropped, Packet, Side, Time};

use crate::handler::{LinkHandler, Meter};
use crate::task::{Driver, LinkEnd};

/// The most packets received in one turn.
const PACKETS_PER_TURN: usize = 256;
/// The most payload received in one turn, in bytes. The last packet may exceed it.
const RECEIVE_PER_TURN: usize = 1 << 20;

impl<S: Side + Default, W: Wire, H: LinkHandler<S>, M: Meter> Driver<S, W, H, M> {
    /// Handles the arrived packets. Returns true if it stopped at the turn's limit.
    pub(crate) fn receive(&mut self, cx: &mut Context<'_>, now: Time) -> bool {
        let mut bytes = 0;
        for _ in 0..PACKETS_PER_TURN {
            if bytes >= RECEIVE_PER_TURN {
                return true;
            }
            let Some(wire) = self.wire.as_mut() else { return false };
            // Once the stream is over, the link receives the rest even while it is paused: the rest is in memory already, and the end
            // of the stream must not wait for a slow reader or for answers that the peer does not read.
            let receiving = self.conns.link.receiving() || wire.poll_over(cx).is_ready();
            if receiving == self.paused {
                self.paused = !receiving;
                self.meter.paused(self.paused);
            }
            if !receiving {
                wire.poll_hold(cx);
                return false;
            }
            match wire.poll_packet(cx) {
                Poll::Pending => return false,
                Poll::Ready(Some(Ok(incoming))) => bytes += self.handle(now, incoming),
                Poll::Ready(Some(Err(error))) => {
                    self.fail(now, error);
                    return false;
                }
                Poll::Ready(None) => {
                    wire.finish();
                    self.stream_lost(now, LinkEnd::Finished);
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
                self.meter.dropped(Dropped::UnknownType);
                return 0;
            }
            Incoming::Malformed(_) => {
                self.meter.dropped(Dropped::Malformed);
                return 0;
            }
        };
        self.meter.received(packet.kind());
        if matches!(packet, Packet::CloseReq { .. } | Packet::CloseRsp { .. } | Packet::Fin { .. }) {
            // A close behind bytes that the local end accepts at once needs no flush, and a FIN no grant.
            self.conns.write_dirty(now);
        }
        let len = if let Packet::Data { payload, .. } = &packet { payload.len() } else { 0 };
        self.conns.received(len);
        match self.conns.link.handle_packet(now, packet) {
            Disposition::Deliver(key) => {
                self.conns.arrived(key, len);
                return len;
            }
            Disposition::Handled | Disposition::Late => {}
            Disposition::Dropped(reason) => self.meter.dropped(reason),
        }
        self.drain_events(now);
        0
    }
}
