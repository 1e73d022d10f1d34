//! The discard budget: how many bytes a link may read only to drop them.
//!
//! After a close we keep reading and discarding, because the peer may not read our last bytes until its own writes
//! drain: a socket closed with unread bytes answers with a reset, which destroys the bytes that the peer has not read.
//! But a peer that sends without end would occupy a core. So each link may discard a fixed number of bytes in each
//! interval, over all its connections; the others wait for the next interval.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Sleep, sleep};
use tunnel::Time;

use crate::ready::Mark;

/// The budget in bytes, and the interval for which it holds.
const SHARE: usize = 1 << 20;
const WHILE: Duration = Duration::from_millis(10);

/// The most bytes that one connection may discard in one step.
pub(crate) const PIECE: usize = 64 << 10;

/// One link's discard budget.
#[derive(Debug, Default)]
pub(crate) struct Waste {
    /// The start of the current interval; `None` before the first.
    began: Option<Time>,
    /// Bytes discarded in the interval, including the pieces reserved for connections that were called.
    used: usize,
    /// The connections that wait for budget, in order.
    parked: VecDeque<Arc<Mark>>,
}

impl Waste {
    /// How many bytes a connection may discard that was not called: none while others wait.
    pub(crate) fn allowance(&mut self, now: Time) -> usize {
        if !self.parked.is_empty() {
            return 0;
        }
        self.go_on(now);
        self.left()
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        self.used = self.used.saturating_add(bytes);
    }

    /// Returns the unused part of a piece.
    pub(crate) fn refund(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }

    pub(crate) fn park(&mut self, mark: &Arc<Mark>) {
        self.parked.push_back(Arc::clone(mark));
    }

    /// When the next waiting connection can be called.
    pub(crate) fn due(&self) -> Option<Time> {
        self.began.filter(|_| !self.parked.is_empty()).map(|began| began.after(WHILE))
    }

    /// The first waiting connection, if a whole piece is left for it. The caller reserves the piece by
    /// [`Waste::spend`].
    pub(crate) fn call(&mut self, now: Time) -> Option<Arc<Mark>> {
        if self.parked.is_empty() {
            return None;
        }
        self.go_on(now);
        if self.left() < PIECE { None } else { self.parked.pop_front() }
    }

    /// Starts a new interval when the current one is over.
    fn go_on(&mut self, now: Time) {
        if self.began.is_none_or(|began| now >= began.after(WHILE)) {
            (self.began, self.used) = (Some(now), 0);
        }
    }

    fn left(&self) -> usize {
        SHARE.saturating_sub(self.used).min(PIECE)
    }
}

/// Reads once, at most `allowance` bytes, drops the bytes and deducts them. Ready at the peer's end of file or error.
/// With an allowance of zero it reads nothing: the link calls again when there is more.
pub fn throw_away(
    cx: &mut Context<'_>,
    allowance: &mut usize,
    read: impl FnOnce(&mut Context<'_>, usize) -> Poll<io::Result<Bytes>>,
) -> Poll<()> {
    if *allowance == 0 {
        return Poll::Pending;
    }
    match ready!(read(cx, (*allowance).min(PIECE))) {
        Ok(waste) if !waste.is_empty() => {
            *allowance = allowance.saturating_sub(waste.len());
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

    /// Ready at the peer's end, or after the time-out; otherwise like [`throw_away`].
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        allowance: &mut usize,
        read: impl FnOnce(&mut Context<'_>, usize) -> Poll<io::Result<Bytes>>,
    ) -> Poll<()> {
        // Reads first, because the peer's end may already have arrived.
        match throw_away(cx, allowance, read) {
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
    use crate::ready::ReadyList;

    const TIME: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Time {
        Time::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn a_link_throws_away_so_much_in_a_while() {
        let mut waste = Waste::default();
        for millis in [0, 10, 25] {
            for _ in 0..SHARE / PIECE {
                assert_eq!(waste.allowance(at(millis)), PIECE);
                waste.spend(PIECE);
            }
            assert_eq!(waste.allowance(at(millis + 9)), 0, "{millis}");
        }
    }

    #[test]
    fn those_who_wait_are_called_in_line_and_before_newcomers() {
        let (mut waste, list) = (Waste::default(), Arc::new(ReadyList::default()));
        assert_eq!(waste.allowance(at(0)), PIECE);
        waste.spend(SHARE);
        assert_eq!(waste.due(), None, "nobody waits");
        for slot in 0..20 {
            waste.park(&Mark::new(&list, slot));
        }
        assert!(waste.call(at(9)).is_none());
        assert_eq!(waste.allowance(at(12)), 0, "others are before it");
        assert_eq!(waste.due(), Some(at(10)), "nobody who comes later puts that off");
        let mut called = |millis| {
            let mut slots = Vec::new();
            while let Some(mark) = waste.call(at(millis)) {
                waste.spend(PIECE);
                slots.push(mark.slot());
            }
            slots
        };
        assert_eq!(called(12), (0..16).collect::<Vec<_>>());
        assert_eq!(called(21), []);
        assert_eq!(called(22), (16..20).collect::<Vec<_>>());
        waste.refund(4 * PIECE);
        assert_eq!((waste.due(), waste.allowance(at(23))), (None, PIECE));
    }

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
    async fn lingering_does_not_last_for_ever() {
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
