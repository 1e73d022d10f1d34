//! Bytes that wait for a local end.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tunnel::charge;

use crate::local::Local;

/// Slices below this are copied when they have to wait: each would pin a whole receive buffer.
const COPY_BELOW: usize = 4 << 10;
/// Bytes that one local end takes before others have their turn.
const WRITE_AT_ONCE: usize = 256 << 10;

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

    /// The first slices, as many as there is room for; how many they are.
    pub fn io_slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let count = self.slices.len().min(into.len());
        for (to, from) in into.iter_mut().zip(&self.slices) {
            *to = IoSlice::new(from);
        }
        count
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
    pub fn advance(&mut self, mut count: usize) {
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
    fn what_is_taken_and_written_is_no_longer_charged() {
        let mut queue = Queue::default();
        for size in [100, 1_000, 10_000] {
            queue.push(Bytes::from(vec![7; size]));
        }
        let mut slices = [IoSlice::new(&[]); 2];
        assert_eq!(queue.io_slices(&mut slices), 2);
        assert_eq!(slices.map(|slice| slice.len()), [100, 1_000]);
        queue.advance(600);
        assert_eq!((queue.len(), queue.charged()), (10_500, charge(500) + charge(10_000)));
        assert_eq!(queue.take_slice(2_000).len(), 500, "no more than a slice");
        assert_eq!(queue.take_slice(2_000).len(), 2_000, "no more than is wanted");
        assert_eq!((queue.len(), queue.charged()), (8_000, charge(8_000)));
        queue.advance(8_000);
        assert!(queue.is_empty());
        assert_eq!((queue.len(), queue.charged()), (0, 0));
    }

    /// Takes whatever it is given.
    struct Sink;

    impl Local for Sink {
        fn poll_read(&mut self, _: &mut Context<'_>, _: usize) -> Poll<io::Result<crate::Read>> {
            Poll::Pending
        }
        fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }
        fn poll_write(&mut self, _: &mut Context<'_>, queue: &mut Queue) -> Poll<io::Result<()>> {
            queue.take_slice(usize::MAX);
            Poll::Ready(Ok(()))
        }
        fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shut_down(&mut self, _: &mut Context<'_>) -> Poll<io::Result<bool>> {
            Poll::Ready(Ok(true))
        }
        fn poll_end(&mut self, _: &mut Context<'_>, _: &crate::Ending) -> Poll<()> {
            Poll::Ready(())
        }
    }

    #[test]
    fn one_local_end_takes_only_so_much_at_once() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut queue = Queue::default();
        for _ in 0..100 {
            queue.push(Bytes::from(vec![7; 10_000]));
        }
        let mut left = Vec::new();
        while queue.write_into(&mut Sink, &mut cx).unwrap() {
            left.push(queue.len());
        }
        assert_eq!(left, [730_000, 460_000, 190_000]);
        assert!(queue.is_empty());
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
