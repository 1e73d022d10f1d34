//! The log: writes `tracing` events as klog lines (or JSON), without delaying the data.
//!
//! The reporting task renders an event and puts it into a bounded queue; a separate thread writes it. That thread
//! pauses for 10 ms after each write, so that it writes several lines at once; a process that is killed loses at most
//! that much. When the queue is full (a stopped reader of standard error, a full disk) lines are lost and counted, and
//! the count is logged as soon as a write succeeds. A peer cannot forge a line: control characters are escaped in
//! messages and values.
//!
//! Verbosity is klog's, mapped to the five levels of `tracing`, at which the Go binaries log:
//!
//! | `-v` | shows | content |
//! |---|---|---|
//! | 0 | WARN | events that an operator should look at |
//! | 1, 2 | INFO | the life of the process, of agents and of streams to servers; failed dials |
//! | 3, 4 (default) | DEBUG | begin and end of connections |
//! | 5 and above | TRACE | packets |
//!
//! An event that the Go programs also log has Go's text and keys, and is shown from Go's `-v` on. If that is not the
//! first `-v` of its row, the event's target names it: `info!(target: "v2", agentID = %Peer(id), "Agent connected")`. A
//! message with fields is quoted, as by klog's `InfoS` and `ErrorS`; one without is not, as by `Infof`.
//!
//! Libraries are shown at WARN (h2 at ERROR), at INFO from `-v=6`, at DEBUG from `-v=8`, and never at TRACE, because their traces
//! contain headers. `--vmodule` raises the level of single files (it never lowers it, like klog's): a pattern (`*`,
//! `?`) is matched against the file's name without `.rs` (for a `mod.rs` its folder's name), or against its path if the
//! pattern contains a slash.
//!
//! A `--log-file` that reaches its maximum size is truncated, as by klog. Spans are not recorded; an event has all its
//! fields. Times are UTC (klog's are local, which is the same in a container).

mod connection_log;
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
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

pub use connection_log::{ConnectionLogWriter, milliseconds};
pub use escape::{Peer, shown_error};
pub use flags::{LogFormat as Format, LogOptions as Options, Severity};
pub use limit::{LogLimit, network};
pub(crate) use line::now as unix_now;
pub use subscriber::Subscriber;
pub use verbosity::VerbosityLevel;

use crate::metrics::Registry;
use queue::Queue;

/// The running log. Dropping it writes the queue, for two seconds at most.
#[derive(Debug)]
pub struct Logs {
    queue: Arc<Queue>,
    level: VerbosityLevel,
}

/// How long a process that ends waits for its last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for a process that must end at once.
const URGENT_FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

impl Logs {
    /// Opens the outputs and makes this the process's log.
    pub fn start(options: &Options) -> io::Result<Self> {
        let _ = OPTIONS.set(options.clone());
        let (subscriber, logs) = Self::build(options)?;
        tracing::subscriber::set_global_default(subscriber)
            .map_err(|_| io::Error::other("logging was started twice"))?;
        Ok(logs)
    }

    /// Only the subscriber, for `tracing::subscriber::with_default`.
    pub fn build(options: &Options) -> io::Result<(Subscriber, Self)> {
        let queue = writer::start(options)?;
        let level = VerbosityLevel::new(options.verbosity);
        let subscriber = Subscriber::new(options, level.clone(), Arc::clone(&queue));
        Ok((subscriber, Self { queue, level }))
    }

    /// The verbosity, to read and change it while the process runs.
    pub fn level(&self) -> VerbosityLevel {
        self.level.clone()
    }

    /// Registers `log_lines_lost_total`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Log lines that could not be written";
        registry.register("log_lines_lost_total", help, self.queue.lost.clone());
    }

    /// Waits until everything reported so far is written (or lost), for at most this time. Blocks the thread: for use
    /// at the process's end.
    pub fn flush(&self, within: Duration) {
        self.queue.flush(within);
    }

    /// A handle that ends the process at once from any thread, after writing the queue.
    pub fn exit_log(&self) -> ExitLog {
        ExitLog(Arc::clone(&self.queue))
    }
}

/// See [`Logs::exit_log`].
#[derive(Debug, Clone)]
pub struct ExitLog(Arc<Queue>);

impl ExitLog {
    /// Writes the queue and one line, then ends the process with `code`, after 200 ms at the latest, even if standard
    /// error blocks.
    pub fn exit(self, message: &'static str, code: i32) -> ! {
        let (done, ended) = mpsc::channel();
        // A write to a standard error with a stopped reader blocks without end.
        let say = move || {
            self.0.flush(URGENT_FLUSH_TIMEOUT);
            fatal(message);
            let _ = done.send(());
        };
        let said = thread::Builder::new().name("exit log".to_owned()).spawn(say);
        if said.is_ok() {
            let _ = ended.recv_timeout(2 * URGENT_FLUSH_TIMEOUT);
        }
        std::process::exit(code)
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        self.flush(FLUSH_TIMEOUT);
    }
}

/// An error and its causes, each text once: many texts already contain their cause's.
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

/// The options of the process's log, once it starts.
static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Writes the last line of a process that gives up to standard error, with or without a log, and to `--log-file`.
pub fn fatal(message: &str) {
    to_stderr(message);
    if let Some(options) = OPTIONS.get() {
        append_fatal(options, message);
    }
}

/// Writes a line to standard error, with or without a log.
fn to_stderr(message: &str) {
    let line = line::Style::bare(OPTIONS.get().map_or(Format::Text, |options| options.format)).fatal(message);
    // A failure cannot be reported anywhere.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Appends the last line of a process that gives up to `--log-file`, if the log is written there.
pub fn append_fatal(options: &Options, message: &str) {
    let Some(path) = options.log_file.as_ref().filter(|_| !options.logtostderr) else { return };
    let line = line::Style::new(options).fatal(message);
    // Standard error has the line, too.
    let _ = file::open(path, true).and_then(|mut file| file.write_all(line.as_bytes()));
}
