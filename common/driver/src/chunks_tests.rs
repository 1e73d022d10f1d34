//! The bytes offered to a local end, and how they are written.

use super::*;

fn slices(sizes: &[usize]) -> VecDeque<Bytes> {
    sizes.iter().zip(0u8..).map(|(size, n)| Bytes::from(vec![n; *size])).collect()
}

#[test]
fn slices_are_taken_from_the_front() {
    let slices = slices(&[500, 1_000, 10_000]);
    let mut chunks = Chunks::new(&slices, slices.iter().map(Bytes::len).sum());
    assert_eq!(chunks.take_slice(2_000), slices[0], "no more than a slice");
    assert_eq!(chunks.take_slice(400), slices[1][..400], "no more than is wanted");
    assert_eq!(chunks.take_slice(0).len(), 0);
    assert_eq!(chunks.take_slice(2_000), slices[1][400..]);
    assert_eq!((chunks.accepted(), chunks.len(), chunks.is_empty()), (1_500, 10_000, false));
    chunks.take_all();
    assert_eq!((chunks.accepted(), chunks.len(), chunks.is_empty()), (11_500, 0, true));
    assert_eq!(chunks.take_slice(1).len(), 0);
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
    let whole: Vec<u8> = (0..60).collect();
    let slices: VecDeque<Bytes> = whole.chunks(3).map(Bytes::copy_from_slice).collect();
    let mut chunks = Chunks::new(&slices, slices.iter().map(Bytes::len).sum());
    let takes = [Ok(1), Ok(2), Ok(10), Ok(usize::MAX)].into();
    let mut io = Grudging { takes, offered: Vec::new(), taken: Vec::new() };
    let mut write =
        |chunks: &mut Chunks<'_>| chunks.poll_write_to(Pin::new(&mut io), &mut cx).map(Result::unwrap);
    assert_eq!(write(&mut chunks), Poll::Ready(1), "within a slice");
    assert_eq!((chunks.len(), chunks.accepted()), (59, 1));
    assert_eq!(write(&mut chunks), Poll::Ready(2), "to the end of a slice");
    assert_eq!(write(&mut chunks), Poll::Ready(10), "over slices");
    assert_eq!(write(&mut chunks), Poll::Ready(47), "all that it was offered");
    assert_eq!((chunks.len(), chunks.accepted()), (0, 60));
    assert_eq!(io.taken, whole);
    let offered: Vec<(usize, usize)> =
        io.offered.iter().map(|lens| (lens.len(), lens.iter().sum())).collect();
    assert_eq!(offered, [(16, 48), (16, 47), (16, 48), (16, 47)]);
}

#[test]
fn unwritten_bytes_are_not_accepted() {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let slices = VecDeque::from([Bytes::from_static(b"hello")]);
    let mut chunks = Chunks::new(&slices, slices.iter().map(Bytes::len).sum());
    let takes = [Ok(0), Err(io::ErrorKind::BrokenPipe.into())].into();
    let mut io = Grudging { takes, offered: Vec::new(), taken: Vec::new() };
    let mut write = |chunks: &mut Chunks<'_>| {
        chunks.poll_write_to(Pin::new(&mut io), &mut cx).map(|written| written.unwrap_err().kind())
    };
    assert_eq!(write(&mut chunks), Poll::Ready(io::ErrorKind::WriteZero), "a writer that has ended");
    assert_eq!(write(&mut chunks), Poll::Ready(io::ErrorKind::BrokenPipe));
    assert_eq!(write(&mut chunks), Poll::Pending);
    assert_eq!((chunks.len(), chunks.accepted()), (5, 0));
}
