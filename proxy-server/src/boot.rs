//! From a configuration to a running server, and its graceful shutdown.
//!
//! [`Server::build`] binds all sockets. [`Server::run`] serves until the first signal, then drains: readiness fails at once,
//! open connections get `--graceful-shutdown-timeout`, then the listeners close, the lease is deleted and agent streams end
//! with status OK. The caller handles a second signal: it exits at once.
//!
//! The frontend continues to accept and dial while the server drains. kube-apiserver keeps idle connections to kubelets open
//! for minutes, and the server cannot distinguish an idle one from a `kubectl exec` that waits for its user. Neither may be
//! cut, so a drain usually lasts for the whole time-out. A closed frontend would leave a kube-apiserver that has only this
//! server without a tunnel for that time. A successor may start at any moment: it takes over the socket's path
//! ([`UnixSocket`](net::listen::UnixSocket) yields it), and this server keeps its connections. The server has drained
//! when no connection is left and none has arrived for [`IDLE_TIME`].
//!
//! If a listener's task or the ejection of agents ends before the first signal, which only a panic can cause, [`Server::run`]
//! fails, so that the supervisor restarts the process: it would be ready and serve nobody.

mod frontend;
mod kubernetes;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use driver::Bounds;
use flags::GoDuration;
use grpc::capabilities::Capabilities;
use net::listen::bind_links;
use net::tls::{ServerTls, ServerTlsOptions};
use serve::certificates::{CertificateSide, keep_fresh, keep_kubeconfig_shown};
use serve::http::health::Condition;
use serve::http::{OpsRuntime, ServerHandle, admin, health};
use serve::logs::LogLimit;
use serve::metrics::{Exposition, Registry};
use serve::process::Process;
use serve::signals::Signals;
use serve::statusz::Facts;
use serve::traces::Tracer;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::accept::Lifetimes;
use crate::agent_stream::{AgentListener, AgentService};
use crate::args::{Config, TlsFiles};
use crate::backends::{BackendManager, keep_sweeping};
use crate::dial::Dialer;
use crate::leases::LeaseController;
use crate::limits::{Budget, MAX_CONNECTIONS, MAX_PENDING_DIALS};
use crate::metrics::{self, Metrics, PREFIX};
use crate::probe::with_probe;
use crate::readiness::Readiness;
use crate::server_count::ServerCount;
use crate::statusz::StatusSources;

use frontend::Frontend;

/// The certificates of the listener for kube-apiserver; the files may change while the server runs.
const FRONTEND: CertificateSide = CertificateSide {
    name: "frontend",
    files: "--server-cert, --server-key, --server-ca-cert",
    cert: "server-cert",
    authorities: "server-ca-cert",
};

/// The certificates of the listener for agents.
const AGENTS: CertificateSide = CertificateSide {
    name: "agents",
    files: "--cluster-cert, --cluster-key, --cluster-ca-cert",
    cert: "cluster-cert",
    authorities: "cluster-ca-cert",
};

/// How long agent streams may take to end in order, after the connections have ended or their time is up.
const STREAM_END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a draining server without connections waits for another: a client may have connected and not sent its request yet.
const IDLE_TIME: Duration = Duration::from_millis(100);

/// A server whose sockets are bound.
pub struct Server {
    config: Config,
    agents: AgentListener,
    frontends: Vec<Frontend>,
    lifetimes: Lifetimes,
    ports: Vec<ServerHandle>,
    /// The ejection of agents.
    sweeps: AbortOnDropHandle<()>,
    /// Watches of files, and the status's history; dropping them ends them.
    background: Vec<AbortOnDropHandle<()>>,
    leases: Option<LeaseController>,
}

