//! One thread for everything except data: operators' ports and signals.

use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A runtime on a thread named `ops`, so that a busy data path delays no probe, and a scrape no data.
///
/// Dropping it ends the thread and all its tasks.
#[derive(Debug)]
pub struct OpsRuntime {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How long the encoding of a profile may delay the process's end.
const LINGER: Duration = Duration::from_millis(100);

impl OpsRuntime {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name("ops-blocking")
            .max_blocking_threads(2)
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            // A message or a dropped sender both mean the end.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_timeout(LINGER);
        };
        let thread = thread::Builder::new().name("ops".to_owned()).spawn(run)?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// For spawning, and for [`super::serve`] and [`crate::signals::Signals::install`].
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for OpsRuntime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has already been reported.
            let _ = thread.join();
        }
    }
}
