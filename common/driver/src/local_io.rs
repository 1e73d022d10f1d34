//! The local end of a connection, as the link's task sees it: an endpoint's socket at the agent, a frontend's socket or
//! gRPC stream at the server; and how a local end discards its peer's bytes before it closes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use mux::{CloseReason, Fill};
use tokio::time::{Sleep, sleep};

use crate::chunks::Chunks;

/// The most bytes written to one local end before the others have their turn.
const WRITE_PER_TURN: usize = 256 << 10;

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// Bytes, never empty.
    Data(Bytes),
    /// The source sends no more, but may still listen (a FIN).
    Eof,
    /// The source has closed: it neither sends nor listens (a gRPC frontend's CLOSE_REQ).
    Closed,
}

/// The local end of a connection. The link's task alone owns and polls it, and drops it once `poll_end` is ready.
pub trait LocalIo: Send {
    /// Reads at most `max` bytes (only a hint if messages come whole).
    fn poll_read(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Read>>;

    /// The client at this end, for [`Conns::live`](crate::Conns::live); empty if this end is an endpoint.
    fn client(&self) -> &str {
        ""
    }

    /// Called while this end's bytes lack credit: ready once this end has gone and has left only unread bytes. To find
    /// out, it may read arrived bytes into a bounded buffer.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Bytes that this end has read and that cannot be sent, for lack of credit or because their message is unfinished. The driver
    /// asks after [`LocalIo::poll_closed`], after a pending read, and after each read until the result is zero.
    fn held(&mut self) -> usize {
        0
    }

    /// Accepts bytes from the front of `chunks`, which is not empty, without waiting. `Ready(Ok(()))` after progress, even
    /// if bytes remain. Pending registers the waker and accepts nothing.
    fn poll_write(&mut self, cx: &mut Context<'_>, chunks: &mut Chunks<'_>) -> Poll<io::Result<()>>;

    /// The fill of the queue of bytes for this end has changed.
    fn filled(&mut self, _fill: Fill) {}

    /// Writes buffered bytes (of a TLS session) to the socket. Called once per turn after writes, and again when the
    /// socket woke the connection.
    fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The peer sends no more: shuts down the write side after all written bytes, while this end may still send. Called again until
    /// ready.
    fn poll_shut_down(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ends the local side: flushes buffered bytes, then closes. Called again until ready; then this end is dropped. It has a
    /// time limit of its own, at most 10 minutes. It may read and discard `allowance` bytes of its peer, and deducts them. With
    /// an allowance of zero it is called again once there is more.
    fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        close_reason: &CloseReason,
        allowance: &mut usize,
    ) -> Poll<()>;
}

/// Writes until the local end accepts no more or has accepted [`WRITE_PER_TURN`], and then flushes it. Returns true if it may
/// accept more at once.
///
/// # Errors
/// Those of the local end.
pub(crate) fn write_into(
    io: &mut dyn LocalIo,
    chunks: &mut Chunks<'_>,
    cx: &mut Context<'_>,
) -> io::Result<bool> {
    let mut more = false;
    while !chunks.is_empty() {
        if chunks.accepted() >= WRITE_PER_TURN {
            more = true;
            break;
        }
        if io.poll_write(cx, chunks)?.is_pending() {
            break;
        }
    }
    match io.poll_flush(cx) {
        Poll::Ready(done) => done.map(|()| more),
        Poll::Pending => Ok(more),
    }
}

/// The most bytes of one read.
const MAX_READ_BYTES: usize = 64 << 10;

/// Reads once, at most `allowance` bytes, drops the bytes and deducts them. Ready at the peer's end of file or error.
/// With an allowance of zero it reads nothing: the link calls again when there is more.
pub fn poll_discard(
    cx: &mut Context<'_>,
    allowance: &mut usize,
    read: impl FnOnce(&mut Context<'_>, usize) -> Poll<io::Result<Bytes>>,
) -> Poll<()> {
    if *allowance == 0 {
        return Poll::Pending;
    }
    match ready!(read(cx, (*allowance).min(MAX_READ_BYTES))) {
        Ok(bytes) if !bytes.is_empty() => {
            *allowance = allowance.saturating_sub(bytes.len());
            if *allowance > 0 {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        }
        _ => Poll::Ready(()),
    }
}

/// The wait for a peer's end of file, after the peer was told that nothing more comes.
#[derive(Debug)]
pub struct Linger(Pin<Box<Sleep>>);

impl Linger {
    /// Starts now, and lasts for at most `time`.
    pub fn new(time: Duration) -> Self {
        Linger(Box::pin(sleep(time)))
    }

    /// Ready at the peer's end, or after the time-out; otherwise like [`poll_discard`].
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        allowance: &mut usize,
        read: impl FnOnce(&mut Context<'_>, usize) -> Poll<io::Result<Bytes>>,
    ) -> Poll<()> {
        // Reads first, because the peer's end may already have arrived.
        match poll_discard(cx, allowance, read) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => self.0.as_mut().poll(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;

    use tokio::time::Instant;

    use super::*;

    /// Accepts all bytes.
    struct Sink;

    impl LocalIo for Sink {
        fn poll_read(&mut self, _: &mut Context<'_>, _: usize) -> Poll<io::Result<Read>> {
            Poll::Pending
        }
        fn poll_closed(&mut self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }
        fn poll_write(&mut self, _: &mut Context<'_>, chunks: &mut Chunks<'_>) -> Poll<io::Result<()>> {
            chunks.take_slice(usize::MAX);
            Poll::Ready(Ok(()))
        }
        fn poll_shut_down(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_end(&mut self, _: &mut Context<'_>, _: &CloseReason, _: &mut usize) -> Poll<()> {
            Poll::Ready(())
        }
    }

    #[test]
    fn bytes_written_to_one_local_end_are_limited_per_turn() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut slices: VecDeque<Bytes> = vec![Bytes::from(vec![7; 10_000]); 100].into();
        let mut left = Vec::new();
        loop {
            let mut chunks = Chunks::new(&slices, slices.iter().map(Bytes::len).sum());
            let more = write_into(&mut Sink, &mut chunks, &mut cx).unwrap();
            left.push(chunks.len());
            slices.drain(..slices.len() - left.last().unwrap() / 10_000);
            if !more {
                break;
            }
        }
        assert_eq!(left, [730_000, 460_000, 190_000, 0]);
    }

    const TIME: Duration = Duration::from_secs(1);

    /// Lingers with this allowance, reading from `read`. Returns the elapsed time and the remaining allowance.
    async fn linger(
        mut allowance: usize,
        mut read: impl FnMut(usize) -> Poll<io::Result<Bytes>>,
    ) -> (Duration, usize) {
        let (began, mut linger) = (Instant::now(), Linger::new(TIME));
        poll_fn(|cx| linger.poll(cx, &mut allowance, |_, max| read(max))).await;
        (began.elapsed(), allowance)
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_ends_with_the_peer() {
        let mut left = 3;
        let reads = |_| {
            left -= 1;
            Poll::Ready(Ok(Bytes::from_static(&[0; 1_000]).slice(..if left > 0 { 1_000 } else { 0 })))
        };
        assert_eq!(linger(5_000, reads).await, (Duration::ZERO, 3_000));
        let broken = |_| Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        assert_eq!(linger(5_000, broken).await, (Duration::ZERO, 5_000));
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_has_a_time_limit() {
        for reads in [true, false] {
            let (took, left) = linger(5_000, |max| match reads {
                true => Poll::Ready(Ok(Bytes::from(vec![0; max.min(1_500)]))),
                false => Poll::Pending,
            })
            .await;
            assert!(took >= TIME && took < TIME * 2, "{took:?}");
            assert_eq!(left, if reads { 0 } else { 5_000 });
        }
    }
}
