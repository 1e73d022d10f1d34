//! The metrics of the server: names, labels and buckets as in the Go server, and some of our own.
//!
//! A struct on a passed registry, never globals. Gauges of open items are changed by guards, so that they cannot drift. Nothing
//! here decides anything.

mod labels;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use grpc::Code;
use mux::PacketKind;
use serve::metrics::{
    ApiCalls, Certificates, CountBy, Counter, Family, Gauge, Histogram, Lazy, Live, LiveBy, Losses,
    PayloadBytes, Registry, Segment, StreamErrors, StreamPackets, Unanswered, register_build_info,
};
use serve::statusz::Journal;

use crate::backends::{OutlierMetrics, RouteMetrics};
use crate::dial::{DialMetrics, FailureReason};

pub use labels::*;

/// The prefix of every name.
pub const PREFIX: &str = "konnectivity_network_proxy_server";

/// Upper bounds in seconds of the two latency histograms of the data path.
const LATENCY: &[f64] = &[1e-6, 1e-5, 1e-4, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5];
/// Upper bounds in seconds of a connection's duration: 1 s to 24 h.
const DURATION: &[f64] = &[1., 5., 15., 30., 60., 300., 900., 1800., 3600., 14400., 43200., 86400.];
/// Go's default buckets (`prometheus.DefBuckets`).
const DEFAULT: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The server's metrics, shared by clones.
pub type Metrics = Arc<Families>;

serve::families! {
    /// The metric families.
    pub struct Families {
        /// The last failures, for the status.
        pub journal: Journal => |_r| Journal::default();
        /// The metrics of dials.
        pub dials: DialMetrics => |r| DialMetrics { journal: journal.clone(), ..DialMetrics::register(r) };
        pub established: Live = "established_connections",
            "Current number of established end-to-end connections (post-dial).";
        pub connection_duration: Lazy<Histogram> = "connection_duration_seconds",
            "Seconds from a connection's establishment to its end", Lazy::new(|| Histogram::new(DURATION));
        /// Ours.
        pub established_closed: CountBy<ClosedReason> = "established_connections_closed_total",
            "Established connections that ended, by reason";
        /// Proposed for Go. Present from the start.
        pub backend_duration: Histogram = "backend_connection_duration_seconds",
            "Seconds from the connect of an agent stream to its end", Histogram::new(DURATION);
        /// Ours.
        pub unresponsive: Lazy<Counter> = "unresponsive_peers_total", "How many times an agent stopped answering pings";
        pub frontend_write: Lazy<Histogram> = "frontend_write_duration_seconds",
            "Latency of write to the frontend in seconds", Lazy::new(latency);
        /// Of either service; the lanes of an agent count once.
        pub grpc_connections: LiveBy<ServiceMethod> = "grpc_connections",
            "Number of current grpc connections, partitioned by service method.";
        /// Ours. Absent with a single frontend.
        pub frontend_connections: LiveBy<FrontendName> = "frontend_connections",
            "Connections of clients, by frontend if there are several";
        /// Present from the start.
        pub http_connections: Live = "http_connections", "Number of current HTTP CONNECT connections";
        /// Connections whose slow reader stops the bytes from the other side.
        pub full_receive_channels: LiveBy<ServiceMethod> = "full_receive_channels",
            "Number of current connections blocked by a full receive channel, partitioned by service method.";
        pub full_frontend_queues: Live = "full_frontend_write_queues",
            "HTTP CONNECT clients whose queue of bytes is full";
        pub blocked_frontend_channels: Live = "blocked_frontend_write_channels",
            "Agent streams blocked by the full queue of an HTTP CONNECT client";
        /// `stream_packets_total`.
        pub packets: StreamPackets;
        /// `payload_bytes_total` (ours): payload on agent streams.
        pub payload: PayloadBytes;
        /// `dropped_packets_total` and `connection_resets_total` (ours).
        pub losses: Losses;
        /// Ours. In charged bytes.
        pub queued_bytes: Gauge = "queued_bytes", "Bytes queued for frontends";
        /// Ours.
        pub queued_bytes_limit: Gauge = "queued_bytes_limit", "Limit of all queued bytes";
        /// Ours. Without cached verdicts.
        pub token_reviews: CountBy<ReviewResult> = "token_reviews_total",
            "Reviews of agents' tokens by the Kubernetes API, by result";
        /// Ours.
        pub agent_claims: CountBy<(Claim, ClaimAction)> = "agent_claims_total",
            "Claims that do not follow from the agent's identity, by claim and action";
        /// Ours.
        pub name_refusals: CountBy<PeerKind> = "name_refusals_total",
            "Peers whose certificate has no allowed name, by peer";
        /// Ours.
        pub refused_connects: CountBy<RefusedConnect> = "refused_connects_total",
            "Refused streams on the agent port, by reason";
        /// Ours.
        pub unauthenticated: LiveBy<Port> = "unauthenticated_connections",
            "Open connections of unauthenticated peers, by port";
        /// Ours.
        pub unauthenticated_closed: CountBy<(Port, UnauthenticatedCloseReason)> = "unauthenticated_connections_closed_total",
            "Connections of unauthenticated peers that the server closed, by port and reason";
        /// Ours. Present if leases are enabled.
        pub lease_renewed: Lazy<Gauge> = "lease_last_renewal_timestamp_seconds",
            "Unix time of the last renewal of this server's lease in seconds, 0 before the first";
        /// Present from the start.
        pub culled_leases: Counter = "culled_leases_count",
            "Count of expired leases that the lease garbage collection controller has culled.";
        /// `lease_calls_unanswered_total` (ours).
        pub unanswered: Unanswered;
        /// `lease_list_total` and `lease_list_latency_seconds`.
        pub lease_lists: ApiCalls => |r| lease_calls(
            r,
            &unanswered,
            "lease_list",
            // Go's slip.
            "Count of lease deletion calls by the garbage collection controller. Labeled by HTTP status code and reason.",
            "Latency of lease list calls by the garbage collection controller in seconds.",
        );
        /// `lease_delete_total` and `lease_delete_latency_seconds`.
        pub lease_deletes: ApiCalls => |r| lease_calls(
            r,
            &unanswered,
            "lease_delete",
            // Go's slip.
            "Count of lease delection calls by the garbage collection controller. Labeled by HTTP status code and reason.",
            "Latency of lease deletion calls by the garbage collection controller in seconds.",
        );
        /// `certificate_*` and `legacy_certificates_total` (ours).
        pub certificates: Certificates;
        /// The gauges of the route tables.
        pub routes: RouteMetrics;
        /// The metrics of outliers (ours).
        pub outliers: OutlierMetrics;
        stream_errors: StreamErrors;
        pub agent_auth_mode: Family<AgentAuthMode, Gauge> = "agent_auth_mode",
            "1 for the method by which agents are authenticated";
    }
}

