//! The queue between the tasks that report and the thread that writes: limited in bytes, never blocking.

use std::io;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, Thread};
use std::time::Duration;

use super::Severity;
use crate::metrics::Counter;

/// The limit of the queue in bytes: some seconds of a busy process.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;

/// With this many bytes in the queue the writer's pause ends early.
const WAKE_WRITER_BYTES: usize = MAX_QUEUED_BYTES / 4;

/// One rendered line, with its newline.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) severity: Severity,
    pub(super) text: String,
}

/// See the module. The writer ends with the queue, after the last line.
#[derive(Debug)]
pub(super) struct Queue {
    items: Sender<Item>,
    bytes: Arc<AtomicUsize>,
    writer: Thread,
    /// Lines that did not fit, or could not be written.
    pub(super) lost: Counter,
}

#[derive(Debug)]
enum Item {
    Line(Line),
    /// Dropped once the lines before it are written.
    Flush(Sender<()>),
}

impl Queue {
    /// A queue, and the thread that takes its lines: `write` writes them, and counts the lost ones. The thread pauses after
    /// each write, so that it writes several lines at once. Waking it for each line cost more than all other work on logs: a
    /// fifth of the cost of a short connection.
    pub(super) fn start(
        thread: &str,
        pause: Duration,
        mut write: impl FnMut(&[Line], &Counter) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let (items, queued) = mpsc::channel();
        let (bytes, lost) = (Arc::<AtomicUsize>::default(), Counter::default());
        let (held, counted) = (Arc::clone(&bytes), lost.clone());
        let run = move || {
            while let Ok(first) = queued.recv() {
                let (mut lines, mut flushed) = (Vec::new(), Vec::new());
                for item in iter::once(first).chain(queued.try_iter()) {
                    match item {
                        Item::Line(line) => lines.push(line),
                        Item::Flush(done) => flushed.push(done),
                    }
                }
                held.fetch_sub(lines.iter().map(|line| line.text.len()).sum(), Ordering::Relaxed);
                write(&lines, &counted);
                drop((lines, flushed));
                thread::park_timeout(pause);
            }
        };
        let started = thread::Builder::new().name(thread.to_owned()).spawn(run);
        let started =
            started.map_err(|error| io::Error::other(format!("cannot start the log's thread: {error}")))?;
        Ok(Arc::new(Self { items, bytes, writer: started.thread().clone(), lost }))
    }

    /// Queues the line, or counts it as lost. A writer that pauses is woken only at [`WAKE_WRITER_BYTES`].
    pub(super) fn push(&self, line: Line) {
        let len = line.text.len();
        let before = self.bytes.fetch_add(len, Ordering::Relaxed);
        let fits = before + len <= MAX_QUEUED_BYTES;
        if before < WAKE_WRITER_BYTES && before + len >= WAKE_WRITER_BYTES {
            self.writer.unpark();
        }
        if !fits || self.items.send(Item::Line(line)).is_err() {
            self.bytes.fetch_sub(len, Ordering::Relaxed);
            self.lost.inc();
        }
    }

    /// Waits until the writer has written everything, for at most this time.
    pub(super) fn flush(&self, within: Duration) {
        let (done, written) = mpsc::channel();
        if self.items.send(Item::Flush(done)).is_ok() {
            self.writer.unpark();
            let _ = written.recv_timeout(within);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, RecvTimeoutError};

    use super::*;

    const SOON: Duration = Duration::from_secs(30);
    const PAUSE: Duration = Duration::from_millis(10);

    fn line(len: usize) -> Line {
        Line { severity: Severity::Info, text: "x".repeat(len) }
    }

    /// A queue whose writer reports how many lines it took each time, and then waits for a permit.
    fn queue() -> (Arc<Queue>, Receiver<usize>, Sender<()>) {
        let ((tell, told), (permit, permits)) = (mpsc::channel(), mpsc::channel());
        let write = move |lines: &[Line], _: &Counter| {
            let _ = tell.send(lines.len());
            permits.recv().unwrap_or_default();
        };
        (Queue::start("test", PAUSE, write).expect("starts"), told, permit)
    }

    #[test]
    fn lines_beyond_the_limit_are_counted() {
        let (queue, told, permit) = queue();
        queue.push(line(1));
        assert_eq!(told.recv_timeout(SOON), Ok(1));
        queue.push(line(MAX_QUEUED_BYTES - 1));
        queue.push(line(2));
        queue.push(line(1));
        assert_eq!(queue.lost.get(), 1, "what is being written does not count");
        drop(permit);
        queue.flush(SOON);
        queue.push(line(MAX_QUEUED_BYTES));
        assert_eq!(queue.lost.get(), 1, "what was written makes room");
    }

    /// In its pause the writer takes no line, until there are many or a flush.
    #[test]
    fn lines_of_one_pause_are_written_together() {
        let (tell, told) = mpsc::channel();
        let write = move |lines: &[Line], _: &Counter| {
            let _ = tell.send(lines.len());
        };
        let queue = Queue::start("test", PAUSE, write).expect("starts");
        let began = tokio::time::Instant::now();
        let mut pushed = 0;
        while began.elapsed() < 20 * PAUSE {
            queue.push(line(1));
            pushed += 1;
        }
        queue.flush(SOON);
        let writes: Vec<usize> = told.try_iter().collect();
        assert_eq!(writes.iter().sum::<usize>(), pushed);
        assert!(writes.len() <= 23, "{} writes of {pushed} lines", writes.len());
    }

    #[test]
    fn the_end_comes_behind_the_last_line() {
        let (queue, told, permit) = queue();
        queue.push(line(1));
        assert_eq!(told.recv_timeout(SOON), Ok(1));
        queue.push(line(1));
        drop((queue, permit));
        assert_eq!(told.recv_timeout(SOON), Ok(1));
        assert_eq!(told.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn lines_that_come_while_the_writer_is_busy_are_written_together() {
        let (queue, told, permit) = queue();
        queue.push(line(1));
        assert_eq!(told.recv_timeout(SOON), Ok(1));
        (0..3).for_each(|_| queue.push(line(1)));
        queue.flush(Duration::ZERO);
        drop(permit);
        queue.flush(SOON);
        assert_eq!(told.try_recv(), Ok(3));
        assert_eq!(queue.lost.get(), 0);
    }
}
