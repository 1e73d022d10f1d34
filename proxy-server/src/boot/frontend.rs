//! The frontend's listener: bound at the start or, if its port is taken, as soon as binding succeeds.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use flags::GoDuration;
use serve::logs::chain;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use transport::listen::{UnixSocket, bind_tcp};
use transport::tls::ServerTls;

use crate::args::{self, Config};
use crate::auth::AllowedNames;
use crate::dial::Dialer;
use crate::front::{FrontendListener, serve_frontend};
use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// Pause between attempts to bind; short because kube-apiserver waits for the listener.
const BIND_AGAIN: Duration = Duration::from_secs(1);
/// Pause between log lines about failed attempts: doubled from the first value up to the second.
const SAY_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

/// The parts of the server that the frontend's task needs.
pub(super) struct Frontend {
    pub(super) config: Config,
    pub(super) tls: Option<ServerTls>,
    pub(super) readiness: Arc<Readiness>,
    pub(super) dialer: Dialer,
    pub(super) metrics: Metrics,
    pub(super) lifetimes: TaskTracker,
    /// The runtime of the TLS handshakes.
    pub(super) handshakes: Handle,
}

impl Frontend {
    fn bind(&self) -> Result<FrontendListener> {
        bind(&self.config, self.tls.as_ref(), &self.readiness, &self.handshakes)
    }

    /// Serves the listener `bound`, or binds it first.
    pub(super) async fn serve(self, bound: Option<FrontendListener>, stop: CancellationToken) {
        let listener = match bound {
            Some(listener) => listener,
            None => tokio::select! {
                listener = insist(|| self.bind(), say) => listener,
                () = stop.cancelled() => return,
            },
        };
        self.readiness.listens();
        let mode = self.config.mode;
        let keepalive = self.config.frontend_keepalive_time;
        serve_frontend(mode, listener, self.dialer, self.metrics, keepalive, self.lifetimes, stop).await;
    }
}

/// Binds the listener; `tls` is for a port, whose handshakes run on `handshakes`. `readiness` learns whether clients can reach
/// the socket.
pub(super) fn bind(
    config: &Config,
    tls: Option<&ServerTls>,
    readiness: &Readiness,
    handshakes: &Handle,
) -> Result<FrontendListener> {
    Ok(match (&config.frontend, tls) {
        (args::FrontendListener::Unix { path, delete_existing }, _) => {
            let socket = UnixSocket::bind(path, *delete_existing)?;
            FrontendListener::Unix(
                socket.reporting(readiness.listening()).yielding(readiness.shutting_down()),
            )
        }
        (args::FrontendListener::Tcp { bind, .. }, Some(tls)) => {
            let names = AllowedNames::new(config.frontend_names.clone());
            let _on = handshakes.enter();
            let listener = bind_tcp(&bind.host.text(), bind.port)?;
            FrontendListener::Tls(listener, tls.clone(), names, handshakes.clone())
        }
        (args::FrontendListener::Tcp { .. }, None) => anyhow::bail!("a frontend's port has TLS"),
    })
}

/// Logs that the listener is not bound.
pub(super) fn say(error: &anyhow::Error) {
    let retry_in = GoDuration::from(BIND_AGAIN);
    tracing::error!(error = chain(error.as_ref()), %retry_in, "Frontend cannot listen, trying again");
}

/// Retries until binding succeeds; log lines become less frequent.
async fn insist<T>(mut bind: impl FnMut() -> Result<T>, mut say: impl FnMut(&anyhow::Error)) -> T {
    let (mut said, mut pause) = (Instant::now(), SAY_AGAIN.0);
    loop {
        sleep(BIND_AGAIN).await;
        match bind() {
            Ok(bound) => return bound,
            Err(error) if said.elapsed() >= pause => {
                say(&error);
                (said, pause) = (Instant::now(), (pause * 2).min(SAY_AGAIN.1));
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_taken_port_is_tried_every_second_and_said_ever_more_rarely() {
        let (began, mut tries, mut said) = (Instant::now(), 0, Vec::new());
        let bind = || {
            tries += 1;
            if tries < 100 { Err(anyhow::anyhow!("address already in use")) } else { Ok(()) }
        };
        insist(bind, |_| said.push(began.elapsed().as_secs())).await;
        assert_eq!(began.elapsed().as_secs(), 100);
        assert_eq!(said, [2, 6, 14, 30, 60, 90]);
    }
}