impl Server {
    /// Loads certificates and binds sockets; TLS handshakes run on `handshakes`. Must be called within a runtime.
    ///
    /// # Errors
    /// Misconfiguration, or a socket that cannot be bound.
    pub fn build(config: Config, process: &mut Process, handshakes: &Handle) -> Result<Self> {
        let (mut registry, ops) = (std::mem::take(&mut process.registry), &process.ops);
        let (id, flags, verbosity) = (&config.replica.server_id, &config.changed_flags, process.logs.level());
        let facts = Facts::new("proxy-server", env!("CARGO_PKG_VERSION"), id, flags, verbosity);
        let metrics = metrics::register(&mut registry);
        let service = ("konnectivity-server", id.clone());
        let tracer = Tracer::start(&config.records, service, &mut registry, PREFIX, ops.handle());
        let backends = BackendManager::with_selection(
            &config.replica.proxy_strategies,
            config.replica.agent_selection,
            config.replica.prefer_zone.as_ref(),
            metrics.routes.clone(),
        );
        let sweeps = ops.spawn(keep_sweeping(backends.clone(), metrics.outliers.clone()));
        let bounds = Bounds::new(config.flow.connection_memory_limit, config.flow.memory_limit);
        metrics.queued_bytes_limit.set(bounds.memory.limit() as i64);
        let timeout = config.replica.backend_dial_timeout.unwrap_or_default();
        let budget = Budget::new(MAX_PENDING_DIALS, MAX_CONNECTIONS);
        let (memory, dials) = (bounds.memory.clone(), metrics.dials.clone());
        let mut dialer = Dialer::new(backends.clone(), budget, memory, timeout, dials);
        dialer.tracer = tracer;
        let lifetimes = Lifetimes::default();
        let kubernetes = kubernetes::client(&config)?;
        let gate = kubernetes::agent_gate(&config, kubernetes.as_ref(), &metrics)?;
        let server_count = ServerCount::new(u32::try_from(config.replica.server_count).unwrap_or(u32::MAX));
        let count_file = config.replica.server_count_file.clone();
        let count_watch = count_file.map(|path| ops.spawn(server_count.clone().watch(path)));
        let service = Arc::new(AgentService {
            backends: backends.clone(),
            metrics: metrics.clone(),
            server_id: id.as_str().into(),
            server_count: server_count.clone(),
            keepalive: config.keepalive,
            capabilities: Capabilities::supported(config.flow.connection_flow_control),
            bounds,
            lifetimes: lifetimes.clone(),
            gate,
        });
        let tls = load_tls(&config, &metrics, AGENTS, &config.agent_tls)?;
        let listener = {
            let _on = handshakes.enter();
            bind_links(config.agents.agent_bind_address.text(), config.agents.agent_port)
                .context("--agent-port")?
        };
        facts.listening("agents", listener.local_addr()?, "grpc");
        let agents = AgentListener { listener, tls: tls.clone(), service, handshakes: handshakes.clone() };
        let names = config.frontends.iter().map(ToString::to_string);
        let readiness = Arc::new(Readiness::new(names, lifetimes.draining.clone()));
        let service = crate::frontend::Frontend {
            dialer,
            metrics: metrics.clone(),
            lifetimes: lifetimes.clone(),
            records: process.records.clone(),
            name: None,
            streams: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            logs: LogLimit::default(),
        };
        let frontend_tls = config.frontend_tls.as_ref();
        let frontend_tls =
            frontend_tls.map(|files| load_tls(&config, &metrics, FRONTEND, files)).transpose()?;
        let frontends =
            Frontend::all(&config, &service, &readiness, handshakes, &facts, frontend_tls.as_ref());
        let every = config.agents.certificate_reload_interval;
        let watch = |tls: Option<ServerTls>, side| {
            keep_fresh(ops.handle(), &facts, tls?, side, every, &metrics.certificates)
        };
        let of_frontends = watch(frontend_tls, FRONTEND);
        let expiry = kubernetes.as_ref().and_then(cluster::Client::certificate_expiry);
        let of_kubeconfig = keep_kubeconfig_shown(ops.handle(), &facts, expiry, every, &metrics.certificates);
        let of_agents = watch(Some(tls), AGENTS);
        let watches = of_agents.into_iter().chain(of_frontends).chain(of_kubeconfig).chain(count_watch);
        let background = watches.chain([ops.spawn(metrics.journal.clone().keep_history())]).collect();
        let frontends = frontends.into_iter().map(Frontend::bind_once).collect::<Result<_>>()?;
        let has_api = kubernetes.is_some();
        let lease = kubernetes::lease_settings(&config);
        let name = lease.as_ref().map(|lease| format!("{}/{}", lease.namespace, lease.name()));
        let status = StatusSources { facts, backends, metrics: metrics.clone(), lease: name, has_api };
        let ports = serve_ports(&config, registry, (status, service), (&readiness, server_count), ops);
        let leases = kubernetes
            .zip(lease)
            .map(|(client, lease)| LeaseController::start(ops.handle(), &client, lease, metrics.clone()));
        Ok(Server { config, agents, frontends, lifetimes, ports, sweeps, background, leases })
    }

