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

use crate::ready::ConnWaker;

/// The budget in bytes, and the interval for which it holds.
const BUDGET: usize = 1 << 20;
const INTERVAL: Duration = Duration::from_millis(10);

/// The most bytes that one connection may discard in one step.
pub(crate) const QUANTUM: usize = 64 << 10;

/// One link's discard budget.
#[derive(Debug, Default)]
pub(crate) struct DiscardBudget {
    /// The start of the current interval; `None` before the first.
    began: Option<Time>,
    /// Bytes discarded in the interval, including the pieces reserved for connections that were called.
    used: usize,
    /// The connections that wait for budget, in order.
    waiting: VecDeque<Arc<ConnWaker>>,
}

impl DiscardBudget {
    /// How many bytes a connection may discard that was not called: none while others wait.
    pub(crate) fn allowance(&mut self, now: Time) -> usize {
        if !self.waiting.is_empty() {
            return 0;
        }
        self.refill(now);
        self.left()
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        self.used = self.used.saturating_add(bytes);
    }

    /// Returns the unused part of a piece.
    pub(crate) fn refund(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }

    pub(crate) fn enqueue(&mut self, conn_waker: &Arc<ConnWaker>) {
        self.waiting.push_back(Arc::clone(conn_waker));
    }

    /// When the next waiting connection can be called.
    pub(crate) fn due(&self) -> Option<Time> {
        self.began.filter(|_| !self.waiting.is_empty()).map(|began| began.after(INTERVAL))
    }

    /// The first waiting connection, if a whole piece is left for it. The caller reserves the piece by
    /// [`DiscardBudget::spend`].
    pub(crate) fn next_waiting(&mut self, now: Time) -> Option<Arc<ConnWaker>> {
        if self.waiting.is_empty() {
            return None;
        }
        self.refill(now);
        if self.left() < QUANTUM { None } else { self.waiting.pop_front() }
    }

    /// Starts a new interval when the current one is over.
    fn refill(&mut self, now: Time) {
        if self.began.is_none_or(|began| now >= began.after(INTERVAL)) {
            (self.began, self.used) = (Some(now), 0);
        }
    }

    fn left(&self) -> usize {
        BUDGET.saturating_sub(self.used).min(QUANTUM)
    }
}

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
    match ready!(read(cx, (*allowance).min(QUANTUM))) {
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
    use crate::ready::ReadyList;

    const TIME: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Time {
        Time::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn discard_budget_limits_bytes_per_interval() {
        let mut budget = DiscardBudget::default();
        for millis in [0, 10, 25] {
            for _ in 0..BUDGET / QUANTUM {
                assert_eq!(budget.allowance(at(millis)), QUANTUM);
                budget.spend(QUANTUM);
            }
            assert_eq!(budget.allowance(at(millis + 9)), 0, "{millis}");
        }
    }

    #[test]
    fn waiting_connections_get_budget_in_order_and_before_new_ones() {
        let (mut budget, list) = (DiscardBudget::default(), Arc::new(ReadyList::default()));
        assert_eq!(budget.allowance(at(0)), QUANTUM);
        budget.spend(BUDGET);
        assert_eq!(budget.due(), None, "nobody waits");
        for slot in 0..20 {
            budget.enqueue(&ConnWaker::new(&list, slot));
        }
        assert!(budget.next_waiting(at(9)).is_none());
        assert_eq!(budget.allowance(at(12)), 0, "others are before it");
        assert_eq!(budget.due(), Some(at(10)), "nobody who comes later puts that off");
        let mut called = |millis| {
            let mut slots = Vec::new();
            while let Some(conn_waker) = budget.next_waiting(at(millis)) {
                budget.spend(QUANTUM);
                slots.push(conn_waker.slot());
            }
            slots
        };
        assert_eq!(called(12), (0..16).collect::<Vec<_>>());
        assert_eq!(called(21), []);
        assert_eq!(called(22), (16..20).collect::<Vec<_>>());
        budget.refund(4 * QUANTUM);
        assert_eq!((budget.due(), budget.allowance(at(23))), (None, QUANTUM));
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
