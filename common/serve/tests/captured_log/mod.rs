//! The log of a unit test, for the crates of both programs.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use serve::logs::{Logs, Options, Severity};

/// While a process has a single subscriber, tracing asks the current thread's for its interest in a line that is new, and remembers
/// the answer. A thread of another test, which has none, would turn the line off for all. So there is always a second one.
static SECOND: LazyLock<tracing::Dispatch> =
    LazyLock::new(|| tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new()));

/// Takes this thread's log lines until it is dropped.
pub(crate) struct CapturedLog {
    logs: Logs,
    path: PathBuf,
    _folder: tempfile::TempDir,
    _default: tracing::subscriber::DefaultGuard,
}

impl CapturedLog {
    pub(crate) fn new() -> Self {
        LazyLock::force(&SECOND);
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
