//! The queue of bytes for one local end.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWrite;
use tunnel::charge;

use crate::local_io::LocalIo;

/// Slices below this length, in bytes, are copied when they have to wait: a slice pins its whole receive buffer, which is more
/// than four times as large.
const COPY_BELOW: usize = 32 << 10;
/// The last waiting slice is copied again, together with new slices, if it is shorter than this, in bytes.
const JOIN_BELOW: usize = 4 << 10;
/// The most bytes written to one local end before the others have their turn.
const WRITE_AT_ONCE: usize = 256 << 10;
/// The most slices of one vectored write.
const SLICES: usize = 16;

/// The bytes that wait for one local end, in the slices in which they arrived. The core limits the queue: the relay reports
/// the charged bytes to it.
#[derive(Debug, Default)]
pub struct Queue {
    slices: VecDeque<Bytes>,
    bytes: usize,
    charged: usize,
    /// The number of slices at the back that arrived since the last [`Queue::compact`].
    fresh: usize,
}

impl Queue {
    /// Adds a slice that has arrived.
    pub fn push(&mut self, slice: Bytes) {
        self.charged += charge(slice.len());
        self.bytes += slice.len();
        self.fresh += 1;
        self.slices.push_back(slice);
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Bytes in the queue.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Writes the first slices in one vectored write, and removes the written bytes, which may end within a slice. Returns
    /// their number. The queue must not be empty.
    ///
    /// # Errors
    /// Those of `io`, and [`io::ErrorKind::WriteZero`] if it accepts no byte.
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

    /// Removes and returns at most `max` bytes of the first slice. Empty if the queue is empty or `max` is zero.
    pub fn take_slice(&mut self, max: usize) -> Bytes {
        let Some(front) = self.slices.front_mut() else { return Bytes::new() };
        let before = front.len();
        let taken = front.split_to(before.min(max));
        self.front_shrank(before);
        taken
    }

    /// Removes `count` written bytes.
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

    /// Drops all bytes.
    pub fn clear(&mut self) {
        *self = Queue::default();
    }

    /// The charged bytes of the queue.
    pub(crate) fn charged(&self) -> usize {
        self.charged
    }

    /// Writes until the local end accepts no more or has accepted [`WRITE_AT_ONCE`], and then flushes it. Returns true if it may
    /// accept more at once.
    ///
    /// # Errors
    /// Those of the local end.
    pub(crate) fn write_into(&mut self, local: &mut dyn LocalIo, cx: &mut Context<'_>) -> io::Result<bool> {
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

    /// Copies small slices that arrived since the last call together, so that they do not pin their receive buffers. So queued
    /// bytes cost little more memory than their number, even if they arrived in small slices.
    pub(crate) fn compact(&mut self) {
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
