//! The turns in which HTTP/2 connections are read. A turn reads for [`READ_FOR`] and then yields, because h2 reads frames until
//! none is left, and the streams get their bytes only after that. A connection that has used its whole turn waits for the next
//! one in [`BusyTurns`].

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::sync::PollSemaphore;

/// How long one turn reads. For each small frame h2 keeps a few hundred bytes until the stream's reader has its turn, and
/// meanwhile other connections on the thread wait.
pub(super) const READ_FOR: Duration = Duration::from_micros(250);

/// The turns of the connections of one listener that have used a whole turn. As many of them as the runtime has threads have a
/// turn at once, one after the other; between two of these turns the thread polls the sockets and runs the other tasks that are
/// ready. So any number of such connections delays another one by one turn, not by one turn each.
#[derive(Debug, Clone)]
pub struct BusyTurns(Arc<Semaphore>);

impl Default for BusyTurns {
    /// For connections on the runtime of the caller.
    fn default() -> Self {
        let threads = Handle::try_current().map_or(1, |handle| handle.metrics().num_workers());
        BusyTurns(Arc::new(Semaphore::new(threads)))
    }
}

/// The turn of one connection.
#[derive(Debug)]
pub(super) struct Turn {
    /// The start of this turn's reads.
    since: Option<Instant>,
    turns: Option<PollSemaphore>,
    busy: Busy,
}

/// Whether a connection waits for its turns.
#[derive(Debug, Default)]
enum Busy {
    /// No: its last turn has read all that had arrived.
    #[default]
    No,
    /// Its last turn has not.
    Waits,
    /// It may read in the next turn.
    Next(OwnedSemaphorePermit, Arc<TurnWaker>),
    /// It may read in this turn.
    Now(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit, Arc<TurnWaker>),
}

/// Wakes a connection for its turn. h2 may wake it before, to send the answers to frames.
#[derive(Debug)]
struct TurnWaker {
    task: Waker,
    has_woken: AtomicBool,
}

impl Wake for TurnWaker {
    fn wake(self: Arc<Self>) {
        self.has_woken.store(true, Ordering::Relaxed);
        self.task.wake_by_ref();
    }
}

impl Turn {
    /// `turns`: those of the listener, for a connection that it has accepted.
    pub(super) fn new(turns: Option<&BusyTurns>) -> Self {
        let turns = turns.map(|turns| PollSemaphore::new(Arc::clone(&turns.0)));
        Turn { since: None, turns, busy: Busy::No }
    }

    /// Ready if the connection may read in this turn. If it has used the turn, the task is woken for another one.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_early() {
            return Poll::Pending;
        }
        if let Busy::No | Busy::Now(..) = self.busy {
            let now = Instant::now();
            if now.saturating_duration_since(*self.since.get_or_insert(now)) < READ_FOR {
                return Poll::Ready(());
            }
            if self.turns.is_none() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.busy = Busy::Waits;
        }
        self.poll_next_turn(cx);
        Poll::Pending
    }

    /// Ends the turn.
    pub(super) fn end(&mut self, cx: &mut Context<'_>) {
        self.since = None;
        if self.is_early() {
            return;
        }
        if let Busy::Waits = self.busy {
            // h2 does not read while it cannot write. Such a connection must not keep the others' turn.
            self.poll_next_turn(cx);
        }
        self.busy = match std::mem::take(&mut self.busy) {
            Busy::Next(permit, waker) => Busy::Now(permit, waker),
            Busy::Waits => Busy::Waits,
            Busy::Now(..) | Busy::No => Busy::No,
        };
    }

    /// Whether the task was woken before its turn.
    fn is_early(&self) -> bool {
        matches!(&self.busy, Busy::Now(_, waker) if !waker.has_woken.load(Ordering::Relaxed))
    }

    /// Wakes the task for its next turn, after the other tasks that are ready. On one thread the sockets are polled first, too; on
    /// several, tokio would do that on this thread only, while the others could not take the turn.
    fn poll_next_turn(&mut self, cx: &mut Context<'_>) {
        if let (Busy::Waits, Some(turns)) = (&self.busy, &mut self.turns) {
            let Poll::Ready(permit) = turns.poll_acquire(cx) else { return };
            let waker = Arc::new(TurnWaker { task: cx.waker().clone(), has_woken: AtomicBool::new(false) });
            self.busy = permit.map_or(Busy::No, |permit| Busy::Next(permit, Arc::clone(&waker)));
            let waker = Waker::from(waker);
            let on_one_thread = Handle::try_current()
                .is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::CurrentThread);
            if on_one_thread {
                let _ = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
            } else {
                waker.wake();
            }
        }
    }
}
