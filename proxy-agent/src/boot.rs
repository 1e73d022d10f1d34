//! From a configuration to a running agent, and its shutdown.
//!
//! The first signal drains: the agent asks every server for no new dials and opens no further stream; connections continue. The
//! second signal stops the agent, as in Go. With `--drain-timeout` the agent also stops when it is idle, or at that time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use cluster::Client;
use driver::Bounds;
use grpc::capabilities::Capabilities;
use net::env_proxy::EnvProxy;
use net::tls::{ClientTls, ClientTlsOptions, TlsError};
use serve::certificates::{CertificateSide, keep_fresh, keep_kubeconfig_shown};
use serve::http::{OpsRuntime, ServerHandle, admin, health};
use serve::metrics::{Exposition, Registry};
use serve::process::Process;
use serve::signals::Signals;
use serve::statusz::Facts;
use serve::traces::Tracer;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::args::Config;
use crate::client_set::{
    AgentMetadata, ClientSet, GrpcConnector, Leased, RunEnd, SERVER_DIAL_TIMEOUT, Servers, SyncSettings,
};
use crate::endpoint::{DestinationPolicy, Dialer, SystemResolver};
use crate::leases::LeaseCounter;
use crate::link::{InFlight, Links};
use crate::metrics::{self, Metrics, PREFIX};
use crate::statusz::StatusSources;

/// The certificates for handshakes with servers; the agent has no other handshakes. The files may change while it runs. The
/// token file needs no watch, because it is read for each connect.
const SERVERS: CertificateSide = CertificateSide {
    name: "servers",
    files: "--ca-cert, --agent-cert, --agent-key",
    cert: "agent-cert",
    authorities: "ca-cert",
};

/// An agent that is ready to connect.
pub struct Agent {
    set: ClientSet<GrpcConnector<SystemResolver>, Links<SystemResolver>>,
    ports: Vec<ServerHandle>,
    config: Config,
    /// Dials and connections over all streams.
    in_flight: InFlight,
    drain: CancellationToken,
    /// Certificate watches and the status's history; dropping them ends them.
    _background: Vec<AbortOnDropHandle<()>>,
}

impl Agent {
    /// Loads certificates and opens the health and admin ports. Must be called within a runtime.
    ///
    /// # Errors
    /// Misconfiguration, such as unreadable certificates.
    pub fn build(config: Config, process: &mut Process) -> Result<Self> {
        let (mut registry, ops) = (std::mem::take(&mut process.registry), &process.ops);
        let (id, flags, verbosity) = (&config.servers.agent_id, &config.changed_flags, process.logs.level());
        let facts = Facts::new("proxy-agent", env!("CARGO_PKG_VERSION"), id, flags, verbosity);
        let metrics = metrics::register(&mut registry);
        let service = ("konnectivity-agent", id.clone());
        let tracer = Tracer::start(&config.records, service, &mut registry, PREFIX, ops.handle());
        let resolver = Arc::new(SystemResolver::new(metrics.lookups.clone()));
        let policy = DestinationPolicy {
            cloud_metadata: config.servers.allow_cloud_metadata,
            deny: config.servers.deny_destinations.clone(),
            allow: config.servers.allow_destinations.clone(),
        };
        let bounds = Bounds::new(config.flow.connection_memory_limit, config.flow.memory_limit);
        metrics.queued_bytes_limit.set(bounds.memory.limit() as i64);
        let dialer = Dialer::new(Arc::clone(&resolver), policy);
        let observed = (process.records.clone(), tracer);
        let links = Links::new(id, dialer, bounds, metrics.clone(), observed);
        let metadata = AgentMetadata::new(
            id,
            &config.servers.agent_identifiers,
            config.servers.service_account_token_path.clone(),
            Capabilities::supported(config.flow.connection_flow_control)
                .with_lanes((config.servers.lanes > 1).then(rand::random)),
        );
        let tls = tls(&config, &metrics)?;
        let every = config.servers.certificate_reload_interval;
        let of_servers = keep_fresh(ops.handle(), &facts, tls.clone(), SERVERS, every, &metrics.certificates);
        let (in_flight, open) = (links.in_flight.clone(), links.open.clone());
        let connector = GrpcConnector {
            servers: config.proxy_servers.clone(),
            // The destination policy limits servers' requests, not the servers' own address.
            dialer: Dialer::to_servers(resolver, SERVER_DIAL_TIMEOUT),
            proxy: EnvProxy::for_grpc(|name| std::env::var(name).ok()),
            tls,
            agent: metadata,
            keepalive: config.keepalive,
        };
        let (client, leased) = count_leases(&config, &metrics, ops)?.unzip();
        let counted = leased.clone().unwrap_or_else(|| watch::channel(None).1);
        let expiry = client.as_ref().and_then(Client::certificate_expiry);
        let of_kubeconfig = keep_kubeconfig_shown(ops.handle(), &facts, expiry, every, &metrics.certificates);
        let settings = SyncSettings {
            interval: config.sync_interval,
            cap: config.sync_interval_cap,
            forever: config.servers.sync_forever,
            count_source: config.servers.server_count_source,
            lanes: config.servers.lanes,
        };
        let status = StatusSources { facts, metrics: metrics.clone(), open, leased };
        let history = ops.spawn(metrics.journal.clone().keep_history());
        let set = ClientSet::new(connector, links, settings, counted, metrics);
        let drain = CancellationToken::new();
        let ports = serve_ports(&config, registry, status, (set.servers(), drain.clone()), ops);
        let background = of_servers.into_iter().chain(of_kubeconfig).chain([history]).collect();
        Ok(Agent { set, ports, config, in_flight, drain, _background: background })
    }

