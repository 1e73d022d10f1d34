//! What both programs start before they serve: logs, metrics, signals, and the thread of the health and admin ports.

use std::io;

use flags::{LogOptions, RecordOptions};

use crate::http::OpsRuntime;
use crate::logs::{Logs, Records};
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
    pub records: Records,
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
        let logs = Logs::start(log).map_err(io::Error::other)?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        net::tls::verified_fips().map_err(io::Error::other)?;
        net::listen::raise_descriptor_limit()?;
        let mut registry = Registry::default();
        logs.register(&mut registry, prefix);
        count_panics(&mut registry, prefix);
        let records = Records::start(records.connection_log.as_deref()).map_err(io::Error::other)?;
        records.register(&mut registry, prefix);
        let ops = OpsRuntime::start()?;
        let signals = Signals::install(ops.handle(), &logs.last_words())?;
        Ok(Self { registry, signals, records, logs, ops })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.records.flush();
    }
}
