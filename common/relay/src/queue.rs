//! Bytes that wait for a local end.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWrite;
use tunnel::charge;

use crate::local::Local;

/// Slices below this are copied when they have to wait: each would pin a whole receive buffer, more than four times as
/// much.
const COPY_BELOW: usize = 32 << 10;
/// What waits already is copied once more, together with what comes behind it, if it is shorter than this.
const JOIN_BELOW: usize = 4 << 10;
/// Bytes that one local end takes before others have their turn.
const WRITE_AT_ONCE: usize = 256 << 10;
/// Slices of one vectored write at most.
const SLICES: usize = 16;

/// The bytes that wait for one local end, in the slices in which they came. Its bound is the core's business, which is
/// told its charge.
#[derive(Debug, Default)]
pub struct Queue {
    slices: VecDeque<Bytes>,
    bytes: usize,
    charged: usize,
    /// So many slices at the back came since [`Queue::settle`].
    fresh: usize,
}

impl Queue {
    /// Adds what has arrived.
    pub fn push(&mut self, slice: Bytes) {
        self.charged += charge(slice.len());
        self.bytes += slice.len();
        self.fresh += 1;
        self.slices.push_back(slice);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Writes the first slices at once, and takes away what was written: so many bytes, which may end within a slice.
    /// Something must wait: nothing written is [`io::ErrorKind::WriteZero`].
    pub fn poll_write_to(
        &mut self,
        io: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        for (to, from) in slices.iter_mut().zip(&self.slices) {
            *to = IoSlice::new(from);
        }
        let filled = self.slices.len().min(SLICES);
        let count = ready!(io.poll_write_vectored(cx, &slices[..filled]))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(count);
        Poll::Ready(Ok(count))
    }

    /// Takes at most `max` bytes, no more than the first slice has; empty only if nothing waits.
    pub fn take_slice(&mut self, max: usize) -> Bytes {
        let Some(front) = self.slices.front_mut() else { return Bytes::new() };
        let before = front.len();
        let taken = front.split_to(before.min(max));
        self.front_shrank(before);
        taken
    }

    /// Takes so many bytes away that a local end has written.
    fn advance(&mut self, mut count: usize) {
        while let Some(front) = self.slices.front_mut().filter(|_| count > 0) {
            let before = front.len();
            front.advance(before.min(count));
            count -= before.min(count);
            self.front_shrank(before);
        }
    }

    fn front_shrank(&mut self, before: usize) {
        let after = self.slices.front().map_or(0, Bytes::len);
        self.bytes -= before - after;
        self.charged -= charge(before);
        if after == 0 {
            self.slices.pop_front();
        } else {
            self.charged += charge(after);
        }
    }

    /// Lets go of everything.
    pub fn clear(&mut self) {
        *self = Queue::default();
    }

    /// What the queue is charged, in bytes.
    pub(crate) fn charged(&self) -> usize {
        self.charged
    }

    /// Writes until the local end takes no more or has taken [`WRITE_AT_ONCE`], then pushes it on. True if it may
    /// take more at once.
    pub(crate) fn write_into(&mut self, local: &mut dyn Local, cx: &mut Context<'_>) -> io::Result<bool> {
        let least = self.bytes.saturating_sub(WRITE_AT_ONCE);
        let mut more = false;
        while !self.is_empty() {
            if self.bytes <= least && least > 0 {
                more = true;
                break;
            }
            if local.poll_write(cx, self)?.is_pending() {
                break;
            }
        }
        match local.poll_flush(cx) {
            Poll::Ready(done) => done.map(|()| more),
            Poll::Pending => Ok(more),
        }
    }

    /// Lets go of receive buffers that small slices, which stay, would pin: those that came since the last time are
    /// copied together. So what waits costs little more than its bytes, however small the pieces were.
    pub(crate) fn settle(&mut self) {
        let fresh = std::mem::take(&mut self.fresh).min(self.slices.len());
        let old = self.slices.len() - fresh;
        if self.slices.iter().skip(old).all(|slice| slice.len() >= COPY_BELOW) {
            return;
        }
        let joins = old > 0 && self.slices.get(old - 1).is_some_and(|slice| slice.len() < JOIN_BELOW);
        let mut small = BytesMut::new();
        for slice in self.slices.split_off(old - usize::from(joins)) {
            self.charged -= charge(slice.len());
            if slice.len() < COPY_BELOW && small.len() < COPY_BELOW {
                small.extend_from_slice(&slice);
                continue;
            }
            self.keep(std::mem::take(&mut small));
            if slice.len() < COPY_BELOW {
                small.extend_from_slice(&slice);
            } else {
                self.charged += charge(slice.len());
                self.slices.push_back(slice);
            }
        }
        self.keep(small);
    }

    fn keep(&mut self, small: BytesMut) {
        if !small.is_empty() {
            self.charged += charge(small.len());
            self.slices.push_back(small.freeze());
        }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
