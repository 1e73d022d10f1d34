//! Every metric of the server: names, labels and buckets as the Go server has them, and a few of our own.
//!
//! A struct on a passed registry, never globals. What counts live things is handed out as a guard, so that a gauge
//! cannot drift. Nothing here decides anything.

mod established;
mod labels;
mod observers;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;

use serve::metrics::{
    ApiCalls, Certificates, CountBy, Counter, Drops, Family, Gauge, Histogram, Holdings, Lazy, Live, LiveBy,
    OddCertificates, Registry, Resets, Segment, StreamErrors, StreamPackets, Unanswered,
};
use transport::wire::Code;
use tunnel::PacketKind;

use crate::dial::FailureReason;
use crate::route::Strategy;

pub use established::{Established, EstablishedGuard};
pub use labels::{
    AgentAuthMode, Claim, ClaimAction, CloseReason, PeerKind, Port, ReviewResult, ServiceMethod,
};

/// What every name begins with.
pub const PREFIX: &str = "konnectivity_network_proxy_server";

/// Upper bounds in seconds of the two latencies of the data path.
const LATENCY: &[f64] = &[1e-6, 1e-5, 1e-4, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5];
/// Upper bounds in seconds of a connection's life: 1 s to 24 h.
const DURATION: &[f64] = &[1., 5., 15., 30., 60., 300., 900., 1800., 3600., 14400., 43200., 86400.];
/// Go's default buckets (`prometheus.DefBuckets`).
const DEFAULT: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The server's metrics. Cheap to clone; clones share the values.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Families>);

impl Deref for Metrics {
    type Target = Families;

    fn deref(&self) -> &Families {
        &self.0
    }
}

/// The families, by what they measure.
#[derive(Debug)]
pub struct Families {
    /// `dial_duration_seconds`: from the request to the agent's answer; successes only.
    pub dial_duration: Lazy<Histogram>,
    /// `dial_failure_count`.
    pub dial_failures: CountBy<FailureReason>,
    /// `established_connections`, and `connection_duration_seconds` when one ends.
    pub established: Established,
    /// `frontend_write_duration_seconds`: how long a packet waited for the frontend to take it.
    pub frontend_write: Lazy<Histogram>,
    /// `grpc_connections`: streams, in truth, of either service.
    pub grpc_connections: LiveBy<ServiceMethod>,
    /// `http_connections`: of the HTTP-CONNECT frontend. Shown from the start.
    pub http_connections: Live,
    /// `full_receive_channels`: connections whose reader holds up what comes from the other side.
    pub full_receive_channels: LiveBy<ServiceMethod>,
    /// `stream_packets_total`.
    pub packets: StreamPackets,
    /// `dropped_packets_total` (ours).
    pub drops: Drops,
    /// `connection_resets_total` (ours).
    pub resets: Resets,
    /// `queued_bytes` (ours): bytes that wait for local ends, as they are charged.
    pub queued_bytes: Holdings,
    /// `token_reviews_total` (ours): those that the Kubernetes API was asked for, not those from memory.
    pub token_reviews: CountBy<ReviewResult>,
    /// `agent_claims_total` (ours): claims that do not follow from an agent's identity.
    pub agent_claims: CountBy<(Claim, ClaimAction)>,
    /// `name_refusals_total` (ours): peers whose certificate bears no allowed name.
    pub name_refusals: CountBy<PeerKind>,
    /// `unauthenticated_connections` (ours): connections to a port whose peer has not been authenticated yet.
    pub unauthenticated: LiveBy<Port>,
    /// `unauthenticated_connections_closed_total` (ours): those of them that the server closed.
    pub unauthenticated_closed: CountBy<(Port, CloseReason)>,
    /// `queued_bytes_limit` (ours): what may wait in all.
    pub queued_bytes_limit: Gauge,
    /// `lease_last_renewal_timestamp_seconds` (ours): when our lease was last renewed, in seconds of Unix time; 0 before. Shown
    /// where leases are kept.
    pub lease_renewed: Lazy<Gauge>,
    /// `culled_leases_count`: expired leases that this server deleted. Shown from the start.
    pub culled_leases: Counter,
    /// `lease_list_total` and `lease_list_latency_seconds`.
    pub lease_lists: ApiCalls,
    /// `lease_delete_total` and `lease_delete_latency_seconds`.
    pub lease_deletes: ApiCalls,
    /// `lease_calls_unanswered_total` (ours).
    pub unanswered: Unanswered,
    /// `certificate_*` (ours).
    pub certificates: Certificates,
    /// `odd_certificates_total` (ours).
    pub odd_certificates: OddCertificates,
    /// `pending_backend_dials`; moved by the dialler's own guard, see `observers`.
    pending_dials: Lazy<Gauge>,
    stream_errors: StreamErrors,
    ready_backends: Family<Strategy, Gauge>,
    ready_backend_connections: Gauge,
    agent_auth_mode: Family<AgentAuthMode, Gauge>,
}

serve::label!(Strategy in "proxy_strategy");

