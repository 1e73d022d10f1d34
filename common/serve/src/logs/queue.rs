//! What lies between the tasks that report and the thread that writes: bounded in bytes, never waited for.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::time::Instant;

use super::Severity;
use crate::metrics::Counter;

/// How much may wait for the writer: some seconds of a busy process, and nothing that an operator would miss.
const LIMIT: usize = 4 * 1024 * 1024;

/// One rendered line, newline included.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) severity: Severity,
    pub(super) text: String,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Something to write, or the end.
    work: Condvar,
    /// The writer has written all that it took.
    idle: Condvar,
    /// Lines that found no room, or could not be written.
    pub(super) lost: Counter,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Line>,
    bytes: usize,
    /// The writer holds lines that it took.
    writing: bool,
    closed: bool,
}

impl Queue {
    /// Queues the line, or counts it as lost. Holds a lock for the time of a push.
    pub(super) fn push(&self, line: Line) {
        let mut state = self.state.lock();
        if state.closed || state.bytes + line.text.len() > LIMIT {
            drop(state);
            self.lost.inc();
            return;
        }
        state.bytes += line.text.len();
        state.lines.push_back(line);
        // Only the first line finds a writer that sleeps.
        if state.lines.len() == 1 {
            self.work.notify_one();
        }
    }

    /// For the writer: waits for lines and takes all of them; nothing after the end.
    pub(super) fn take(&self) -> Option<VecDeque<Line>> {
        let mut state = self.state.lock();
        state.writing = false;
        if state.lines.is_empty() {
            self.idle.notify_all();
        }
        while state.lines.is_empty() {
            if state.closed {
                return None;
            }
            self.work.wait(&mut state);
        }
        state.writing = true;
        state.bytes = 0;
        Some(std::mem::take(&mut state.lines))
    }

    /// Waits until the writer has nothing left, for so long at most.
    pub(super) fn flush(&self, within: Duration) {
        let deadline = Instant::now() + within;
        let mut state = self.state.lock();
        while state.writing || !state.lines.is_empty() {
            if self.idle.wait_until(&mut state, deadline.into_std()).timed_out() {
                return;
            }
        }
    }

    /// No lines any more; the writer ends when it has written what is queued.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(len: usize) -> Line {
        Line { severity: Severity::Info, text: "x".repeat(len) }
    }

    #[test]
    fn what_exceeds_the_limit_is_counted() {
        let queue = Queue::default();
        queue.push(line(LIMIT - 1));
        queue.push(line(2));
        queue.push(line(1));
        assert_eq!(queue.lost.get(), 1);
        assert_eq!(queue.take().expect("lines").len(), 2);
        queue.push(line(LIMIT));
        assert_eq!(queue.lost.get(), 1, "what was taken makes room");
    }

    #[test]
    fn the_end_comes_behind_the_last_line() {
        let queue = Queue::default();
        queue.push(line(1));
        queue.close();
        queue.push(line(1));
        assert_eq!(queue.take().map(|lines| lines.len()), Some(1));
        assert!(queue.take().is_none());
        assert_eq!(queue.lost.get(), 1);
        queue.flush(Duration::ZERO);
    }
}
