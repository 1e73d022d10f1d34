//! Extracts incoming gRPC messages from the byte stream of HTTP/2 DATA frames.
//!
//! A message within one frame is a slice of the frame; any other message is copied once. The deframer never reserves memory
//! for an announced length alone: memory grows with the bytes that arrive.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::{Buf, Bytes};

use super::frame::PREFIX;
use super::{Code, WireError};

/// The longest accepted message in bytes, on both sides: grpc-go's default. A longer message ends the stream.
pub const MESSAGE_LIMIT: usize = 4 << 20;

/// The first reservation for a message that spans frames, in bytes. Later reservations double it.
const FIRST_RESERVE: usize = 64 << 10;

/// A frame below this length, in bytes, is a fragment unless a message ends with it.
const FRAGMENT: usize = 64;
/// The cost of a fragment, in bytes. Each received byte pays for one. A stream that owes more than [`MAX_FRAGMENT_DEBT`] ends.
/// gRPC implementations split a message where a window ends, once in 32 KiB. A frame of one byte costs HTTP/2 and the reader as
/// much as a frame of 4 KiB.
const FRAGMENT_COST: usize = 4 << 10;
const MAX_FRAGMENT_DEBT: usize = 1_024 * FRAGMENT_COST;

/// The state between two chunks.
#[derive(Debug, Default)]
pub(super) struct Deframer {
    /// The unread rest of the last DATA frame.
    chunk: Bytes,
    /// The length of that frame.
    pushed: usize,
    /// The cost of fragments that received bytes have not paid yet, in bytes.
    owed: usize,
    prefix: [u8; PREFIX],
    /// The number of received bytes of `prefix`. At `PREFIX` the prefix is checked and `length` is valid.
    have: usize,
    length: usize,
    gathered: Vec<u8>,
}

impl Deframer {
    /// Adds the bytes of the next DATA frame. Call only when [`Deframer::step`] has returned no message.
    pub(super) fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "the last chunk was read to its end");
        self.pushed = chunk.len();
        self.owed = self.owed.saturating_sub(chunk.len());
        self.chunk = chunk;
    }

    /// The length of the unfinished message in bytes; zero while its prefix is incomplete.
    pub(super) fn expects(&self) -> usize {
        if self.have == PREFIX { self.length } else { 0 }
    }

    /// The bytes that wait here: the unread rest of a chunk, and those of the unfinished message.
    pub(super) fn waiting(&self) -> usize {
        self.chunk.len() + self.gathered.len()
    }

    /// Whether the stream may end here.
    pub(super) fn at_boundary(&self) -> bool {
        self.have == 0 && self.chunk.is_empty()
    }

    /// A whole message, or `None` if another chunk is needed; and the number of bytes that this step has consumed.
    pub(super) fn step(&mut self) -> Result<(Option<Bytes>, usize), WireError> {
        let before = self.chunk.len();
        if self.have < PREFIX && !self.read_prefix()? {
            return self.end_chunk(before);
        }
        if self.gathered.is_empty() && self.chunk.len() >= self.length {
            let message = self.chunk.split_to(self.length);
            self.have = 0;
            return Ok((Some(message), before - self.chunk.len()));
        }
        let wanted = self.length - self.gathered.len();
        let part = self.chunk.split_to(wanted.min(self.chunk.len()));
        self.gather(&part);
        if self.gathered.len() < self.length {
            return self.end_chunk(before);
        }
        self.have = 0;
        let message = Bytes::from(std::mem::take(&mut self.gathered));
        Ok((Some(message), before - self.chunk.len()))
    }

    /// Ends a chunk: charges it if it is a fragment.
    fn end_chunk(&mut self, used: usize) -> Result<(Option<Bytes>, usize), WireError> {
        if !self.at_boundary() && (1..FRAGMENT).contains(&std::mem::take(&mut self.pushed)) {
            self.owed += FRAGMENT_COST;
            if self.owed > MAX_FRAGMENT_DEBT {
                return Err(WireError::new(Code::ResourceExhausted, "messages in frames of a few bytes"));
            }
        }
        Ok((None, used))
    }

    /// Reads the prefix from the chunk. Returns true if the prefix is complete.
    fn read_prefix(&mut self) -> Result<bool, WireError> {
        let rest = self.prefix.get_mut(self.have..).unwrap_or_default();
        let count = rest.len().min(self.chunk.len());
        if let Some(room) = rest.get_mut(..count) {
            self.chunk.copy_to_slice(room);
        }
        self.have += count;
        if self.have < PREFIX {
            return Ok(false);
        }
        let [flag, length @ ..] = self.prefix;
        self.length = u32::from_be_bytes(length) as usize;
        match flag {
            0 => {}
            1 => return Err(WireError::new(Code::Unimplemented, "compressed messages are not supported")),
            _ => return Err(WireError::new(Code::Internal, "a message prefix with an unknown flag")),
        }
        if self.length > MESSAGE_LIMIT {
            let text = format!("a message of {} bytes, the limit is {MESSAGE_LIMIT}", self.length);
            return Err(WireError::new(Code::ResourceExhausted, text));
        }
        Ok(true)
    }

    fn gather(&mut self, part: &[u8]) {
        let need = self.gathered.len() + part.len();
        if need > self.gathered.capacity() {
            let target = need.max(self.gathered.capacity() * 2).max(FIRST_RESERVE).min(self.length);
            self.gathered.reserve_exact(target - self.gathered.len());
        }
        self.gathered.extend_from_slice(part);
    }
}

#[cfg(test)]
impl Deframer {
    /// The memory reserved for an unfinished message, in bytes.
    pub(super) fn reserved(&self) -> usize {
        self.gathered.capacity()
    }
}
