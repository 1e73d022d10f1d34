//! Stops a process by SIGTERM or SIGINT: gracefully at the first signal, at once at the second.
//!
//! The binary defines the stages: the server shuts down, and exits at once at the second signal; the agent drains, and
//! then stops. Rust's runtime already ignores SIGPIPE.
//!
//! Other signals have the same effect as on a Go program: SIGUSR1, SIGUSR2 and those of [`IGNORED_SIGNALS`] do nothing, SIGHUP and
//! SIGQUIT end it.
//! SIGQUIT has a handler because its default action writes a core dump, which contains private keys. SIGHUP has one
//! only in a container's first process, for which the kernel drops every signal without a handler. Elsewhere it has
//! none, so that `nohup` works.

use std::io;

use rustix::process::{Pid, Signal, getpid};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::logs::ExitLog;

/// The exit code of Go's runtime for SIGQUIT, and for a SIGHUP that the kernel dropped.
const GO_SIGNAL_EXIT: i32 = 2;

/// Do nothing, without a log line: a line beyond the limit of a file's size would raise the next SIGXFSZ.
const IGNORED_SIGNALS: [Signal; 7] =
    [Signal::XFSZ, Signal::XCPU, Signal::IO, Signal::POWER, Signal::ALARM, Signal::VTALARM, Signal::PROF];

/// Counts signals from [`Signals::install`] on. Clones share the count.
#[derive(Debug, Clone)]
pub struct Signals(watch::Receiver<usize>);

impl Signals {
    /// Handles SIGTERM and SIGINT, whose default action ends the process. `runtime` receives them: one that a busy data
    /// path cannot delay.
    pub fn install(runtime: &Handle, exit_log: &ExitLog) -> io::Result<Self> {
        let _context = runtime.enter();
        ignore(runtime, SignalKind::user_defined1(), "SIGUSR1")?;
        ignore(runtime, SignalKind::user_defined2(), "SIGUSR2")?;
        for ignored in IGNORED_SIGNALS {
            // The handler stays after the listener is dropped.
            drop(signal(SignalKind::from_raw(ignored.as_raw()))?);
        }
        end(runtime, SignalKind::quit(), "SIGQUIT: exiting at once", exit_log)?;
        if getpid() == Pid::INIT {
            end(runtime, SignalKind::hangup(), "SIGHUP: exiting at once", exit_log)?;
        }
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

    /// Resolves at the first signal, including an earlier one.
    pub async fn first(&self) {
        self.reached(1).await;
    }

    /// Resolves at the second signal, including an earlier one.
    pub async fn second(&self) {
        self.reached(2).await;
    }

    async fn reached(&self, wanted: usize) {
        if self.0.clone().wait_for(|count| *count >= wanted).await.is_err() {
            // The runtime that receives signals has ended: none will come.
            std::future::pending::<()>().await;
        }
    }
}

/// Makes the signal do nothing instead of ending the process.
fn ignore(runtime: &Handle, kind: SignalKind, name: &'static str) -> io::Result<()> {
    let mut received = signal(kind)?;
    runtime.spawn(async move {
        while received.recv().await.is_some() {
            tracing::debug!(signal = name, "Ignored signal");
        }
    });
    Ok(())
}

/// Makes the signal end the process.
fn end(runtime: &Handle, kind: SignalKind, message: &'static str, exit_log: &ExitLog) -> io::Result<()> {
    let (mut received, exit_log) = (signal(kind)?, exit_log.clone());
    runtime.spawn(async move {
        if received.recv().await.is_some() {
            exit_log.exit(message, GO_SIGNAL_EXIT);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::kill_process;

    use super::*;
    use crate::logs::{Logs, Options};

    #[tokio::test]
    async fn two_stages() {
        let (_subscriber, logs) = Logs::build(&Options::default()).expect("a log");
        let signals = Signals::install(&Handle::current(), &logs.exit_log()).expect("installs");
        // Without a handler this would end the process.
        kill_process(getpid(), Signal::USR1).expect("a signal to oneself");
        kill_process(getpid(), Signal::USR2).expect("a signal to oneself");
        for ignored in IGNORED_SIGNALS {
            kill_process(getpid(), ignored).expect("a signal to oneself");
        }
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
