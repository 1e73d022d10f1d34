//! A queue for bytes that are read ahead. It uses little more memory than their length.
//!
//! HTTP/2 keeps more than 200 bytes for each unread frame, and a slice of a few bytes pins the whole receive buffer. So this
//! queue copies short slices together.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// The queue copies slices below this length, in bytes.
const COPY_BELOW: usize = 16 << 10;

/// See the module.
#[derive(Debug, Default)]
pub struct Joined {
    slices: VecDeque<Bytes>,
    /// The end of the queue: short slices, copied together.
    short: BytesMut,
    length: usize,
}

impl Joined {
    /// Adds a slice without a copy, for a reader that reads it soon.
    pub fn push(&mut self, slice: Bytes) {
        if slice.is_empty() {
            return;
        }
        self.length += slice.len();
        if !self.short.is_empty() {
            self.slices.push_back(std::mem::take(&mut self.short).freeze());
        }
        self.slices.push_back(slice);
    }

    /// Adds a slice that may wait. Copies a short slice.
    pub fn join(&mut self, slice: Bytes) {
        if slice.len() >= COPY_BELOW {
            return self.push(slice);
        }
        self.length += slice.len();
        self.short.extend_from_slice(&slice);
        if self.short.len() >= COPY_BELOW {
            self.slices.push_back(std::mem::take(&mut self.short).freeze());
        }
    }

    /// Removes and returns the first bytes of the queue, at most `max` but at least one. Empty only if the queue is empty.
    pub fn take(&mut self, max: usize) -> Bytes {
        if self.slices.is_empty() {
            self.slices.push_back(std::mem::take(&mut self.short).freeze());
        }
        let Some(first) = self.slices.front_mut() else { return Bytes::new() };
        let bytes = first.split_to(max.max(1).min(first.len()));
        if first.is_empty() {
            self.slices.pop_front();
        }
        self.length -= bytes.len();
        bytes
    }

    /// Bytes in the queue.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

#[cfg(test)]
impl Joined {
    /// The number of separate allocations or receive buffers that the queue keeps.
    pub(super) fn slices(&self) -> usize {
        self.slices.len() + usize::from(!self.short.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(joined: &mut Joined, max: usize) -> (Vec<u8>, usize) {
        let (mut all, mut slices) = (Vec::new(), 0);
        while !joined.is_empty() {
            let bytes = joined.take(max);
            assert!((1..=max.max(1)).contains(&bytes.len()));
            all.extend_from_slice(&bytes);
            slices += 1;
        }
        assert!(joined.take(1).is_empty());
        assert_eq!((joined.slices.len(), joined.short.capacity()), (0, 0), "an empty queue keeps no memory");
        (all, slices)
    }

    #[test]
    fn bytes_of_any_length_keep_their_order() {
        let mut joined = Joined::default();
        let mut all = Vec::new();
        for (number, length) in
            [1, 3, COPY_BELOW, 0, COPY_BELOW - 1, 1, 5, COPY_BELOW + 1, 2].into_iter().enumerate()
        {
            let slice = Bytes::from(vec![number as u8; length]);
            all.extend_from_slice(&slice);
            if number % 3 == 2 {
                joined.push(slice)
            } else {
                joined.join(slice)
            }
            assert_eq!(joined.len(), all.len());
        }
        for max in [0, 1, 1_000, usize::MAX] {
            let mut copy =
                Joined { slices: joined.slices.clone(), short: joined.short.clone(), length: joined.length };
            assert_eq!(drain(&mut copy, max).0, all);
        }
    }

    #[test]
    fn short_slices_take_little_more_than_their_bytes() {
        let mut joined = Joined::default();
        let read = Bytes::from(vec![7; 1 << 20]);
        for at in 0..1 << 20 {
            joined.join(read.slice(at..=at));
        }
        assert!(read.is_unique(), "no slice of what was read is kept");
        let kept: usize = joined.slices.iter().map(Bytes::len).sum::<usize>() + joined.short.capacity();
        assert!(kept <= (1 << 20) + 2 * COPY_BELOW, "{kept}");
        assert!(joined.slices.len() <= (1 << 20) / COPY_BELOW);
        assert_eq!(drain(&mut joined, usize::MAX).0, vec![7; 1 << 20]);
    }
}
