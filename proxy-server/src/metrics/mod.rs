//! The metrics of the server: names, labels and buckets as in the Go server, and some of our own.
//!
//! A struct on a passed registry, never globals. Gauges of open items are changed by guards, so that they cannot drift. Nothing
//! here decides anything.

mod established;
mod labels;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;

use grpc::Code;
use mux::PacketKind;
use serve::metrics::{
    ApiCalls, Certificates, CountBy, Counter, Drops, Family, Gauge, Histogram, Holdings, Lazy,
    LegacyCertificates, Live, LiveBy, PayloadBytes, Registry, Resets, Segment, StreamErrors, StreamPackets,
    Unanswered, register_build_info,
};
use serve::statusz::Journal;

use crate::backends::{OutlierMetrics, RouteMetrics};
use crate::dial::DialMetrics;

pub use established::{Established, EstablishedGuard};
pub use labels::{
    AgentAuthMode, Claim, ClaimAction, ClosedReason, FrontendName, PeerKind, Port, RefusedConnect,
    ReviewResult, ServiceMethod, UnauthenticatedCloseReason,
};

/// The prefix of every name.
pub const PREFIX: &str = "konnectivity_network_proxy_server";

/// Upper bounds in seconds of the two latency histograms of the data path.
const LATENCY: &[f64] = &[1e-6, 1e-5, 1e-4, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5];
/// Upper bounds in seconds of a connection's duration: 1 s to 24 h.
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

/// The metric families.
#[derive(Debug)]
pub struct Families {
    /// The metrics of dials.
    pub dials: DialMetrics,
    /// `established_connections`; `connection_duration_seconds` and `established_connections_closed_total` when one ends.
    pub established: Established,
    /// `backend_connection_duration_seconds` (proposed for Go): how long agent streams were open, when they end.
    pub backend_duration: Lazy<Histogram>,
    /// `unresponsive_peers_total` (ours): how many times an agent stopped answering pings.
    pub unresponsive: Lazy<Counter>,
    /// `frontend_write_duration_seconds`: how long a packet waited for the frontend to take it.
    pub frontend_write: Lazy<Histogram>,
    /// `grpc_connections`: open streams of either service, despite its name; the lanes of an agent count once.
    pub grpc_connections: LiveBy<ServiceMethod>,
    /// `frontend_connections` (ours): connections of clients, by frontend. Absent with a single frontend.
    pub frontend_connections: LiveBy<FrontendName>,
    /// `http_connections`: of the HTTP CONNECT frontend. Present from the start.
    pub http_connections: Live,
    /// `full_receive_channels`: connections whose slow reader stops the bytes from the other side.
    pub full_receive_channels: LiveBy<ServiceMethod>,
    /// `full_frontend_write_queues`: HTTP CONNECT clients whose queue is full.
    pub full_frontend_queues: Live,
    /// `blocked_frontend_write_channels`: agent streams that a full queue of an HTTP CONNECT client stops.
    pub blocked_frontend_channels: Live,
    /// `stream_packets_total`.
    pub packets: StreamPackets,
    /// `payload_bytes_total` (ours): payload on agent streams.
    pub payload: PayloadBytes,
    /// `dropped_packets_total` (ours).
    pub drops: Drops,
    /// `connection_resets_total` (ours).
    pub resets: Resets,
    /// `queued_bytes` (ours): bytes queued for local sockets, in charged bytes.
    pub queued_bytes: Holdings,
    /// `token_reviews_total` (ours): reviews by the Kubernetes API, without cached verdicts.
    pub token_reviews: CountBy<ReviewResult>,
    /// `agent_claims_total` (ours): claims that do not follow from an agent's identity.
    pub agent_claims: CountBy<(Claim, ClaimAction)>,
    /// `name_refusals_total` (ours): peers whose certificate has no allowed name.
    pub name_refusals: CountBy<PeerKind>,
    /// `refused_connects_total` (ours): Connects that are no backend.
    pub refused_connects: CountBy<RefusedConnect>,
    /// `unauthenticated_connections` (ours): connections to a port whose peer is not authenticated yet.
    pub unauthenticated: LiveBy<Port>,
    /// `unauthenticated_connections_closed_total` (ours): such connections that the server closed.
    pub unauthenticated_closed: CountBy<(Port, UnauthenticatedCloseReason)>,
    /// `queued_bytes_limit` (ours): the limit of all queued bytes.
    pub queued_bytes_limit: Gauge,
    /// `lease_last_renewal_timestamp_seconds` (ours): Unix time of our lease's last renewal in seconds; 0 before the first.
    /// Present if leases are enabled.
    pub lease_renewed: Lazy<Gauge>,
    /// `culled_leases_count`: expired leases that this server deleted. Present from the start.
    pub culled_leases: Counter,
    /// `lease_list_total` and `lease_list_latency_seconds`.
    pub lease_lists: ApiCalls,
    /// `lease_delete_total` and `lease_delete_latency_seconds`.
    pub lease_deletes: ApiCalls,
    /// `lease_calls_unanswered_total` (ours).
    pub unanswered: Unanswered,
    /// `certificate_*` (ours).
    pub certificates: Certificates,
    /// `legacy_certificates_total` (ours).
    pub legacy_certificates: LegacyCertificates,
    /// The gauges of the route tables.
    pub routes: RouteMetrics,
    /// The metrics of outliers (ours).
    pub outliers: OutlierMetrics,
    /// The last failures, for the status.
    pub journal: Journal,
    stream_errors: StreamErrors,
    agent_auth_mode: Family<AgentAuthMode, Gauge>,
}