    /// Keeps a stream to every server until a signal stops it.
    pub async fn run(self, signals: &Signals) {
        let servers = self.config.proxy_servers.iter();
        let servers: Vec<String> = servers.map(|server| format!("{}:{}", server.host, server.port)).collect();
        tracing::info!(
            agent_id = self.config.servers.agent_id,
            proxy_server = servers.join(","),
            "Proxy agent is running"
        );
        let (drain, stop) = (self.drain, CancellationToken::new());
        let drain_timeout = self.config.ports.drain_timeout;
        let watch_signals = async {
            signals.first().await;
            drain.cancel();
            drained(signals, drain_timeout, &self.in_flight).await;
            stop.cancel();
        };
        let mut running = std::pin::pin!(self.set.run(drain.clone(), stop.clone()));
        let end = tokio::select! {
            end = &mut running => end,
            () = watch_signals => running.await,
        };
        if end == RunEnd::Drained && drain_timeout.is_none() {
            // As in the Go agent: only the operator's second signal ends the process.
            tracing::info!("Every stream has ended, waiting for the second signal");
            signals.second().await;
        }
        for port in self.ports {
            port.stop(Duration::from_millis(500)).await;
        }
        tracing::info!("Shutting down agent.");
    }
}

/// Resolves when a draining agent must stop.
async fn drained(signals: &Signals, limit: Option<Duration>, in_flight: &InFlight) {
    let Some(limit) = limit else { return signals.second().await };
    tokio::select! {
        () = signals.second() => {}
        () = in_flight.idle() => tracing::info!("No connection is left, exiting"),
        () = tokio::time::sleep(limit) => {
            tracing::warn!(connections = in_flight.count(), "Connections are left after --drain-timeout");
        }
    }
}

fn tls(config: &Config, metrics: &Metrics) -> Result<ClientTls> {
    let options = ClientTlsOptions {
        ca: config.servers.ca_cert.clone(),
        identity: config.certificate.clone(),
        server_names: config.proxy_servers.iter().map(|server| server.host.clone()).collect(),
        alpn_extras: config.servers.alpn_proto.iter().map(|name| name.as_bytes().to_vec()).collect(),
    };
    ClientTls::load(options, metrics.certificates.legacy_observer()).map_err(|error| {
        let pair = config.certificate.as_ref();
        let flags = match &error {
            TlsError::ServerName(_) => "--proxy-server-host".to_owned(),
            _ => error.flags(&[
                ("--ca-cert", config.servers.ca_cert.as_deref()),
                ("--agent-cert", pair.map(|pair| pair.0.as_path())),
                ("--agent-key", pair.map(|pair| pair.1.as_path())),
            ]),
        };
        Error::new(error).context(flags)
    })
}

/// The Kubernetes API client, and the receiver of the count of servers by their leases, if the agent counts them. The task runs on
/// the runtime of the health and admin ports, off the data path; no other task waits for it.
fn count_leases(
    config: &Config,
    metrics: &Metrics,
    ops: &OpsRuntime,
) -> Result<Option<(Client, watch::Receiver<Option<Leased>>)>> {
    let kube = &config.kube;
    if !kube.count_server_leases {
        return Ok(None);
    }
    let api = cluster::Config::load(kube.kubeconfig.as_deref());
    let api = api.map_err(|why| anyhow!("--kubeconfig: {why}"))?;
    tracing::info!(
        api = %api,
        namespace = kube.lease_namespace,
        selector = %kube.lease_label_selector,
        "Servers are counted by their leases"
    );
    let client = Client::new(api, "proxy-agent", 0.0, 0);
    let leases = client.leases(&kube.lease_namespace);
    let (counter, counted) = LeaseCounter::new(leases, &kube.lease_label_selector, metrics.clone());
    ops.handle().spawn(counter.run());
    Ok(Some((client, counted)))
}

/// Go's text, with the numbers if the agent has some servers but needs more.
fn too_few(servers: &Servers, wanted: usize) -> String {
    match servers.open {
        0 => "no servers connected".to_owned(),
        open => format!("{open} of {} known servers connected, --min-ready-servers={wanted}", servers.known),
    }
}

/// The last error and its age, for `?verbose`, if a server is missing.
fn last_error(servers: &Servers) -> String {
    let last = servers.last_error.as_ref().filter(|_| servers.open < servers.known);
    last.map(|(text, at)| format!("last error {} s ago: {text}", at.elapsed().as_secs())).unwrap_or_default()
}

/// Starts the health and the admin port on their own thread.
fn serve_ports(
    config: &Config,
    registry: Registry,
    status: StatusSources,
    (servers, drain): (watch::Receiver<Servers>, CancellationToken),
    ops: &OpsRuntime,
) -> Vec<ServerHandle> {
    let (facts, exposition) = (status.facts.clone(), Exposition::new(registry));
    let wanted = config.ports.min_ready_servers;
    let readiness = move || {
        let (servers, takes_dials) = (servers.borrow().clone(), !drain.is_cancelled());
        vec![
            health::Condition::check("server-connected", servers.open >= wanted, too_few(&servers, wanted))
                .noting(last_error(&servers)),
            health::Condition::extra("draining", takes_dials, "the agent drains and takes no new dials"),
        ]
    };
    let health = health::agent(readiness.clone(), exposition);
    let admin = admin::agent(config.ports.health_server_port, config.profiling.enable_profiling);
    let ports = [
        (&config.ports.health_server_host, config.ports.health_server_port, health),
        (&config.ports.admin_bind_address, config.ports.admin_server_port, admin),
    ];
    let on_any_address = config.profiling.status_on_any_address;
    let document = move |query| status.clone().document(query);
    facts.serve_ports(ops.handle(), ports, on_any_address, readiness, document)
}
