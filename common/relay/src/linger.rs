//! The wait between an orderly end and the close of a socket.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Sleep, sleep};

/// How much is read and thrown away, in bytes: what the window of a connection near by lets be under way.
const WASTE: usize = 1 << 20;

/// The most of it in one turn: many may linger at once.
pub(crate) const PIECE: usize = 64 << 10;

/// Waits for the peer's end of file, once it was told that nothing more comes. A socket closed while its peer still sends
/// answers with a reset, which destroys what the peer has not read yet.
///
/// What comes meanwhile is thrown away, but not for ever: a peer that sends without end is left waiting until the
/// time is up, and costs nobody anything.
#[derive(Debug)]
pub struct Linger {
    deadline: Pin<Box<Sleep>>,
    /// Bytes that may still be read.
    left: usize,
}

impl Linger {
    /// Begins now, and lasts for so long at most.
    pub fn new(time: Duration) -> Self {
        Linger { deadline: Box::pin(sleep(time)), left: WASTE }
    }

    /// Ready at the end of file, after an error, or when the time is up. `read` reads so many bytes at most, none at
    /// end of file; it is called once in a turn.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut Context<'_>, usize) -> Poll<io::Result<Bytes>>,
    ) -> Poll<()> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if self.left == 0 {
            return Poll::Pending;
        }
        match ready!(read(cx, self.left.min(PIECE))) {
            Ok(waste) if !waste.is_empty() => {
                self.left = self.left.saturating_sub(waste.len());
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::Instant;

    use super::*;

    const TIME: Duration = Duration::from_secs(1);

    /// Lingers over what `read` yields; how long it took, and how much was read.
    async fn linger(mut read: impl FnMut(usize) -> Poll<io::Result<Bytes>>) -> (Duration, usize) {
        let (began, mut sum, mut linger) = (Instant::now(), 0, Linger::new(TIME));
        poll_fn(|cx| {
            linger.poll(cx, |_, max| {
                let read = read(max);
                if let Poll::Ready(Ok(bytes)) = &read {
                    sum += bytes.len();
                }
                read
            })
        })
        .await;
        (began.elapsed(), sum)
    }

    #[tokio::test(start_paused = true)]
    async fn ends_with_the_peer() {
        let mut left = 3;
        let reads = |_| {
            left -= 1;
            Poll::Ready(Ok(Bytes::from_static(&[0; 1_000]).slice(..if left > 0 { 1_000 } else { 0 })))
        };
        assert_eq!(linger(reads).await, (Duration::ZERO, 2_000));
        assert_eq!(linger(|_| Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))).await.1, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn does_not_wait_for_ever() {
        let (took, _) = linger(|_| Poll::Pending).await;
        assert!(took >= TIME && took < TIME * 2, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_sends_without_end_is_left_waiting() {
        let (took, sum) = linger(|max| Poll::Ready(Ok(Bytes::from(vec![0; max])))).await;
        assert!(took >= TIME, "it has its time to read: {took:?}");
        assert_eq!(sum, WASTE);
    }
}
