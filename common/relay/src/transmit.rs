//! The transmissions of one turn: asks the core what to send, and reads the sources.

use std::task::{Context, Poll};

use bytes::Bytes;
use transport::wire::{Wire, WireError};
use tunnel::{Packet, ReadOutcome, Side, Time, Transmit};

use crate::handler::{LinkHandler, Meter};
use crate::local_io::Read;
use crate::relay::Relay;

/// The most bytes of payload in one DATA on the wire. A byte in 64 KiB costs a quarter of a byte in 16 KiB; 128 KiB gain
/// nothing (measured).
const FRAME: usize = 64 << 10;
/// Bytes read from local ends in one turn.
const TRANSMIT_PER_TURN: usize = 512 << 10;
/// Transmissions, of any size, in one turn.
const STEPS_PER_TURN: usize = 512;
/// The smallest remaining budget, in bytes, that is worth a read. Below it the stream is asked again.
const LEAST: usize = 4 << 10;

impl<S, W, H, M> Relay<S, W, H, M>
where
    S: Side + Default,
    W: Wire,
    H: LinkHandler<S>,
    M: Meter,
{
    /// Sends while the stream accepts bytes. Returns true if the turn's limit ended it.
    pub(crate) fn transmit(&mut self, cx: &mut Context<'_>, now: Time) -> bool {
        let mut left = TRANSMIT_PER_TURN;
        let mut budget = 0;
        for _ in 0..STEPS_PER_TURN {
            if left == 0 {
                return true;
            }
            if budget < LEAST && self.conns.link.has_to_send() {
                budget = self.poll_budget(cx).min(left);
            }
            match self.conns.link.poll_transmit(budget) {
                None => return false,
                Some(Transmit::Control(packet)) => self.send(packet.map(|never| match never {})),
                Some(Transmit::Read { key, id, max }) => {
                    let outcome = match self.conns.poll_read(key, max, now) {
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
                    let outcome = outcome_of(self.conns.poll_discard(key, now));
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

    /// Nothing can be sent any more. Received bytes are still read: the wire reports the stream's end after them.
    fn send_broke(&mut self, error: &WireError, kind: tunnel::PacketKind) {
        if !std::mem::replace(&mut self.send_broken, true) {
            self.meter.send_error(error, kind);
            self.conns.link.shutdown_send();
        }
    }
}

/// Translates a read for the core.
fn outcome_of(read: Poll<std::io::Result<Read>>) -> ReadOutcome {
    match read {
        Poll::Pending => ReadOutcome::Blocked,
        Poll::Ready(Ok(Read::Data(bytes))) => ReadOutcome::Data(bytes.len()),
        Poll::Ready(Ok(Read::Eof)) => ReadOutcome::Eof,
        Poll::Ready(Ok(Read::Closed)) => ReadOutcome::Closed,
        Poll::Ready(Err(error)) => ReadOutcome::Failed(error.to_string()),
    }
}
