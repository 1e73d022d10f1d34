//! The threads on which peers shake hands: beside those that move payload, and behind them in the scheduler's eyes.

use std::io;

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::gettid;
use tokio::runtime::{Builder, Handle, Runtime};

/// How much nicer these threads are than the process. Beside a busy thread that moves payload on the same core they get a
/// tenth of it, which is some hundred handshakes a second.
const NICER: i32 = 10;

/// The least urgent that Linux has.
const NICEST: i32 = 19;

/// The threads of handshakes. A handshake's cryptography takes 0.2 to 1 ms, so that each flood of them takes one core for a
/// quarter of the cores, four at most. Dropping it ends what they do.
#[derive(Debug)]
pub struct HandshakeRuntime(Option<Runtime>);

impl HandshakeRuntime {
    /// Starts the threads.
    ///
    /// # Errors
    /// The operating system grants no thread or no epoll instance.
    pub fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let runtime = Builder::new_multi_thread()
            .worker_threads((cores / 4).clamp(1, 4))
            .thread_name("handshakes")
            .on_thread_start(lower_priority)
            .enable_all()
            .build()?;
        Ok(HandshakeRuntime(Some(runtime)))
    }

    /// To spawn on, and to bind listeners on.
    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("the runtime is taken by the drop alone").handle()
    }
}

impl Drop for HandshakeRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// On Linux the id of a thread stands for that thread alone.
fn lower_priority() {
    let thread = Some(gettid());
    let lowered = getpriority_process(thread)
        .and_then(|nice| setpriority_process(thread, nice.saturating_add(NICER).min(NICEST)));
    if let Err(error) = lowered {
        tracing::warn!(%error, "cannot lower the priority of the handshakes' threads");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_run_at_a_lower_priority_than_the_caller() {
        let own = getpriority_process(Some(gettid())).unwrap();
        let runtime = HandshakeRuntime::start().unwrap();
        let theirs = runtime.handle().spawn(async { getpriority_process(Some(gettid())).unwrap() });
        let theirs = futures_block_on(theirs);
        assert_eq!(theirs, (own + NICER).min(NICEST));
        assert_eq!(getpriority_process(Some(gettid())).unwrap(), own, "the caller's is as it was");
    }

    fn futures_block_on<T>(task: tokio::task::JoinHandle<T>) -> T {
        Builder::new_current_thread().build().unwrap().block_on(task).unwrap()
    }
}
