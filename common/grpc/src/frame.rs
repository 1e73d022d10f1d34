//! Outgoing gRPC messages: a small head inline and a shared body that is never copied.
//!
//! One gRPC message per packet: a byte for "not compressed", four bytes of length, the message
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>). Nothing is ever compressed.

use std::io::IoSlice;
use std::sync::{Arc, OnceLock};

use bytes::{Buf, Bytes};
use mux::Packet;
use prost::Message;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::packet::{message, put_data_head};

/// The gRPC prefix: compressed flag and length.
pub(super) const PREFIX: usize = 5;

/// Space for a prefix and the longest head of DATA, with an id of ten bytes and a payload of up to 256 MiB.
const INLINE: usize = 30;

/// The largest overhead of DATA on the wire, in bytes.
pub(super) const OVERHEAD: usize = INLINE;

/// Counts a stream's frames that h2 has not sent: each frame holds a reference.
#[derive(Debug, Clone)]
pub(super) struct Queued(Arc<Unsent>);

#[derive(Debug)]
struct Unsent {
    /// Set if somebody waits; most streams have sent everything when they end.
    all_sent: OnceLock<CancellationToken>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(all_sent) = self.all_sent.get() {
            all_sent.cancel();
        }
    }
}

impl Queued {
    /// Of a new stream. The permit is released once the stream is dropped and all frames were sent.
    pub(super) fn new(permit: Option<OwnedSemaphorePermit>) -> Self {
        Queued(Arc::new(Unsent { all_sent: OnceLock::new(), _permit: permit }))
    }

    /// Whether all frames were sent.
    pub(super) fn is_empty(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Canceled once the stream is dropped and all frames were sent.
    pub(super) fn all_sent(&self) -> CancellationToken {
        self.0.all_sent.get_or_init(CancellationToken::new).clone()
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
        let mut frame = OutFrame::empty();
        let mut room = &mut frame.head[PREFIX..];
        frame.body = match packet {
            Packet::Data { id, payload } => {
                put_data_head(id, payload.len(), &mut room).expect("INLINE is large enough for every head");
                payload
            }
            packet => message(packet).encode_to_vec().into(),
        };
        frame.end = (INLINE - room.len()) as u8;
        let length = usize::from(frame.end) - PREFIX + frame.body.len();
        frame.head[1..PREFIX].copy_from_slice(&(length as u32).to_be_bytes());
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
