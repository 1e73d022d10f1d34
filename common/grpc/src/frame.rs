//! Outgoing gRPC messages: a small head inline and a shared body that is never copied.
//!
//! One gRPC message per packet: a byte for "not compressed", four bytes of length, the message
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>). Nothing is ever compressed.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use mux::Packet;

use super::packet::{encode_head, head_len};

/// The gRPC prefix: compressed flag and length.
pub(super) const PREFIX: usize = 5;

/// Space for a prefix and the longest head of a packet without strings (DATA with a ten-byte id: 30 bytes).
const INLINE: usize = 38;

/// The largest overhead of DATA on the wire, in bytes.
pub(super) const OVERHEAD: usize = INLINE;

/// Counts a stream's frames that h2 has not sent: each frame holds a reference.
#[derive(Debug, Clone, Default)]
pub(super) struct Queued(Arc<()>);

impl Queued {
    /// Whether all frames were sent.
    pub(super) fn is_empty(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// One outgoing gRPC message, which h2 writes into DATA frames, in one piece if it fits.
#[derive(Debug, Clone)]
pub struct OutFrame {
    head: [u8; INLINE],
    /// The unread part of `head`: `start <= end <= INLINE`.
    start: u8,
    end: u8,
    body: Bytes,
    #[expect(dead_code, reason = "it counts for as long as the frame lives")]
    queued: Option<Queued>,
}

impl OutFrame {
    /// No message: carries the end of a client's direction.
    pub(super) fn empty() -> Self {
        OutFrame { head: [0; INLINE], start: 0, end: 0, body: Bytes::new(), queued: None }
    }

    /// Frames one packet.
    pub(super) fn new(packet: Packet<Bytes>) -> Self {
        let head = head_len(&packet);
        let body = match &packet {
            Packet::Data { payload, .. } => payload.len(),
            _ => 0,
        };
        let mut frame = OutFrame::empty();
        let mut room = frame.head.as_mut_slice();
        room.put_u8(0);
        room.put_u32((head + body) as u32);
        if PREFIX + head <= INLINE {
            encode_head(&packet, &mut room);
            frame.end = (PREFIX + head) as u8;
            if let Packet::Data { payload, .. } = packet {
                frame.body = payload;
            }
        } else {
            // Packets with strings: dials, their answers, and closes with an error.
            let mut message = BytesMut::with_capacity(head);
            encode_head(&packet, &mut message);
            frame.end = PREFIX as u8;
            frame.body = message.freeze();
        }
        frame
    }

    /// Counts in `queued` until it was sent.
    pub(super) fn counted(self, queued: &Queued) -> Self {
        OutFrame { queued: Some(queued.clone()), ..self }
    }

    fn head(&self) -> &[u8] {
        &self.head[usize::from(self.start)..usize::from(self.end)]
    }
}

impl Buf for OutFrame {
    fn remaining(&self) -> usize {
        self.head().len() + self.body.len()
    }

    fn chunk(&self) -> &[u8] {
        if self.start < self.end { self.head() } else { &self.body }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for part in [self.head(), &self.body] {
            if !part.is_empty() && filled < slices.len() {
                slices[filled] = IoSlice::new(part);
                filled += 1;
            }
        }
        filled
    }

    fn advance(&mut self, count: usize) {
        let of_head = count.min(self.head().len());
        self.start += of_head as u8;
        self.body.advance(count - of_head);
    }
}
