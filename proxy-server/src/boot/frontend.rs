//! The frontend's listener: bound at the start or, if its port is taken, as soon as binding succeeds.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use flags::GoDuration;
use serve::logs::chain;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use transport::listen::{BindError, UnixSocket, bind_tcp};
use transport::tls::ServerTls;

use crate::args::{self, Config};
use crate::auth::AllowedNames;
use crate::frontend::{self, FrontendListener, Protocol, serve_frontend};
use crate::readiness::Readiness;

/// Pause between attempts to bind; short because kube-apiserver waits for the listener.
const BIND_AGAIN: Duration = Duration::from_secs(1);
/// Pause between log lines about failed attempts: doubled from the first value up to the second.
const SAY_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

/// The frontend, bound or not yet bound.
pub(super) struct Frontend {
    pub(super) config: Config,
    /// The TLS configuration, if the frontend listens on a port.
    pub(super) tls: Option<ServerTls>,
    /// Learns whether clients can reach the socket.
    pub(super) readiness: Arc<Readiness>,
    pub(super) service: frontend::Frontend,
    /// The runtime of the TLS handshakes.
    pub(super) handshakes: Handle,
    pub(super) bound: Option<FrontendListener>,
}

impl Frontend {
    /// Tries to bind the listener. As in Go, a port of the HTTP CONNECT frontend that cannot be bound now is no error: `serve`
    /// tries again.
    pub(super) fn bind_once(mut self) -> Result<Self> {
        match self.bind() {
            Ok(listener) => self.bound = Some(listener),
            Err(error) if self.config.mode == Protocol::HttpConnect && error.is::<BindError>() => say(&error),
            Err(error) => return Err(error),
        }
        Ok(self)
    }

    fn bind(&self) -> Result<FrontendListener> {
        let listener = match (&self.config.frontend, &self.tls) {
            (args::FrontendListener::Unix { path, delete_existing }, _) => {
                let socket = UnixSocket::bind(path, *delete_existing)?
                    .reporting(Arc::clone(&self.readiness.listening));
                FrontendListener::Unix(socket.yielding(Arc::clone(&self.readiness.shutting_down)))
            }
            (args::FrontendListener::Tcp { bind, .. }, Some(tls)) => {
                let names = AllowedNames::new(self.config.frontend_names.clone());
                let _on = self.handshakes.enter();
                let listener = bind_tcp(&bind.host.text(), bind.port)?;
                FrontendListener::Tls(listener, tls.clone(), names, self.handshakes.clone())
            }
            (args::FrontendListener::Tcp { .. }, None) => anyhow::bail!("a frontend's port has TLS"),
        };
        self.readiness.listens();
        Ok(listener)
    }

    /// Serves the listener until `stop`; binds it first if necessary.
    pub(super) async fn serve(mut self, stop: CancellationToken) {
        let listener = match self.bound.take() {
            Some(listener) => listener,
            None => tokio::select! {
                listener = insist(|| self.bind(), say) => listener,
                () = stop.cancelled() => return,
            },
        };
        let keepalive = self.config.frontend_keepalive_time;
        serve_frontend(self.config.mode, listener, self.service, keepalive, stop).await;
    }
}

/// Logs that the listener is not bound.
fn say(error: &anyhow::Error) {
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