    /// Serves until the first signal and then drains.
    ///
    /// # Errors
    /// A task that the server needs has ended before the first signal.
    pub async fn run(mut self, signals: &Signals) -> Result<()> {
        tracing::info!("Starting frontend server for client connections.");
        tracing::info!("Starting agent server for tunnel connections.");
        let mut agents = tokio::spawn(self.agents.serve());
        let mut frontends = JoinSet::new();
        for frontend in self.frontends {
            frontends.spawn(frontend.serve());
        }
        tracing::info!(server_id = self.config.replica.server_id, "Proxy server is running");
        tokio::select! {
            () = signals.first() => {}
            task = ended_early(&mut agents, &mut frontends, &mut self.sweeps) => {
                anyhow::bail!("the task of {task} has ended, exiting for a restart");
            }
        }

        self.lifetimes.draining.cancel();
        let connections = &self.lifetimes.connections;
        let grace = self.config.replica.graceful_shutdown_timeout.unwrap_or_default();
        tracing::info!("Shutting down server.");
        tracing::info!(connections = connections.len(), grace = %GoDuration::from(grace), "draining connections");
        let finished = tokio::time::timeout(grace, drained(connections)).await.is_ok();
        // Go's lines, and the number of connections that are cut.
        if finished && !grace.is_zero() {
            tracing::info!("Graceful shutdown completed successfully.");
        } else if !grace.is_zero() {
            let after = GoDuration::from(grace);
            tracing::warn!("Graceful shutdown timed out after {after}, forcing termination.");
            tracing::warn!(connections = connections.len(), "closing remaining connections");
        }
        self.lifetimes.stop.cancel();
        // Not earlier: agents count the replicas by leases, and keep this server's streams until they end. If the lease went
        // first, agents would not look for a successor that starts meanwhile, and it would have no agent until these streams
        // have ended.
        let lease = tokio::spawn(async move {
            if let Some(leases) = self.leases {
                leases.stop().await;
            }
        });
        let ended = async {
            while frontends.join_next().await.is_some() {}
            let _ = agents.await;
        };
        let _ = tokio::time::timeout(STREAM_END_TIMEOUT, ended).await;
        drop((self.sweeps, self.background));
        // `stop` has its own time limit.
        let _ = lease.await;
        for port in self.ports {
            port.stop(Duration::from_millis(500)).await;
        }
        tracing::info!("Proxy server has stopped");
        Ok(())
    }
}

/// Resolves with the name of the first task that ends.
async fn ended_early(
    agents: &mut JoinHandle<()>,
    frontends: &mut JoinSet<()>,
    sweeps: &mut AbortOnDropHandle<()>,
) -> &'static str {
    tokio::select! {
        _ = agents => "the agent listener",
        Some(_) = frontends.join_next() => "a frontend listener",
        _ = sweeps => "the ejection of agents",
    }
}

