//! The packets of one turn: passes those that have arrived to the core, and asks it what to send and which sources to read.

use std::task::{Context, Poll};

use bytes::Bytes;
use grpc::{Incoming, Wire, WireError};
use mux::{ConnKey, Disposition, Dropped, Packet, PacketKind, Side, SourceEnd, Time, Transmit};

use crate::handler::{LinkHandler, Meter};
use crate::local_io::Read;
use crate::task::{Driver, LinkEnd};

/// The most packets received in one turn.
const PACKETS_PER_TURN: usize = 256;
/// The most payload received in one turn, in bytes. The last packet may exceed it.
const RECEIVE_PER_TURN: usize = 1 << 20;
/// Bytes read from local ends in one turn.
const TRANSMIT_PER_TURN: usize = 512 << 10;
/// The least that one call of a local end counts, in bytes: a gRPC client's end may handle a hundred packets of a few bytes.
const CALL_COST: usize = 4 << 10;
/// Transmissions, of any size, in one turn.
const STEPS_PER_TURN: usize = 512;
/// The smallest remaining budget, in bytes, that is worth a read. Below it the stream is asked again.
const MIN_READ_BUDGET: usize = 4 << 10;

impl<S: Side + Default, W: Wire, H: LinkHandler<S>, M: Meter> Driver<S, W, H, M> {
    // ---- receive ----

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

    // ---- transmit ----

    /// Sends while the stream accepts bytes. Returns true if the turn's limit ended it.
    pub(crate) fn transmit(&mut self, cx: &mut Context<'_>, now: Time) -> bool {
        let mut left = TRANSMIT_PER_TURN;
        let mut budget = 0;
        for _ in 0..STEPS_PER_TURN {
            if left == 0 {
                return true;
            }
            if budget < MIN_READ_BUDGET && self.conns.link.has_to_send() {
                budget = self.poll_budget(cx).min(left);
            }
            let Some(transmit) = self.conns.link.poll_transmit(now, budget) else { return false };
            let moved = match transmit {
                Transmit::Control(packet) => {
                    self.send(packet.map(|never| match never {}));
                    continue;
                }
                Transmit::Read { key, max } => {
                    let read = self.read(key, max, now);
                    self.conns.sent(key, read);
                    budget = budget.saturating_sub(read);
                    read
                }
                Transmit::Discard { key, max } => self.read(key, max, now),
                Transmit::Linger { key, max } => self.conns.end(key, max),
                Transmit::NoCredit { key } => {
                    self.conns.poll_closed(key, now);
                    0
                }
            };
            left = left.saturating_sub(moved.max(CALL_COST));
        }
        true
    }

    /// Reads a source, and sends what the core makes of its bytes. Returns the number of bytes.
    fn read(&mut self, key: ConnKey, max: usize, now: Time) -> usize {
        let end = match self.conns.poll_read(key, max, now) {
            Poll::Pending => return 0,
            Poll::Ready(Ok(Read::Data(bytes))) => {
                let len = bytes.len();
                for packet in self.conns.link.push(now, key, bytes) {
                    self.send(packet);
                }
                return len;
            }
            Poll::Ready(Ok(Read::Eof)) => SourceEnd::Eof,
            Poll::Ready(Ok(Read::Closed)) => SourceEnd::Closed,
            Poll::Ready(Err(error)) => SourceEnd::Failed(error.to_string()),
        };
        self.conns.link.end_source(now, key, end);
        0
    }

    fn poll_budget(&mut self, cx: &mut Context<'_>) -> usize {
        let Some(wire) = self.wire.as_mut().filter(|_| !self.send_broken) else { return 0 };
        match wire.poll_ready(cx) {
            Poll::Ready(Ok(budget)) => budget,
            Poll::Ready(Err(error)) => {
                self.send_broke(&error, PacketKind::Data);
                0
            }
            Poll::Pending => 0,
        }
    }

    fn send(&mut self, packet: Packet<Bytes>) {
        let Some(wire) = self.wire.as_mut() else { return };
        let kind = packet.kind();
        self.meter.sent(kind);
        if let Err(error) = wire.send(packet) {
            self.send_broke(&error, kind);
        }
    }

    /// Nothing can be sent any more. Received bytes are still read: the wire reports the stream's end after them.
    fn send_broke(&mut self, error: &WireError, kind: PacketKind) {
        if !std::mem::replace(&mut self.send_broken, true) {
            self.meter.send_error(error, kind);
            self.conns.link.shutdown_send();
        }
    }
}
