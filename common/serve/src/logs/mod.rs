//! The log: klog's lines (or JSON) for what `tracing` reports, never in the way of the data.
//!
//! An event is rendered by the task that reports it, put into a bounded queue and written by a thread of its own, which
//! rests for 10 ms when it has written: what comes meanwhile is written together. A process that is killed loses that much.
//! When the queue is full (a reader of standard error that stopped, a full disk) lines are lost, counted, and the
//! count is said as soon as something can be written again. Whatever a peer sends, it cannot forge a line: control
//! characters are escaped in messages and values alike.
//!
//! Verbosity is klog's; `tracing` has five levels, and they are the levels at which the Go binaries log:
//!
//! | `-v` | shown from | what that is |
//! |---|---|---|
//! | 0 | WARN | what an operator should look at |
//! | 1, 2 | INFO | the life of the process, of agents and of streams to servers; failed dials |
//! | 3, 4 (default) | DEBUG | the life of connections: begin and end |
//! | 5 and above | TRACE | packets |
//!
//! An event that the Go programs have too is written in their words and with their keys, and shown from their `-v`. Where
//! that is not the first of its row, the event's target names it: `info!(target: "v2", agentID = %Peer(id), "Agent connected")`.
//! A message with fields is quoted, as klog's `InfoS` and `ErrorS` do; one without is not, as with `Infof`.
//!
//! Libraries are shown from WARN, from INFO at `-v=6`, from DEBUG at `-v=8`, and never lower: their traces contain
//! headers. `--vmodule` raises single files (it never lowers, nor does klog's): a pattern (`*`, `?`) is matched with
//! the file's name without `.rs` (a `mod.rs` has its folder's), or with its path if it contains a slash.
//!
//! A `--log-file` that reaches its size is emptied and begun anew, as klog does. Spans are not recorded; an event
//! names its own fields. Times are UTC (klog's are local, which is the same in a container).

mod escape;
mod file;
mod limit;
mod line;
mod queue;
mod subscriber;
#[cfg(test)]
mod tests;
mod verbosity;
mod writer;

use std::io;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

pub use escape::Peer;
pub use flags::{LogFormat as Format, LogOptions as Options, Severity};
pub use limit::{LogLimit, network};
pub use subscriber::Subscriber;

use crate::metrics::Registry;
use queue::Queue;

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file, or all folders that were tried, cannot be written.
    #[error("cannot open the log file {path} (--log-file, --log-dir): {source}")]
    Open {
        /// What could not be opened.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The writer's thread cannot be started.
    #[error("cannot start the log's thread: {0}")]
    Thread(#[source] io::Error),
    /// Logging was started before.
    #[error("logging was started twice")]
    Twice,
}

/// The running log. Dropping it writes what is queued, for two seconds at most.
#[derive(Debug)]
pub struct Logs {
    queue: Arc<Queue>,
}

/// How long a process that ends waits for its last lines.
const FAREWELL: Duration = Duration::from_secs(2);
/// The same for one that is told to end at once.
const AT_ONCE: Duration = Duration::from_millis(100);

impl Logs {
    /// Opens the outputs and makes this the process's log.
    pub fn start(options: &Options) -> Result<Self, LogError> {
        let (subscriber, logs) = Self::build(options)?;
        tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Twice)?;
        Ok(logs)
    }

    /// The subscriber by itself, for `tracing::subscriber::with_default`.
    pub fn build(options: &Options) -> Result<(Subscriber, Self), LogError> {
        let queue = Arc::new(Queue::default());
        writer::start(options, Arc::clone(&queue))?;
        Ok((Subscriber::new(options, Arc::clone(&queue)), Self { queue }))
    }

    /// Registers `log_lines_lost_total` under this prefix.
    pub fn register(&self, registry: &mut Registry, prefix: &str) {
        let help = "Log lines that could not be written";
        registry.sub_registry_with_prefix(prefix).register(
            "log_lines_lost_total",
            help,
            self.queue.lost.clone(),
        );
    }

    /// Lines lost so far.
    pub fn lost(&self) -> u64 {
        self.queue.lost.get()
    }

    /// Waits until everything reported so far is written (or lost), but not for longer than this. Blocks the
    /// thread: for a process's end.
    pub fn flush(&self, within: Duration) {
        self.queue.flush(within);
    }

    /// What ends the process at once, from wherever, with what was reported so far.
    pub fn last_words(&self) -> LastWords {
        LastWords(Arc::clone(&self.queue))
    }
}

/// See [`Logs::last_words`].
#[derive(Debug, Clone)]
pub struct LastWords(Arc<Queue>);

impl LastWords {
    /// Writes what is queued and says the one line, then ends the process with `code`: after a fifth of a second at the
    /// latest, whether standard error takes it or not.
    pub fn exit(self, message: &'static str, code: i32) -> ! {
        let (done, ended) = mpsc::channel();
        // Who writes to a standard error whose reader has stopped waits for ever.
        let say = move || {
            self.0.flush(AT_ONCE);
            fatal(message);
            let _ = done.send(());
        };
        let said = thread::Builder::new().name("last words".to_owned()).spawn(say);
        if said.is_ok() {
            let _ = ended.recv_timeout(2 * AT_ONCE);
        }
        std::process::exit(code)
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        self.flush(FAREWELL);
        self.queue.close();
    }
}

/// An error and its causes, each said once: many texts end with their cause's already.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = text + ": " + &said;
        }
        cause = error.source();
    }
    text
}

/// Says the one line with which a process gives up, on standard error, whether there is a log or not.
pub fn fatal(message: &str) {
    let mut line = String::with_capacity(message.len() + 1);
    escape::plain(&mut line, message);
    line.push('\n');
    // There is nobody left to tell about a failure.
    let _ = io::stderr().write_all(line.as_bytes());
}
