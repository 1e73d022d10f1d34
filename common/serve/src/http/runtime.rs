//! One thread for everything except data: operators' ports and signals.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

/// A runtime on a thread named `ops`, so that a busy data path delays no probe, and a scrape no data.
///
/// Dropping it ends the thread and all its tasks.
#[derive(Debug)]
pub struct OpsRuntime {
    handle: Handle,
    runtime: Option<Runtime>,
}

/// How long the encoding of a profile may delay the process's end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(100);

impl OpsRuntime {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .thread_name("ops")
            // Silent name servers and hung file systems occupy some.
            .max_blocking_threads(8)
            .build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// For spawning, and for [`super::serve`] and [`crate::signals::Signals::install`].
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs `task` until it ends or the handle is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(self.handle.spawn(task))
    }
}

impl Drop for OpsRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        }
    }
}
