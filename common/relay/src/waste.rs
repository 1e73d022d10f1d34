//! What is read only to be thrown away.
//!
//! A peer that is to read its last bytes must be able to get rid of its own meanwhile: a socket closed while its peer
//! still sends answers with a reset, which destroys what the peer has not read. But whoever sends without end would have
//! a processor to itself. So a link throws away so much in a while, for all its connections together; who comes
//! after that waits for the next while.

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

/// So many bytes in so long: a tenth of what a processor could read.
const SHARE: usize = 1 << 20;
const WHILE: Duration = Duration::from_millis(10);

/// The most of it that one connection reads in one turn, in bytes.
const PIECE: usize = 64 << 10;

/// One link's account of it.
#[derive(Debug, Default)]
pub(crate) struct Waste {
    /// When this while began; `None` before the first.
    began: Option<Time>,
    used: usize,
    /// Who waits for the next one.
    parked: VecDeque<Arc<Mark>>,
}

impl Waste {
    /// How many bytes a connection may throw away now.
    pub(crate) fn allowance(&mut self, now: Time) -> usize {
        if self.began.is_none_or(|began| now >= began.after(WHILE)) {
            (self.began, self.used) = (Some(now), 0);
        }
        SHARE.saturating_sub(self.used).min(PIECE)
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        self.used = self.used.saturating_add(bytes);
    }

    /// Whose allowance is used up waits for the next while.
    pub(crate) fn park(&mut self, mark: &Arc<Mark>) {
        self.parked.push_back(Arc::clone(mark));
    }

    /// When [`Waste::unpark`] is to be called, if anybody waits.
    pub(crate) fn due(&self) -> Option<Time> {
        let began = self.began.filter(|_| !self.parked.is_empty())?;
        Some(began.after(WHILE))
    }

    /// Those who find something in the while that begins now, if it is time for one.
    pub(crate) fn unpark(&mut self, now: Time) -> Vec<Arc<Mark>> {
        if self.due().is_none_or(|due| now < due) {
            return Vec::new();
        }
        (self.began, self.used) = (Some(now), 0);
        self.parked.drain(..self.parked.len().min(SHARE / PIECE)).collect()
    }
}

/// Reads once, no more than `allowance`, in bytes, and counts off what came. Ready at the peer's end, of whatever kind. Without an
/// allowance nothing is read: the link calls again when there is one.
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

/// The wait for a peer's end of file, once it was told that nothing more comes.
#[derive(Debug)]
pub struct Linger(Pin<Box<Sleep>>);

impl Linger {
    /// Begins now, and lasts for so long at most.
    pub fn new(time: Duration) -> Self {
        Linger(Box::pin(sleep(time)))
    }

    /// Ready at the peer's end, or when the time is up; else as [`throw_away`].
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        allowance: &mut usize,
        read: impl FnOnce(&mut Context<'_>, usize) -> Poll<io::Result<Bytes>>,
    ) -> Poll<()> {
        // First, for a peer whose end is there already.
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
    fn those_who_wait_find_something_in_their_turn() {
        let (mut waste, list) = (Waste::default(), Arc::new(ReadyList::default()));
        waste.allowance(at(0));
        assert_eq!(waste.due(), None, "nobody waits");
        for slot in 0..20 {
            waste.park(&Mark::new(&list, slot));
        }
        assert_eq!(waste.due(), Some(at(10)));
        assert!(waste.unpark(at(9)).is_empty());
        let slots = |marks: Vec<Arc<Mark>>| marks.iter().map(|mark| mark.slot()).collect::<Vec<_>>();
        assert_eq!(slots(waste.unpark(at(12))), (0..16).collect::<Vec<_>>());
        assert_eq!(waste.due(), Some(at(22)));
        assert_eq!(slots(waste.unpark(at(22))), (16..20).collect::<Vec<_>>());
        assert_eq!(waste.due(), None);
    }

    /// Lingers with that allowance over what `read` yields; how long it took, and what of the allowance is left.
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