impl Metrics {
    /// Registers every metric under [`PREFIX`].
    pub fn new(registry: &mut Registry) -> Self {
        let r = registry.sub_registry_with_prefix(PREFIX);
        register_build_info(r);
        let http_connections = Live::register(r, "http_connections", "Open HTTP CONNECT connections");
        http_connections.show();
        let help = "Connections blocked by a full queue, by service method";
        let full_receive_channels = LiveBy::register(r, "full_receive_channels", help);
        // Present from the start: an alert cannot distinguish an absent series from zero.
        full_receive_channels.show(ServiceMethod::Connect);
        full_receive_channels.show(ServiceMethod::Proxy);
        let frontend_write = Lazy::new(latency);
        let help = "Seconds that packets from agents waited for the frontend";
        r.register("frontend_write_duration_seconds", help, frontend_write.clone());
        let backend_duration = Lazy::new(|| Histogram::new(DURATION));
        let help = "Seconds from the connect of an agent stream to its end";
        r.register("backend_connection_duration_seconds", help, backend_duration.clone());
        let unresponsive = Lazy::<Counter>::default();
        let help = "How many times an agent stopped answering pings";
        r.register("unresponsive_peers_total", help, unresponsive.clone());
        let lease_renewed = Lazy::<Gauge>::default();
        let help = "Unix time of the last renewal of this server's lease in seconds, 0 before the first";
        r.register("lease_last_renewal_timestamp_seconds", help, lease_renewed.clone());
        let culled_leases = Counter::default();
        r.register("culled_leases_count", "Expired leases that this server deleted", culled_leases.clone());
        let queued_bytes_limit = Gauge::default();
        r.register("queued_bytes_limit", "Limit of all queued bytes", queued_bytes_limit.clone());
        let agent_auth_mode = Family::default();
        let help = "1 for the method by which agents are authenticated";
        r.register("agent_auth_mode", help, agent_auth_mode.clone());
        let journal = Journal::default();
        Self(Arc::new(Families {
            dials: DialMetrics::register(r, latency, journal.clone()),
            journal,
            established: Established::register(r),
            backend_duration,
            unresponsive,
            frontend_write,
            grpc_connections: LiveBy::register(
                r,
                "grpc_connections",
                "Open gRPC streams, by service method; the lanes of an agent count once",
            ),
            frontend_connections: LiveBy::register(
                r,
                "frontend_connections",
                "Connections of clients, by frontend if there are several",
            ),
            http_connections,
            full_receive_channels,
            full_frontend_queues: Live::register(
                r,
                "full_frontend_write_queues",
                "HTTP CONNECT clients whose queue of bytes is full",
            ),
            blocked_frontend_channels: Live::register(
                r,
                "blocked_frontend_write_channels",
                "Agent streams blocked by the full queue of an HTTP CONNECT client",
            ),
            packets: StreamPackets::register(r),
            stream_errors: StreamErrors::register(r),
            payload: PayloadBytes::register(r),
            drops: Drops::register(r),
            resets: Resets::register(r),
            queued_bytes: Holdings::register(r, "queued_bytes", "Bytes queued for frontends"),
            queued_bytes_limit,
            certificates: Certificates::register(r),
            token_reviews: CountBy::register(
                r,
                "token_reviews_total",
                "Reviews of agents' tokens by the Kubernetes API, by result",
            ),
            agent_claims: CountBy::register(
                r,
                "agent_claims_total",
                "Claims that do not follow from the agent's identity, by claim and action",
            ),
            name_refusals: CountBy::register(
                r,
                "name_refusals_total",
                "Peers whose certificate has no allowed name, by peer",
            ),
            refused_connects: CountBy::register(
                r,
                "refused_connects_total",
                "Connects of agents that were refused, and other streams on the agent port, by reason",
            ),
            unauthenticated: LiveBy::register(
                r,
                "unauthenticated_connections",
                "Open connections of unauthenticated peers, by port",
            ),
            unauthenticated_closed: CountBy::register(
                r,
                "unauthenticated_connections_closed_total",
                "Connections of unauthenticated peers that the server closed, by port and reason",
            ),
            lease_renewed,
            culled_leases,
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
            routes: RouteMetrics::register(r),
            outliers: OutlierMetrics::register(r),
            agent_auth_mode,
            legacy_certificates: LegacyCertificates::register(r),
        }))
    }

    /// Counts a stream error. `packet`: the packet that could not be sent, `None` for an error while receiving. An orderly end
    /// is no error.
    pub fn stream_error(&self, segment: Segment, code: Code, packet: Option<PacketKind>) {
        self.stream_errors.count(segment, code.name(), packet);
    }

    /// Sets the authentication method of agents; called once.
    pub fn set_agent_auth_mode(&self, mode: AgentAuthMode) {
        self.agent_auth_mode.get_or_create(&mode).set(1);
    }
}

fn latency() -> Histogram {
    Histogram::new(LATENCY)
}

fn lease_calls(registry: &mut Registry, calls: (&str, &str), latencies: (&str, &str)) -> ApiCalls {
    ApiCalls::register(registry, "http_status_code", calls, latencies, || Histogram::new(DEFAULT))
}
