//! The queue between the tasks that report and the thread that writes: limited in bytes, never blocking.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Severity;
use crate::metrics::Counter;

/// The limit of the queue in bytes: some seconds of a busy process.
const LIMIT: usize = 4 * 1024 * 1024;

/// How long the writer pauses after a write, so that it writes several lines at once. Waking it for each line cost more
/// than all other work on logs: a fifth of the cost of a short connection.
const REST: Duration = Duration::from_millis(10);
/// This many queued bytes end the pause.
const MUCH: usize = LIMIT / 4;

/// One rendered line, with its newline.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) severity: Severity,
    pub(super) text: String,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Queue {
    rest: Duration,
    state: Mutex<State>,
    /// Signals lines to write, or the end.
    work: Condvar,
    /// Signals that the writer has written everything.
    idle: Condvar,
    /// Lines that did not fit, or could not be written.
    pub(super) lost: Counter,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Line>,
    bytes: usize,
    /// The writer is writing the lines that it took.
    writing: bool,
    /// The writer sleeps until there is a line.
    sleeping: bool,
    /// The number of callers that wait for an empty queue.
    flushing: usize,
    closed: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self::resting(REST)
    }
}

impl State {
    /// Whether the writer's pause ends early.
    fn is_urgent(&self) -> bool {
        self.closed || self.flushing > 0 || self.bytes >= MUCH
    }
}

impl Queue {
    fn resting(rest: Duration) -> Self {
        Queue {
            rest,
            state: Mutex::default(),
            work: Condvar::new(),
            idle: Condvar::new(),
            lost: Counter::default(),
        }
    }

    /// A queue, and the thread that takes its lines: `write` writes them, and counts the lost ones.
    pub(super) fn start(
        thread: &str,
        mut write: impl FnMut(&VecDeque<Line>, &Counter) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let queue = Arc::<Self>::default();
        let taken = Arc::clone(&queue);
        let run = move || {
            while let Some(lines) = taken.take() {
                write(&lines, &taken.lost);
            }
        };
        let started = thread::Builder::new().name(thread.to_owned()).spawn(run);
        started.map_err(|error| io::Error::other(format!("cannot start the log's thread: {error}")))?;
        Ok(queue)
    }

    /// Queues the line, or counts it as lost. Holds the lock only for the push.
    pub(super) fn push(&self, line: Line) {
        let mut state = self.state.lock();
        if state.closed || state.bytes + line.text.len() > LIMIT {
            drop(state);
            self.lost.inc();
            return;
        }
        state.bytes += line.text.len();
        state.lines.push_back(line);
        // Only the first line finds a sleeping writer, and only many bytes end its pause.
        if std::mem::take(&mut state.sleeping) || state.bytes >= MUCH {
            self.work.notify_one();
        }
    }

    /// For the writer: pauses if it has just written, waits for lines and takes them all. `None` after the end.
    pub(super) fn take(&self) -> Option<VecDeque<Line>> {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.writing) {
            if state.lines.is_empty() {
                self.idle.notify_all();
            }
            self.work.wait_while_for(&mut state, |state| !state.is_urgent(), self.rest);
        }
        while state.lines.is_empty() {
            if state.closed {
                return None;
            }
            state.sleeping = true;
            self.work.wait(&mut state);
        }
        state.sleeping = false;
        state.writing = true;
        state.bytes = 0;
        Some(std::mem::take(&mut state.lines))
    }

    /// Waits until the writer has written everything, for at most this time.
    pub(super) fn flush(&self, within: Duration) {
        let mut state = self.state.lock();
        state.flushing += 1;
        self.work.notify_one();
        let pending = |state: &mut State| state.writing || !state.lines.is_empty();
        self.idle.wait_while_for(&mut state, pending, within);
        state.flushing -= 1;
    }

    /// Accepts no more lines; the writer ends after the queued ones.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    fn line(len: usize) -> Line {
        Line { severity: Severity::Info, text: "x".repeat(len) }
    }

    #[test]
    fn lines_beyond_the_limit_are_counted() {
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

    /// A writer with an endless pause; reports how many lines it took each time.
    fn writer(queue: &Arc<Queue>) -> mpsc::Receiver<usize> {
        let (tell, told) = mpsc::channel();
        let queue = Arc::clone(queue);
        thread::spawn(move || {
            while let Some(lines) = queue.take() {
                tell.send(lines.len()).expect("the test goes on");
            }
        });
        told
    }

    #[test]
    fn lines_that_come_while_the_writer_rests_are_written_together() {
        const SOON: Duration = Duration::from_secs(30);
        let queue = Arc::new(Queue::resting(Duration::MAX));
        let told = writer(&queue);
        queue.push(line(1));
        assert_eq!(told.recv_timeout(SOON), Ok(1), "the first comes at once");
        for _ in 0..3 {
            queue.push(line(1));
        }
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
        queue.flush(SOON);
        assert_eq!(told.try_recv(), Ok(3), "who waits for them does not wait for the rest");
        queue.push(line(1));
        assert_eq!(told.recv_timeout(SOON), Ok(1), "a flush ends with a writer that sleeps");
        queue.push(line(MUCH));
        assert_eq!(told.recv_timeout(SOON), Ok(1), "much does not wait for the rest");
        queue.push(line(1));
        queue.close();
        assert_eq!(told.recv_timeout(SOON), Ok(1), "nor does the end");
        assert_eq!(told.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
        assert_eq!(queue.lost.get(), 0);
    }
}
