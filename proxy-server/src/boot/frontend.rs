//! The frontends' listeners: each bound at the start or, if its port is taken, as soon as binding succeeds.

use std::time::Duration;

use anyhow::{Context, Result};
use flags::GoDuration;
use net::listen::{BindError, Reach, UnixSocket, bind_tcp, descriptor_limit};
use net::tls::ServerTls;
use serve::logs::chain;
use serve::statusz::Facts;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::args::{self, Config, FrontendConfig};
use crate::auth::AllowedNames;
use crate::frontend::{self, FrontendListener, Protocol, TlsPort, serve_frontend};
use crate::limits::unauthenticated_within;
use crate::metrics::FrontendName;
use crate::readiness::Readiness;

/// Pause between attempts to bind; short because kube-apiserver waits for the listener.
const BIND_AGAIN: Duration = Duration::from_secs(1);

/// A frontend, bound or not yet bound.
pub(super) struct Frontend {
    config: FrontendConfig,
    delete_existing_file: bool,
    keepalive_time: Duration,
    /// Its TLS if the frontend listens on a port.
    port: Option<TlsPort>,
    /// Whether clients can reach the socket.
    reach: Reach,
    /// The flag that asks for this listener.
    flag: &'static str,
    service: frontend::Frontend,
    /// Names the bound socket.
    facts: Facts,
    bound: Option<FrontendListener>,
}

impl Frontend {
    /// The frontends of `config`, not yet bound. Those on ports share the limit of unauthenticated connections equally, so
    /// that a flood at one takes no slot of another. All ports use `tls`.
    pub(super) fn all(
        config: &Config,
        service: &frontend::Frontend,
        readiness: &Readiness,
        handshakes: &Handle,
        facts: &Facts,
        tls: Option<&ServerTls>,
    ) -> Vec<Self> {
        let several = config.frontends.len() > 1;
        let is_port =
            |frontend: &&FrontendConfig| matches!(frontend.listener, args::FrontendListener::Tcp(_));
        let ports = config.frontends.iter().filter(is_port).count();
        let unauthenticated = (unauthenticated_within(descriptor_limit()) / ports.max(1)).max(1);
        let frontends = config.frontends.iter().zip(readiness.listening());
        let unbound = |(frontend, reach): (&FrontendConfig, _)| {
            let name = several.then(|| FrontendName(frontend.to_string().leak()));
            if let Some(name) = name {
                service.metrics.frontend_connections.show(name);
            }
            let names = AllowedNames::new(config.frontend.frontend_allowed_names.clone());
            let (tls, handshakes) = (tls.filter(|_| is_port(&frontend)).cloned(), handshakes.clone());
            Frontend {
                config: frontend.clone(),
                delete_existing_file: config.frontend.delete_existing_uds_file,
                keepalive_time: config.frontend.frontend_keepalive_time,
                port: tls.map(|tls| TlsPort { tls, names, unauthenticated, handshakes }),
                reach,
                flag: match &frontend.listener {
                    _ if config.changed_flags.iter().any(|(flag, _)| *flag == "frontend") => "--frontend",
                    args::FrontendListener::Unix(_) => "--uds-name",
                    args::FrontendListener::Tcp(_) => "--server-port",
                },
                service: frontend::Frontend { name, ..service.clone() },
                facts: facts.clone(),
                bound: None,
            }
        };
        frontends.map(unbound).collect()
    }

    /// Tries to bind the listener. As in Go, a port of the HTTP CONNECT frontend that cannot be bound now is no error: `serve`
    /// tries again.
    pub(super) fn bind_once(mut self) -> Result<Self> {
        match self.bind() {
            Ok(listener) => self.bound = Some(listener),
            Err(error) if self.config.protocol == Protocol::HttpConnect && error.is::<BindError>() => {
                self.log_failure(&error);
            }
            Err(error) => return Err(error),
        }
        Ok(self)
    }

    fn bind(&self) -> Result<FrontendListener> {
        let bound = self.listener().context(self.flag);
        bound.inspect_err(|error| self.reach.set(Some(chain(error.as_ref()))))
    }

    fn listener(&self) -> Result<FrontendListener> {
        let listener = match (&self.config.listener, &self.port) {
            (args::FrontendListener::Unix(path), _) => {
                let socket = UnixSocket::bind(path, self.delete_existing_file)?;
                let socket = socket.reporting(self.reach.clone());
                FrontendListener::Unix(socket.yielding(self.service.lifetimes.draining.clone()))
            }
            (args::FrontendListener::Tcp(bind), Some(port)) => {
                let _on = port.handshakes.enter();
                FrontendListener::Tls(bind_tcp(bind.host.text(), bind.port)?, port.clone())
            }
            (args::FrontendListener::Tcp(_), None) => anyhow::bail!("a frontend's port has TLS"),
        };
        self.reach.set(None);
        self.facts.listening("frontend", listener.address()?, self.config.protocol.name());
        Ok(listener)
    }

    /// Serves the listener until the server stops; if necessary it first retries until it has bound it.
    pub(super) async fn serve(mut self) {
        let listener = loop {
            if let Some(listener) = self.bound.take() {
                break listener;
            }
            tokio::select! {
                () = sleep(BIND_AGAIN) => {}
                () = self.service.lifetimes.stop.cancelled() => return,
            }
            // A name server may not answer, and this thread carries connections.
            let bound = spawn_blocking(move || {
                self.bound = self.bind().inspect_err(|error| self.log_failure(error)).ok();
                self
            });
            let Ok(frontend) = bound.await else { return };
            self = frontend;
        };
        serve_frontend(self.config.protocol, listener, self.service, self.keepalive_time).await;
    }

    /// Logs that the listener is not bound.
    fn log_failure(&self, error: &anyhow::Error) {
        if let Some(suppressed) = self.service.logs.due_for("bind", self.config.to_string()) {
            let retry_in = GoDuration::from(BIND_AGAIN);
            tracing::error!(
                error = chain(error.as_ref()), %retry_in, suppressed, "Frontend cannot listen, trying again"
            );
        }
    }
}
