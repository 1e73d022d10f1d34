//! Reads sockets through one buffer per thread: idle connections hold no buffer.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

/// The smallest buffer, in bytes.
const MIN_BUFFER_BYTES: usize = 16 << 10;
/// The rest of a buffer is used again if it has at least this many bytes. Shorter reads are copied, so that a few bytes
/// do not pin a whole buffer.
const MIN_REUSED_BYTES: usize = 4 << 10;

/// The most pieces of one read, so that an endless source of small pieces does not occupy the task.
const MAX_READS: usize = 16;

thread_local! {
    /// Reads of all sockets on this thread go through this buffer; the bytes read are split off.
    static SCRATCH: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// Reads once, at most `want` bytes (at least one). Empty at end of file.
///
/// # Errors
/// Those of the socket.
pub fn poll_read_once<R: AsyncRead + Unpin>(
    socket: &mut R,
    cx: &mut Context<'_>,
    want: usize,
) -> Poll<io::Result<Bytes>> {
    poll(want, |scratch| poll_read_buf(Pin::new(&mut *socket), cx, &mut scratch.limit(want.max(1))))
}

/// Reads until there are `want` bytes or the socket has no more: for a TLS session, which returns one record at a time.
/// Empty at end of file. An error after some bytes is stored in `failed`, and returned by the next call.
///
/// # Errors
/// Those of the socket.
pub fn poll_read_full<R: AsyncRead + Unpin>(
    socket: &mut R,
    cx: &mut Context<'_>,
    want: usize,
    failed: &mut Option<io::Error>,
) -> Poll<io::Result<Bytes>> {
    if let Some(error) = failed.take() {
        return Poll::Ready(Err(error));
    }
    let want = want.max(1);
    poll(want, |scratch| {
        for _ in 0..MAX_READS {
            let room = want - scratch.len();
            if room == 0 {
                break;
            }
            match poll_read_buf(Pin::new(&mut *socket), cx, &mut (&mut *scratch).limit(room)) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                read if scratch.is_empty() => return read,
                Poll::Ready(Err(error)) => {
                    *failed = Some(error);
                    break;
                }
                // The next call sees the end of file again.
                _ => break,
            }
        }
        Poll::Ready(Ok(scratch.len()))
    })
}

fn poll(want: usize, read: impl FnOnce(&mut BytesMut) -> Poll<io::Result<usize>>) -> Poll<io::Result<Bytes>> {
    SCRATCH.with_borrow_mut(|scratch| {
        // The rest of the buffer is used only if it does not cut a large read short.
        if scratch.capacity() < want.min(MIN_REUSED_BYTES).max(want / 2) {
            *scratch = BytesMut::with_capacity(want.max(MIN_BUFFER_BYTES));
        }
        let count = ready!(read(scratch))?;
        if count < MIN_REUSED_BYTES {
            let bytes = Bytes::copy_from_slice(scratch);
            scratch.clear();
            return Poll::Ready(Ok(bytes));
        }
        let bytes = scratch.split().freeze();
        if scratch.capacity() < MIN_REUSED_BYTES {
            *scratch = BytesMut::new();
        }
        Poll::Ready(Ok(bytes))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::ReadBuf;

    use super::*;

    /// Returns one piece, or one error, for each read; then the end.
    struct Records(VecDeque<Result<usize, io::ErrorKind>>);

    impl AsyncRead for Records {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.0.pop_front() {
                Some(Ok(0)) => return Poll::Pending,
                Some(Ok(count)) => {
                    let now = count.min(buf.remaining());
                    buf.put_slice(&vec![1; now]);
                    if now < count {
                        self.0.push_front(Ok(count - now));
                    }
                }
                Some(Err(kind)) => return Poll::Ready(Err(kind.into())),
                None => {}
            }
            Poll::Ready(Ok(()))
        }
    }

    fn lens(records: &[Result<usize, io::ErrorKind>], want: usize) -> Vec<Result<usize, io::ErrorKind>> {
        let (mut records, mut failed) = (Records(records.iter().copied().collect()), None);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut lens = Vec::new();
        while lens.last() != Some(&Ok(0)) {
            match poll_read_full(&mut records, &mut cx, want, &mut failed) {
                Poll::Ready(read) => lens.push(read.map(|bytes| bytes.len()).map_err(|e| e.kind())),
                Poll::Pending => lens.push(Err(io::ErrorKind::WouldBlock)),
            }
        }
        lens
    }

    #[test]
    fn records_come_together_and_nothing_behind_them_is_lost() {
        use io::ErrorKind::{ConnectionReset, WouldBlock};
        assert_eq!(lens(&[Ok(16_384); 3], 65_536), [Ok(49_152), Ok(0)], "an end behind bytes comes next");
        assert_eq!(lens(&[Ok(16_384); 3], 20_000), [Ok(20_000), Ok(20_000), Ok(9_152), Ok(0)]);
        assert_eq!(lens(&[Ok(10), Ok(0), Ok(20)], 64), [Ok(10), Ok(20), Ok(0)]);
        assert_eq!(lens(&[Ok(0), Ok(5)], 64), [Err(WouldBlock), Ok(5), Ok(0)]);
        assert_eq!(lens(&[Ok(10), Err(ConnectionReset)], 64), [Ok(10), Err(ConnectionReset), Ok(0)]);
    }
}