/// Registers every metric under [`PREFIX`].
pub fn register(registry: &mut Registry) -> Metrics {
    let registry = registry.sub_registry_with_prefix(PREFIX);
    register_build_info(registry);
    let families = Families::register(registry);
    families.http_connections.show();
    // Present from the start: an alert cannot distinguish an absent series from zero.
    families.full_receive_channels.show(ServiceMethod::Connect);
    families.full_receive_channels.show(ServiceMethod::Proxy);
    // The same for failures of the tunnel: the increase of a series begins at its first sample.
    for reason in [FailureReason::NoAgent, FailureReason::BackendClose, FailureReason::BackendDialTimeout] {
        drop(families.dials.failures.counter(reason));
    }
    Arc::new(families)
}

impl Families {
    /// Counts a stream error. `packet`: the packet that could not be sent, `None` for an error while receiving. An orderly end
    /// is no error.
    pub fn stream_error(&self, segment: Segment, code: Code, packet: Option<PacketKind>) {
        self.stream_errors.count(segment, code.name(), packet);
    }
}

/// An empty histogram of latencies.
pub(crate) fn latency() -> Histogram {
    Histogram::new(LATENCY)
}

/// `{name}_total` and `{name}_latency_seconds`, with their HELP.
fn lease_calls(
    registry: &mut Registry,
    unanswered: &Unanswered,
    name: &str,
    calls: &str,
    latencies: &str,
) -> ApiCalls {
    let (total, latency) = (format!("{name}_total"), format!("{name}_latency_seconds"));
    let (calls, latencies) = ((&*total, calls), (&*latency, latencies));
    ApiCalls::register(registry, unanswered, "http_status_code", calls, latencies, || Histogram::new(DEFAULT))
}