impl Metrics {
    /// Registers everything under [`PREFIX`].
    pub fn new(registry: &mut Registry) -> Self {
        let r = registry.sub_registry_with_prefix(PREFIX);
        Self(Arc::new(Families {
            dial_duration: histogram(
                r,
                "dial_duration_seconds",
                "Seconds until an agent had dialled",
                latency,
            ),
            dial_failures: CountBy::register(
                r,
                "dial_failure_count",
                "Dials that brought no connection, by reason",
            ),
            pending_dials: lazy_gauge(r, "pending_backend_dials", "Dials that wait for an agent's answer"),
            established: Established::register(r),
            frontend_write: histogram(
                r,
                "frontend_write_duration_seconds",
                "Seconds until the frontend had taken a packet",
                latency,
            ),
            grpc_connections: LiveBy::register(r, "grpc_connections", "Open gRPC streams, by service method"),
            http_connections: shown(Live::register(r, "http_connections", "Open HTTP CONNECT connections")),
            full_receive_channels: full_channels(r),
            packets: StreamPackets::register(r),
            stream_errors: StreamErrors::register(r),
            drops: Drops::register(r),
            resets: Resets::register(r),
            queued_bytes: Holdings::register(r, "queued_bytes", "Bytes queued towards frontends"),
            queued_bytes_limit: gauge(r, "queued_bytes_limit", "Bytes that may be queued in all"),
            certificates: Certificates::register(r),
            token_reviews: CountBy::register(
                r,
                "token_reviews_total",
                "Agents' tokens shown to the Kubernetes API, by result",
            ),
            agent_claims: CountBy::register(
                r,
                "agent_claims_total",
                "Claims that the agent's credential does not prove, by claim and action",
            ),
            name_refusals: CountBy::register(
                r,
                "name_refusals_total",
                "Peers whose certificate bears no allowed name, by peer",
            ),
            unauthenticated: LiveBy::register(
                r,
                "unauthenticated_connections",
                "Connections whose peer is not admitted yet, by port",
            ),
            unauthenticated_closed: CountBy::register(
                r,
                "unauthenticated_connections_closed_total",
                "Connections of unauthenticated peers that the server closed, by port and reason",
            ),
            lease_renewed: lazy_gauge(
                r,
                "lease_last_renewal_timestamp_seconds",
                "When this server's lease was last renewed, in seconds of Unix time, 0 before the first time",
            ),
            culled_leases: counter(r, "culled_leases_count", "Expired leases that this server has deleted"),
            lease_lists: lease_calls(
                r,
                ("lease_list_total", "Lists of leases for garbage collection, by HTTP status and reason"),
                ("lease_list_latency_seconds", "Seconds that lists of leases took"),
            ),
            lease_deletes: lease_calls(
                r,
                ("lease_delete_total", "Deletions of expired leases, by HTTP status and reason"),
                ("lease_delete_latency_seconds", "Seconds that deletions of leases took"),
            ),
            unanswered: Unanswered::register(r),
            ready_backends: gauges(r, "ready_backends", "What a strategy can choose from, by strategy"),
            ready_backend_connections: gauge(
                r,
                "ready_backend_connections",
                "What the strategy that changed last can choose from. DEPRECATED, see ready_backends",
            ),
            agent_auth_mode: gauges(r, "agent_auth_mode", "1 for the way in which agents are authenticated"),
            odd_certificates: OddCertificates::register(r),
        }))
    }

    /// An error of a stream: `packet` is what was to be sent, none for an error while receiving. An orderly end is
    /// no error.
    pub fn stream_error(&self, segment: Segment, code: Code, packet: Option<PacketKind>) {
        self.stream_errors.count(segment, code.name(), packet);
    }

    /// What a strategy can choose from now.
    pub fn set_ready_backends(&self, strategy: Strategy, count: usize) {
        self.0.ready_backends.get_or_create(&strategy).set(to_i64(count));
    }

    /// The same of the strategy that changed last, under its old name.
    pub fn set_ready_backend_connections(&self, count: usize) {
        self.0.ready_backend_connections.set(to_i64(count));
    }

    /// Says how agents are authenticated; called once.
    pub fn set_agent_auth_mode(&self, mode: AgentAuthMode) {
        self.agent_auth_mode.get_or_create(&mode).set(1);
    }
}

fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn latency() -> Histogram {
    Histogram::new(LATENCY)
}

fn histogram(registry: &mut Registry, name: &str, help: &str, make: fn() -> Histogram) -> Lazy<Histogram> {
    let histogram = Lazy::new(make);
    registry.register(name, help, histogram.clone());
    histogram
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let gauge = Gauge::default();
    registry.register(name, help, gauge.clone());
    gauge
}

fn lazy_gauge(registry: &mut Registry, name: &str, help: &str) -> Lazy<Gauge> {
    let gauge: Lazy<Gauge> = Lazy::default();
    registry.register(name, help, gauge.clone());
    gauge
}

fn gauges<L: serve::metrics::Labels>(registry: &mut Registry, name: &str, help: &str) -> Family<L, Gauge> {
    let family = Family::default();
    registry.register(name, help, family.clone());
    family
}

fn shown(live: Live) -> Live {
    live.show();
    live
}

/// There from the start: an alert cannot tell an absent series from one at zero.
fn full_channels(registry: &mut Registry) -> LiveBy<ServiceMethod> {
    let help = "Connections held up by a full queue, by service method";
    let gauges = LiveBy::register(registry, "full_receive_channels", help);
    gauges.show(ServiceMethod::Connect);
    gauges.show(ServiceMethod::Proxy);
    gauges
}

fn lease_calls(registry: &mut Registry, calls: (&str, &str), latencies: (&str, &str)) -> ApiCalls {
    ApiCalls::register(registry, "http_status_code", calls, latencies, || Histogram::new(DEFAULT))
}
