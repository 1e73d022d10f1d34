//! The turns in which HTTP/2 connections are read. A turn reads for [`READ_FOR`] and then yields, because h2 reads frames until
//! none is left, and the streams get their bytes only after that.
//!
//! A connection that has used its whole turn for small frames waits for the next one in [`BusyTurns`]. Bulk transfers never wait
//! there: their frames are large.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::PollSemaphore;

use super::authority::{HEAD, PREFACE};

/// How long one turn reads. For each small frame h2 keeps a few hundred bytes until the stream's reader has its turn, and
/// meanwhile other connections on the thread wait.
pub(super) const READ_FOR: Duration = Duration::from_micros(250);

/// A turn reads small frames if they have fewer bytes than this on average, heads included, and are at least [`MANY`]: fewer take
/// a whole turn only if the thread is interrupted meanwhile.
const SMALL: usize = 1 << 10;
pub(super) const MANY: usize = 64;

/// The turns of the connections of one listener that have used a whole turn for small frames. As many of them as the runtime has
/// threads have a turn at once, one after the other; between two of these turns the thread runs the other tasks that are ready.
/// So any number of such connections delays another one by one turn, not by one turn each.
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
    frames: Frames,
    turns: Option<PollSemaphore>,
    busy: Busy,
}

/// Whether a connection waits for its turns.
#[derive(Debug, Default)]
enum Busy {
    /// No: its last turn has read all that had arrived, or large frames.
    #[default]
    No,
    /// Its last turn has not.
    Waits,
    /// It may read in the next turn.
    Next(OwnedSemaphorePermit),
    /// It may read in this turn.
    Now(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit),
}

impl Turn {
    /// `turns`: those of the listener, for a connection that it has accepted.
    pub(super) fn new(turns: Option<&BusyTurns>) -> Self {
        let turns = turns.map(|turns| PollSemaphore::new(Arc::clone(&turns.0)));
        Turn { since: None, frames: Frames::default(), turns, busy: Busy::No }
    }

    /// Ready if the connection may read in this turn. If it has used the turn, the task is woken for another one.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Busy::No | Busy::Now(_) = self.busy {
            let now = Instant::now();
            if now.saturating_duration_since(*self.since.get_or_insert(now)) < READ_FOR {
                return Poll::Ready(());
            }
            if self.turns.is_none() || !self.frames.are_small() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.busy = Busy::Waits;
        }
        self.poll_next_turn(cx);
        Poll::Pending
    }

    /// Counts the bytes that the turn has read.
    pub(super) fn count(&mut self, bytes: &[u8]) {
        if self.turns.is_some() {
            self.frames.count(bytes);
        }
    }

    /// Ends the turn.
    pub(super) fn end(&mut self, cx: &mut Context<'_>) {
        self.since = None;
        self.frames.restart();
        if let Busy::Waits = self.busy {
            // h2 does not read while it cannot write. Such a connection must not keep the others' turn.
            self.poll_next_turn(cx);
        }
        self.busy = match std::mem::take(&mut self.busy) {
            Busy::Next(permit) => Busy::Now(permit),
            Busy::Waits => Busy::Waits,
            Busy::Now(_) | Busy::No => Busy::No,
        };
    }

    /// Wakes the task for its next turn, after the other tasks that are ready.
    fn poll_next_turn(&mut self, cx: &mut Context<'_>) {
        if let (Busy::Waits, Some(turns)) = (&self.busy, &mut self.turns) {
            let Poll::Ready(permit) = turns.poll_acquire(cx) else { return };
            self.busy = permit.map_or(Busy::No, Busy::Next);
            cx.waker().wake_by_ref();
        }
    }
}

/// The frames that a turn reads from a client.
#[derive(Debug)]
pub(super) struct Frames {
    /// Frames and bytes of this turn.
    count: usize,
    bytes: usize,
    /// Bytes until the next frame's head.
    rest: usize,
    /// The bytes of that head that were read, of [`LENGTH`], and the length that they give.
    have: usize,
    length: usize,
}

/// A frame's head begins with its length, in three bytes.
const LENGTH: usize = 3;

impl Default for Frames {
    fn default() -> Self {
        Frames { count: 0, bytes: 0, rest: PREFACE.len(), have: 0, length: 0 }
    }
}

impl Frames {
    pub(super) fn count(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len();
        loop {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            let Some((&byte, after)) = bytes.split_at(skipped).1.split_first() else { return };
            bytes = after;
            self.have += 1;
            self.length = self.length << 8 | usize::from(byte);
            if self.have == LENGTH {
                self.count += 1;
                self.rest = HEAD - LENGTH + std::mem::take(&mut self.length);
                self.have = 0;
            }
        }
    }

    pub(super) fn are_small(&self) -> bool {
        self.count >= MANY && self.bytes < self.count * SMALL
    }

    fn restart(&mut self) {
        (self.count, self.bytes) = (0, 0);
    }
}
