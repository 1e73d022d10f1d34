//! The runtime that moves payload.

use tokio::runtime::{Builder, Runtime};

/// How often the runtime looks which sockets have become ready, while there is always a task to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// After each task. For few tasks, each of which moves up to half a MiB in a turn: what has little to say beside bulk
    /// transfers waits for one such turn, not for tokio's 61 (half of them less to wait for a ping beside 16 downloads, at
    /// no cost in bulk).
    Often,
    /// As tokio has it. For a task of each client, whose turns are short: a look after each costs a seventh of the
    /// small messages of 64 gRPC clients.
    Seldom,
}

/// The runtime of the data path. On one or two cores it is one thread: a link is one owner on one core, and
/// wake-ups across cores cost more than they bring (fan-out of small messages: 58,000 against 37,000 a second).
/// Beyond that links spread over half of the cores, eight at most; the peers and the kernel need the others.
///
/// # Errors
/// The operating system grants no thread or no epoll instance.
pub fn data_runtime(look: Look) -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    on_cores(cores, look)
}

fn on_cores(cores: usize, look: Look) -> std::io::Result<Runtime> {
    let mut builder = if cores <= 2 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    if cores > 2 {
        builder.worker_threads((cores / 2).clamp(2, 8));
    }
    if look == Look::Often {
        builder.event_interval(1);
    }
    builder.enable_all().thread_name("data").build()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream as StdStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;
    use tokio::task::coop;

    use super::*;

    const SENT: usize = 1_000;

    /// A task that always goes on, as a link beside bulk transfers, sends a byte in its 1000th turn: how many further
    /// turns it has before the byte's reader has its own.
    fn turns_before_a_read(look: Look) -> usize {
        on_cores(1, look).unwrap().block_on(async {
            let (mut here, there) = StdStream::pair().unwrap();
            there.set_nonblocking(true).unwrap();
            let mut there = UnixStream::from_std(there).unwrap();
            let turns = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&turns);
            let busy = tokio::spawn(coop::unconstrained(poll_fn(move |cx| {
                if counted.fetch_add(1, Ordering::Relaxed) == SENT {
                    here.write_all(&[1]).unwrap();
                }
                cx.waker().wake_by_ref();
                Poll::<()>::Pending
            })));
            let reader = tokio::spawn(async move {
                there.read_u8().await.unwrap();
                turns.load(Ordering::Relaxed) - SENT - 1
            });
            let between = reader.await.unwrap();
            busy.abort();
            between
        })
    }

    #[test]
    fn who_has_little_to_say_waits_for_one_turn_of_the_busy() {
        let (often, seldom) = (turns_before_a_read(Look::Often), turns_before_a_read(Look::Seldom));
        assert!(often <= 2, "{often} turns");
        assert!(seldom > often, "{seldom} turns: the runtime looks often by itself");
    }
}
