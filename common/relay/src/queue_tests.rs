//! The queue of a local end, and how it is written.

use std::sync::Arc;

use super::*;

fn compacted(sizes: &[usize]) -> Queue {
    let mut queue = Queue::default();
    for (turn, size) in sizes.iter().enumerate() {
        queue.push(Bytes::from(vec![turn as u8; *size]));
        queue.compact();
    }
    queue
}

#[test]
fn small_slices_that_stay_cost_little_more_than_their_bytes() {
    let queue = compacted(&[1; 100_000]);
    assert!(queue.charged() < 120_000, "{} are charged for 100,000 bytes", queue.charged());
    let whole: Vec<u8> = queue.slices.iter().flatten().copied().collect();
    assert_eq!(whole, (0..100_000_usize).map(|turn| turn as u8).collect::<Vec<u8>>());
}

/// A receive buffer that shows when it is freed.
struct Buffer {
    bytes: Vec<u8>,
    _held: Arc<()>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[test]
fn a_part_that_stays_does_not_keep_the_rest_of_its_receive_buffer() {
    for size in [1, 4 << 10, 16 << 10, 31 << 10] {
        let held = Arc::new(());
        let mut queue = Queue::default();
        let buffer = Buffer { bytes: vec![0; 128 << 10], _held: Arc::clone(&held) };
        queue.push(Bytes::from_owner(buffer).slice(..size));
        queue.compact();
        assert_eq!((queue.len(), Arc::strong_count(&held)), (size, 1), "of {size} bytes");
    }
}

#[test]
fn taken_and_written_bytes_are_not_charged() {
    let mut queue = Queue::default();
    for size in [100, 1_000, 10_000] {
        queue.push(Bytes::from(vec![7; size]));
    }
    queue.advance(600);
    assert_eq!((queue.len(), queue.charged()), (10_500, charge(500) + charge(10_000)));
    assert_eq!(queue.take_slice(2_000).len(), 500, "no more than a slice");
    assert_eq!(queue.take_slice(2_000).len(), 2_000, "no more than is wanted");
    assert_eq!((queue.len(), queue.charged()), (8_000, charge(8_000)));
    queue.advance(8_000);
    assert!(queue.is_empty());
    assert_eq!((queue.len(), queue.charged()), (0, 0));
}

/// A writer that accepts the given number of bytes of each write, in turn, then nothing; it records the offered slices.
struct Grudging {
    takes: VecDeque<io::Result<usize>>,
    offered: Vec<Vec<usize>>,
    taken: Vec<u8>,
}

impl AsyncWrite for Grudging {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.offered.push(bufs.iter().map(|buf| buf.len()).collect());
        let Some(takes) = self.takes.pop_front() else { return Poll::Pending };
        let before = self.taken.len();
        let taken: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).take(takes?).collect();
        self.taken.extend(taken);
        Poll::Ready(Ok(self.taken.len() - before))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn a_partial_write_leaves_the_rest_in_order() {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let mut queue = Queue::default();
    let whole: Vec<u8> = (0..60).collect();
    for slice in whole.chunks(3) {
        queue.push(Bytes::copy_from_slice(slice));
    }
    let takes = [Ok(1), Ok(2), Ok(10), Ok(usize::MAX)].into();
    let mut io = Grudging { takes, offered: Vec::new(), taken: Vec::new() };
    let mut write = |queue: &mut Queue| queue.poll_write_to(Pin::new(&mut io), &mut cx).map(Result::unwrap);
    assert_eq!(write(&mut queue), Poll::Ready(1), "within a slice");
    assert_eq!((queue.len(), queue.charged()), (59, 20 * charge(3)));
    assert_eq!(write(&mut queue), Poll::Ready(2), "to the end of a slice");
    assert_eq!((queue.len(), queue.charged()), (57, 19 * charge(3)));
    assert_eq!(write(&mut queue), Poll::Ready(10), "over slices");
    assert_eq!(write(&mut queue), Poll::Ready(47), "all that it was offered");
    assert_eq!((queue.len(), queue.charged()), (0, 0));
    assert_eq!(io.taken, whole);
    let offered: Vec<(usize, usize)> =
        io.offered.iter().map(|lens| (lens.len(), lens.iter().sum())).collect();
    assert_eq!(offered, [(16, 48), (16, 47), (16, 48), (16, 47)]);
}

#[test]
fn unwritten_bytes_stay_queued() {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let mut queue = Queue::default();
    queue.push(Bytes::from_static(b"hello"));
    let takes = [Ok(0), Err(io::ErrorKind::BrokenPipe.into())].into();
    let mut io = Grudging { takes, offered: Vec::new(), taken: Vec::new() };
    let mut write = |queue: &mut Queue| {
        queue.poll_write_to(Pin::new(&mut io), &mut cx).map(|written| written.unwrap_err().kind())
    };
    assert_eq!(write(&mut queue), Poll::Ready(io::ErrorKind::WriteZero), "a writer that has ended");
    assert_eq!(write(&mut queue), Poll::Ready(io::ErrorKind::BrokenPipe));
    assert_eq!(write(&mut queue), Poll::Pending);
    assert_eq!((queue.len(), queue.charged()), (5, charge(5)));
}

/// Accepts all bytes.
struct Sink;

impl LocalIo for Sink {
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
    fn poll_end(&mut self, _: &mut Context<'_>, _: &crate::CloseReason, _: &mut usize) -> Poll<()> {
        Poll::Ready(())
    }
}

#[test]
fn bytes_written_to_one_local_end_are_limited_per_turn() {
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
fn large_slices_stay_as_they_are_and_in_order() {
    let sizes = [40_000, 5, 6, 50_000, 32_767, 32_768, 1];
    let mut queue = Queue::default();
    for (n, size) in sizes.iter().enumerate() {
        queue.push(Bytes::from(vec![n as u8; *size]));
    }
    queue.compact();
    let lens: Vec<usize> = queue.slices.iter().map(Bytes::len).collect();
    assert_eq!(lens, [40_000, 11, 50_000, 32_767, 32_768, 1]);
    assert_eq!(queue.charged(), lens.iter().map(|len| charge(*len)).sum::<usize>());
}
