//! The log of a test.

use std::path::PathBuf;
use std::time::Duration;

use serve::logs::{Logs, Options, Severity};

/// Takes this thread's log lines until it is dropped.
pub(crate) struct CapturedLog {
    logs: Logs,
    path: PathBuf,
    _folder: tempfile::TempDir,
    _default: tracing::subscriber::DefaultGuard,
}

impl CapturedLog {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let options = Options {
            logtostderr: false,
            stderrthreshold: Severity::Fatal,
            log_file: Some(path.clone()),
            ..Options::default()
        };
        let (subscriber, logs) = Logs::build(&options).unwrap();
        Self { logs, path, _folder: folder, _default: tracing::subscriber::set_default(subscriber) }
    }

    /// All lines so far.
    pub(crate) fn text(&self) -> String {
        self.logs.flush(Duration::from_secs(10));
        std::fs::read_to_string(&self.path).unwrap()
    }
}
