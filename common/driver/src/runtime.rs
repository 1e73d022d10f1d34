//! The runtime of the data path.

use tokio::runtime::{Builder, Runtime};

/// The runtime of the data path. On one or two cores it has one thread: a link runs on one core, and wake-ups across
/// cores cost more than they gain (fan-out of small messages: 58,000/s with one thread, 37,000/s with several). On more
/// cores links spread over half of them, eight at most; the peers and the kernel need the others. There no link has a
/// thread of its own: an idle thread takes waiting tasks from a busy one.
///
/// The runtime polls the sockets after `event_interval` turns of tasks, so that a small request during bulk transfers waits for as
/// many. With several threads an idle one polls the sockets; the interval matters when none is idle.
///
/// # Errors
/// The operating system refuses a thread or an epoll instance.
pub fn data_runtime(event_interval: u32) -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    on_cores(cores, event_interval)
}

fn on_cores(cores: usize, event_interval: u32) -> std::io::Result<Runtime> {
    let mut builder = if cores <= 2 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    if cores > 2 {
        builder.worker_threads((cores / 2).clamp(2, 8));
    }
    builder.event_interval(event_interval).enable_all().thread_name("data").build()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream as StdStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::task::Poll;
    use std::time::Duration;

    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;

    use super::*;

    /// A task that is always ready, like a link during bulk transfers, sends a byte in its turn `sent`. Returns how
    /// many further turns the task has before the byte's reader runs.
    fn turns_before_a_read(event_interval: u32, sent: usize) -> usize {
        on_cores(1, event_interval).unwrap().block_on(async {
            let (mut here, there) = StdStream::pair().unwrap();
            there.set_nonblocking(true).unwrap();
            let mut there = UnixStream::from_std(there).unwrap();
            let turn = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&turn);
            let busy = tokio::spawn(poll_fn(move |cx| {
                if counted.fetch_add(1, Ordering::Relaxed) + 1 == sent {
                    here.write_all(&[1]).unwrap();
                }
                cx.waker().wake_by_ref();
                Poll::<()>::Pending
            }));
            let reader = tokio::spawn(async move {
                there.read_u8().await.unwrap();
                turn.load(Ordering::Relaxed) - sent
            });
            let between = reader.await.unwrap();
            busy.abort();
            between
        })
    }

    #[test]
    fn small_sender_waits_for_one_turn_of_a_busy_task() {
        // At any position in tokio's interval of 61 turns.
        let most = |interval| (1_000..1_064).map(|sent| turns_before_a_read(interval, sent)).max().unwrap();
        let (each, eighth) = (most(1), most(8));
        assert!(each <= 2, "{each} turns");
        assert!(eighth > 2 * each, "{eighth} turns: the runtime looks often by itself");
    }

    /// Two tasks of one thread, like two lanes that one agent has opened, each have a turn that ends only if the other has one at
    /// the same time. Returns whether both ended.
    fn turns_overlap(cores: usize, limit: Duration) -> bool {
        let ((to_first, first), (to_second, second)) = (channel(), channel());
        on_cores(cores, 1).unwrap().block_on(async {
            let lanes = tokio::spawn(async move {
                let turn = |to: std::sync::mpsc::Sender<()>, from: std::sync::mpsc::Receiver<()>| {
                    tokio::spawn(async move { to.send(()).is_ok() && from.recv_timeout(limit).is_ok() })
                };
                (turn(to_second, first), turn(to_first, second))
            });
            let (one, other) = lanes.await.unwrap();
            one.await.unwrap() && other.await.unwrap()
        })
    }

    #[test]
    fn busy_lanes_run_at_the_same_time_if_there_are_cores() {
        assert!(turns_overlap(4, Duration::from_secs(60)));
        assert!(!turns_overlap(2, Duration::from_millis(1)), "one thread");
    }
}
