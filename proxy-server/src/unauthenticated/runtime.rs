//! The threads for TLS handshakes: apart from the data path's threads, and at a lower priority.

use std::io;

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::gettid;
use tokio::runtime::{Builder, Runtime};

/// Added to the nice value of the process. Next to a busy data path thread on the same core these threads get a tenth of the
/// core, enough for some hundred handshakes per second.
const NICER: i32 = 10;

/// The largest nice value in Linux.
const NICEST: i32 = 19;

/// Starts the handshake threads. The cryptography of a handshake takes 0.2 to 1 ms, so a flood of handshakes uses at most a
/// quarter of the cores: at least one and at most four.
///
/// # Errors
/// The operating system provides no thread or no epoll instance.
pub fn handshake_runtime() -> io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Builder::new_multi_thread()
        .worker_threads((cores / 4).clamp(1, 4))
        .thread_name("handshakes")
        .on_thread_start(lower_priority)
        .enable_all()
        .build()
}

/// On Linux the id of a thread selects that thread alone.
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
        let runtime = handshake_runtime().unwrap();
        let theirs = runtime.handle().spawn(async { getpriority_process(Some(gettid())).unwrap() });
        let theirs = futures_block_on(theirs);
        assert_eq!(theirs, (own + NICER).min(NICEST));
        assert_eq!(getpriority_process(Some(gettid())).unwrap(), own, "the caller's is as it was");
    }

    fn futures_block_on<T>(task: tokio::task::JoinHandle<T>) -> T {
        Builder::new_current_thread().build().unwrap().block_on(task).unwrap()
    }
}
