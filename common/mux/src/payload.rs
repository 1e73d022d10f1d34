//! The payload of a connection: bytes in production, a length or checkable segments in tests.

use bytes::{Buf, Bytes, BytesMut};

/// A slice of a connection's payload.
pub trait Payload: Sized {
    /// Slices below this length, in bytes, are copied together when they have to wait. Zero: none is copied.
    const COPY_BELOW: usize;
    /// The last waiting slice is copied again, together with new slices, if it is shorter than this, in bytes.
    const JOIN_BELOW: usize;

    /// The number of bytes.
    fn len(&self) -> usize;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory that a slice of `len` bytes occupies while it waits, in bytes.
    fn charge(len: usize) -> usize {
        len
    }

    /// Removes and returns the first `count` bytes; at most all.
    fn split_to(&mut self, count: usize) -> Self;

    /// Removes the first `count` bytes; at most all.
    fn advance(&mut self, count: usize) {
        drop(self.split_to(count));
    }

    /// Copies consecutive slices into one.
    fn join(slices: &[Self]) -> Self;
}

/// The bytes charged for a queued slice of `len` bytes: small slices pin much larger receive buffers, and each slice
/// costs its own bookkeeping.
pub const fn charge(len: usize) -> usize {
    const MIN_CHARGE: usize = 512;
    const CHARGE_OVERHEAD: usize = 64;
    (if len < MIN_CHARGE { MIN_CHARGE } else { len }) + CHARGE_OVERHEAD
}

impl Payload for Bytes {
    /// A slice pins its whole receive buffer, which is more than four times as large.
    const COPY_BELOW: usize = 32 << 10;
    const JOIN_BELOW: usize = 4 << 10;

    fn len(&self) -> usize {
        Bytes::len(self)
    }

    fn charge(len: usize) -> usize {
        charge(len)
    }

    fn split_to(&mut self, count: usize) -> Self {
        Bytes::split_to(self, count.min(Bytes::len(self)))
    }

    fn advance(&mut self, count: usize) {
        Buf::advance(self, count.min(Bytes::len(self)));
    }

    fn join(slices: &[Self]) -> Self {
        let mut joined = BytesMut::with_capacity(slices.iter().map(Bytes::len).sum());
        for slice in slices {
            joined.extend_from_slice(slice);
        }
        joined.freeze()
    }
}

/// Only the number of bytes, for tests.
impl Payload for usize {
    const COPY_BELOW: usize = 0;
    const JOIN_BELOW: usize = 0;

    fn len(&self) -> usize {
        *self
    }

    fn split_to(&mut self, count: usize) -> Self {
        let count = count.min(*self);
        *self -= count;
        count
    }

    fn join(slices: &[Self]) -> Self {
        slices.iter().sum()
    }
}
