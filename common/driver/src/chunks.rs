//! The bytes that one local end is offered in one turn.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

/// The most slices of one vectored write.
const MAX_SLICES_PER_WRITE: usize = 16;

/// The bytes that wait for one local end, from the first one that it has not accepted. The core owns them: the driver
/// reports the number of accepted bytes to it.
#[derive(Debug)]
pub struct Chunks<'a> {
    slices: &'a VecDeque<Bytes>,
    /// The first slice that is not accepted as a whole, and how many of its bytes are accepted.
    front: usize,
    offset: usize,
    accepted: usize,
    left: usize,
}

impl<'a> Chunks<'a> {
    /// All bytes of these slices: `left` bytes.
    pub fn new(slices: &'a VecDeque<Bytes>, left: usize) -> Self {
        Chunks { slices, front: 0, offset: 0, accepted: 0, left }
    }

    /// Whether all bytes are accepted.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// The bytes that are not accepted yet.
    pub fn len(&self) -> usize {
        self.left
    }

    /// The accepted bytes.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted
    }

    /// Writes the first slices in one vectored write, which may end within a slice. Returns the number of written bytes.
    /// There must be bytes.
    ///
    /// # Errors
    /// Those of `io`, and [`io::ErrorKind::WriteZero`] if it accepts no byte.
    pub fn poll_write_to(
        &mut self,
        io: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES_PER_WRITE];
        let mut offset = self.offset;
        for (to, from) in slices.iter_mut().zip(self.slices.range(self.front..)) {
            *to = IoSlice::new(from.get(offset..).unwrap_or_default());
            offset = 0;
        }
        let filled = (self.slices.len() - self.front).min(MAX_SLICES_PER_WRITE);
        let count = ready!(io.poll_write_vectored(cx, &slices[..filled]))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.accept(count);
        Poll::Ready(Ok(count))
    }

    /// Accepts and returns at most `max` bytes of the first slice. Empty if no bytes are left or `max` is zero.
    pub fn take_slice(&mut self, max: usize) -> Bytes {
        let Some(front) = self.slices.get(self.front) else { return Bytes::new() };
        let mut taken = front.clone();
        taken.advance(self.offset);
        taken.truncate(max);
        self.accept(taken.len());
        taken
    }

    /// Accepts all bytes.
    pub fn take_all(&mut self) {
        self.accept(self.left);
    }

    fn accept(&mut self, count: usize) {
        let mut count = count.min(self.left);
        self.left -= count;
        self.accepted += count;
        while let Some(front) = self.slices.get(self.front).filter(|_| count > 0) {
            let rest = front.len() - self.offset;
            if count < rest {
                self.offset += count;
                break;
            }
            count -= rest;
            (self.front, self.offset) = (self.front + 1, 0);
        }
    }
}

#[cfg(test)]
#[path = "chunks_tests.rs"]
mod tests;
