//! How an operator stops a process: SIGTERM or SIGINT, once politely, twice for good.
//!
//! What the stages mean is the binary's own: the server shuts down and, at the second, exits at once; the agent
//! drains, and then stops. Rust's runtime ignores SIGPIPE already.

use std::io;

use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Counts signals from [`Signals::install`] on. Clones see the same.
#[derive(Debug, Clone)]
pub struct Signals(watch::Receiver<usize>);

impl Signals {
    /// Takes SIGTERM and SIGINT over from the system's default, which is to die. They are received on this runtime:
    /// one that a busy data plane cannot delay.
    pub fn install(runtime: &Handle) -> io::Result<Self> {
        let _context = runtime.enter();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (count, counted) = watch::channel(0);
        runtime.spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                    () = count.closed() => return,
                };
                count.send_modify(|count| *count += 1);
                match *count.borrow() {
                    1 => tracing::info!(target: "v2", signal = name, "Received first signal"),
                    2 => tracing::info!(target: "v2", signal = name, "Received second signal"),
                    nth => tracing::info!(signal = name, nth, "received another signal"),
                }
            }
        });
        Ok(Self(counted))
    }

    /// Resolves at the first signal, at once if it was received before.
    pub async fn first(&self) {
        self.reached(1).await;
    }

    /// Resolves at the second signal, at once if it was received before.
    pub async fn second(&self) {
        self.reached(2).await;
    }

    async fn reached(&self, wanted: usize) {
        if self.0.clone().wait_for(|count| *count >= wanted).await.is_err() {
            // The runtime that receives signals is gone: none will come.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn two_stages() {
        let signals = Signals::install(&Handle::current()).expect("installs");
        let later = signals.clone();
        let mut second = std::pin::pin!(later.second());
        kill_process(getpid(), Signal::INT).expect("a signal to oneself");
        signals.first().await;
        signals.first().await;
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut second).await.is_err());
        kill_process(getpid(), Signal::TERM).expect("a signal to oneself");
        second.await;
    }
}
