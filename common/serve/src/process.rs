//! What both programs start before they serve: logs, metrics, signals, and the thread of the health and admin ports.

use std::env::ArgsOs;
use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use flags::{Exit, LogOptions, RecordOptions};

use crate::http::OpsRuntime;
use crate::logs::{self, ConnectionLogWriter, Logs};
use crate::metrics::{Registry, count_panics};
use crate::signals::Signals;

/// A process that has started and does not serve yet.
#[derive(Debug)]
pub struct Process {
    /// The metrics.
    pub registry: Registry,
    /// The signals that have arrived.
    pub signals: Signals,
    /// The connection log.
    pub records: ConnectionLogWriter,
    /// The log.
    pub logs: Logs,
    /// Runs what must not wait for the data path. Dropped last: it handles a second signal while the log is written.
    pub ops: OpsRuntime,
}

impl Process {
    /// Starts the log with `warnings`, then the rest. `prefix` is that of the program's metrics.
    ///
    /// # Errors
    ///
    /// A log, the thread or the signals cannot be set up, the limit on descriptors is too low, or this build requires FIPS and does
    /// not have it.
    pub fn start(
        log: &LogOptions,
        records: &RecordOptions,
        warnings: &[String],
        prefix: &str,
    ) -> io::Result<Self> {
        let logs = Logs::start(log)?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        net::tls::verified_fips().map_err(io::Error::other)?;
        net::listen::raise_descriptor_limit()?;
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix(prefix);
        logs.register(own);
        count_panics(own);
        let records = ConnectionLogWriter::start(records.connection_log.as_deref())?;
        records.register(own);
        let ops = OpsRuntime::start()?;
        let signals = Signals::install(ops.handle(), &logs.exit_log())?;
        Ok(Self { registry, signals, records, logs, ops })
    }
}

/// Parses the command line and the environment of this process, and starts it. Ends with the line of the error, or with the exit
/// of the command line.
pub fn main<C, E: AsRef<dyn Error>>(
    parse: impl FnOnce(ArgsOs, fn(&str) -> Option<OsString>) -> Result<C, Exit>,
    start: impl FnOnce(C) -> Result<(), E>,
) -> ExitCode {
    match parse(std::env::args_os(), |name| std::env::var_os(name)).map(start) {
        // An error begins as cobra's.
        Err(exit) if exit.code > 0 => {
            let (log, line) = (exit.log.clone(), exit.stderr.clone());
            let code = Exit { stderr: format!("Error: {line}"), ..exit }.leave();
            if let Some(options) = log {
                logs::append_fatal(&options, line.trim_end());
            }
            code
        }
        Err(exit) => exit.leave(),
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            logs::fatal(&logs::chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.records.flush();
    }
}