/// Resolves once no connection is left and none has arrived for [`IDLE_TIME`].
async fn drained(connections: &TaskTracker) {
    // `wait` returns only for a closed tracker; connections may still be added to it.
    connections.close();
    loop {
        connections.wait().await;
        tokio::time::sleep(IDLE_TIME).await;
        if connections.is_empty() {
            return;
        }
    }
}

/// The flags of `side` name the certificate, the key and the authorities.
fn load_tls(
    config: &Config,
    metrics: &Metrics,
    side: CertificateSide,
    TlsFiles { cert, key, client_ca }: &TlsFiles,
) -> Result<ServerTls> {
    let options = ServerTlsOptions {
        cert: cert.clone(),
        key: key.clone(),
        client_ca: client_ca.clone(),
        min_version: config.agents.tls_min_version.value,
        suites: config.agents.cipher_suites.value.clone(),
    };
    ServerTls::load(options, metrics.certificates.legacy_observer()).map_err(|error| {
        let files = [Some(cert), Some(key), client_ca.as_ref()].map(|file| file.map(PathBuf::as_path));
        let flags = error.flags(&side.files.split(", ").zip(files).collect::<Vec<_>>());
        anyhow::Error::new(error).context(flags)
    })
}

/// Starts the health and the admin port on their own thread.
fn serve_ports(
    config: &Config,
    registry: Registry,
    (status, frontend): (StatusSources, crate::frontend::Frontend),
    (readiness, server_count): (&Arc<Readiness>, ServerCount),
    ops: &OpsRuntime,
) -> Vec<ServerHandle> {
    let exposition = Exposition::new(registry);
    let (facts, backends, probed) = (status.facts.clone(), status.backends.clone(), status.backends.clone());
    let (readiness, policy) = (Arc::clone(readiness), config.ports.readiness_policy);
    let readiness = move || {
        let mut conditions = readiness.conditions(&backends, policy);
        conditions.extend(
            server_count.fault().map(|fault| Condition::extra("server-count-file", true, "").noting(fault)),
        );
        conditions
    };
    let health = health::server(readiness.clone(), exposition.clone());
    let admin = admin::server(exposition, config.profiling.enable_profiling);
    let admin = with_probe(admin, probed, config.ports.allow_probe_dials.then_some(frontend));
    let ports = [
        (&config.ports.health_bind_address, config.ports.health_port, health),
        (&config.ports.admin_bind_address, config.ports.admin_port, admin),
    ];
    let on_any_address = config.profiling.status_on_any_address;
    let document = move |query| status.clone().document(query);
    facts.serve_ports(ops.handle(), ports, on_any_address, readiness, document)
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test]
    async fn panic_of_a_listener_or_of_the_ejection_is_noticed() {
        let names = ["the agent listener", "a frontend listener", "the ejection of agents"];
        for (index, name) in names.into_iter().enumerate() {
            let task = |at| async move {
                assert_ne!(at, index, "injected");
                std::future::pending().await
            };
            let (mut agents, mut frontends) = (tokio::spawn(task(0)), JoinSet::new());
            frontends.spawn(task(1));
            let mut sweeps = AbortOnDropHandle::new(tokio::spawn(task(2)));
            assert_eq!(ended_early(&mut agents, &mut frontends, &mut sweeps).await, name);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_drained_once_nothing_arrives_any_more() {
        let (tracker, began) = (TaskTracker::new(), Instant::now());
        let arriving = tokio::spawn({
            let tracker = tracker.clone();
            async move {
                for _ in 0..10 {
                    let token = tracker.token();
                    sleep(IDLE_TIME).await;
                    drop(token);
                    sleep(IDLE_TIME / 2).await;
                }
            }
        });
        tokio::task::yield_now().await;
        drained(&tracker).await;
        assert!(arriving.is_finished());
        assert_eq!(began.elapsed(), IDLE_TIME * 31 / 2);
    }
}
