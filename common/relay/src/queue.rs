//! Bytes that wait for a local end.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tunnel::charge;

use crate::local::Local;

/// Slices below this are copied when they have to wait: each would pin a whole receive buffer.
const COPY_BELOW: usize = 4 << 10;

/// The queue of one local end. Its bound is the core's business, which is told its charge.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    slices: VecDeque<Bytes>,
    charged: usize,
    /// So many slices at the back came since [`Queue::settle`].
    fresh: usize,
}

impl Queue {
    pub(crate) fn push(&mut self, slice: Bytes) {
        self.charged += charge(slice.len());
        self.fresh += 1;
        self.slices.push_back(slice);
    }

    pub(crate) fn clear(&mut self) {
        *self = Queue::default();
    }

    /// What the queue is charged, in bytes.
    pub(crate) fn charged(&self) -> usize {
        self.charged
    }

    /// Writes until the local end takes no more, then pushes it on. Adds what it took to `taken`, in bytes.
    pub(crate) fn write_into(
        &mut self,
        local: &mut dyn Local,
        cx: &mut Context<'_>,
        taken: &mut usize,
    ) -> io::Result<()> {
        while let Some(front) = self.slices.front_mut() {
            let before = front.len();
            if local.poll_write(cx, front)?.is_pending() {
                break;
            }
            *taken += before - front.len();
            self.charged -= charge(before);
            if front.is_empty() {
                self.slices.pop_front();
            } else {
                self.charged += charge(front.len());
            }
        }
        match local.poll_flush(cx) {
            Poll::Ready(done) => done,
            Poll::Pending => Ok(()),
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
        let joins = old > 0 && self.slices.get(old - 1).is_some_and(|slice| slice.len() < COPY_BELOW);
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
mod tests {
    use super::*;

    fn settled(sizes: &[usize]) -> Queue {
        let mut queue = Queue::default();
        for (turn, size) in sizes.iter().enumerate() {
            queue.push(Bytes::from(vec![turn as u8; *size]));
            queue.settle();
        }
        queue
    }

    #[test]
    fn small_pieces_that_stay_cost_little_more_than_their_bytes() {
        let queue = settled(&[1; 100_000]);
        assert!(queue.charged() < 120_000, "{} are charged for 100,000 bytes", queue.charged());
        let whole: Vec<u8> = queue.slices.iter().flatten().copied().collect();
        assert_eq!(whole, (0..100_000_usize).map(|turn| turn as u8).collect::<Vec<u8>>());
    }

    #[test]
    fn large_pieces_stay_as_they_are_and_in_order() {
        let sizes = [10_000, 5, 6, 50_000, 4_095, 4_096, 1];
        let mut queue = Queue::default();
        for (n, size) in sizes.iter().enumerate() {
            queue.push(Bytes::from(vec![n as u8; *size]));
        }
        queue.settle();
        let lens: Vec<usize> = queue.slices.iter().map(Bytes::len).collect();
        assert_eq!(lens, [10_000, 11, 50_000, 4_095, 4_096, 1]);
        assert_eq!(queue.charged(), lens.iter().map(|len| charge(*len)).sum::<usize>());
    }
}
