//! How a local end discards its peer's bytes before it closes: helpers for [`crate::LocalIo::poll_end`].

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Sleep, sleep};

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
    use std::future::poll_fn;

    use tokio::time::Instant;

    use super::*;

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
