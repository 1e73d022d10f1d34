//! The metrics of the agent: names, labels and buckets as in the Go agent, and some of our own.
//!
//! A struct on a passed registry, never globals. Gauges of open items are changed by guards, so that they cannot drift. Nothing
//! here decides anything.
//!
//! Go's `lease_watches_total` never appears in a scrape of the Go agent: it counts watches in `lease_lists_total`, and so does
//! [`Families::lease_lists`].

#[cfg(test)]
mod tests;

use std::sync::Arc;

use grpc::Code;
use mux::PacketKind;
use serve::metrics::{
    ApiCalls, Certificates, CountBy, Counter, Gauge, Histogram, Lazy, Live, Losses, PayloadBytes, Registry,
    Segment, StreamErrors, StreamPackets, Unanswered, register_build_info,
};
use serve::statusz::Journal;

use crate::client_set::ConnectStage;
use crate::endpoint::LookupResult;

/// The prefix of every name.
pub const PREFIX: &str = "konnectivity_network_proxy_agent";

/// Upper bounds in seconds: 5 ms to 30 s.
const LATENCY: &[f64] = &[0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0];

serve::label! {
    /// The direction on a stream to a server: the label of a deprecated family. The others use [`Segment`].
    pub enum Direction in "direction" {
        /// Received.
        FromServer => "from_server",
        /// Sent.
        ToServer => "to_server",
    }
}

serve::label! {
    /// The result of an attempt to connect to a server; as proposed for Go.
    pub enum AttemptResult in "result" {
        /// A stream that the agent keeps.
        Connected => "connected",
        /// Closed at once: the agent has a stream to this server, or drains.
        Duplicate => "duplicate",
        /// No stream.
        Error => "error",
    }
}

serve::label! {
    /// How a stream to a server was lost; as proposed for Go.
    pub enum LostReason in "reason" {
        /// The server ended it in order.
        Eof => "eof",
        /// It broke.
        RecvError => "recv_error",
    }
}

serve::label! {
    /// Why a dial of an endpoint failed; only the two reasons of Go.
    pub enum DialFailureReason in "reason" {
        /// The endpoint did not answer in time.
        Timeout => "timeout",
        /// Any other reason.
        Unknown => "unknown",
    }
}

/// The agent's metrics, shared by clones.
pub type Metrics = Arc<Families>;

serve::families! {
    /// The metric families.
    pub struct Families {
        /// Servers with a stream for new dials, as in Go. Retiring streams never raise it above `known_server_count`.
        pub server_connections: Live = "open_server_connections",
            "Current number of open server connections.";
        /// Ours.
        pub retiring_connections: Live = "retiring_server_connections",
            "Streams that were replaced, or drain after GOAWAY, and stay until their connections have ended";
        /// Proposed for Go.
        pub attempts: CountBy<AttemptResult> = "server_connection_attempts_total",
            "Attempts to connect to server replicas, by result";
        /// Ours.
        pub connect_failures: CountBy<ConnectStage> = "server_connect_failures_total",
            "Attempts to connect to server replicas that failed, by stage";
        /// Proposed for Go.
        pub lost: CountBy<LostReason> = "server_connection_lost_total",
            "Streams to server replicas that the agent did not end, by reason";
        /// Ours.
        pub unresponsive: Lazy<Counter> = "unresponsive_peers_total", "How many times a server stopped answering pings";
        pub endpoint_connections: Live = "open_endpoint_connections",
            "Current number of open endpoint connections.";
        /// Successful dials only.
        pub dial_duration: Lazy<Histogram> = "dial_duration_seconds",
            "Latency of dial to the remote endpoint in seconds", Lazy::new(latency);
        pub dial_failures: CountBy<DialFailureReason> = "endpoint_dial_failure_total",
            "Number of failures dialing the remote endpoint, by reason (example: timeout).";
        /// Ours. Names of endpoints and servers.
        pub lookups: CountBy<LookupResult> = "lookups_total", "Lookups of names, by result";
        /// `lease_calls_unanswered_total` (ours).
        pub unanswered: Unanswered;
        /// `lease_lists_total` (lists and watches) and `lease_list_latency_seconds` (lists).
        pub lease_lists: ApiCalls => |r| ApiCalls::register(
            r,
            &unanswered,
            "http_response_code",
            (
                "lease_lists_total",
                "Count of server lease list calls made by the agent to the k8s apiserver, labeled by HTTP response code and \
                 reason",
            ),
            ("lease_list_latency_seconds", "Latency of server lease listing in seconds"),
            latency,
        );
        /// `payload_bytes_total` (ours): payload on streams to servers.
        pub payload: PayloadBytes;
        /// `dropped_packets_total` and `connection_resets_total` (ours).
        pub losses: Losses;
        /// Ours. In charged bytes.
        pub queued_bytes: Gauge = "queued_bytes", "Bytes queued for endpoints";
        /// Ours.
        pub queued_bytes_limit: Gauge = "queued_bytes_limit", "Limit of all queued bytes";
        /// `certificate_*` and `legacy_certificates_total` (ours).
        pub certificates: Certificates;
        /// The last failures, for the status.
        pub journal: Journal => |_r| Journal::default();
        /// As in Go.
        pub known_servers: Gauge = "known_server_count",
            "Current number of servers agent is trying to connect to.";
        /// As in Go, but the lanes to one server count once when they cannot receive.
        pub server_failures: CountBy<Direction> = "server_connection_failure_count",
            "Count of failures to send to or receive from the proxy server, labeled by the direction (from_server or to_server). \
             DEPRECATED, please use stream_events_error_total";
        /// `stream_packets_total`.
        pub packets: StreamPackets;
        stream_errors: StreamErrors;
    }
}

/// Registers every metric under [`PREFIX`].
pub fn register(registry: &mut Registry) -> Metrics {
    let registry = registry.sub_registry_with_prefix(PREFIX);
    register_build_info(registry);
    Arc::new(Families::register(registry))
}

impl Families {
    /// Counts a stream error. `packet`: the packet that could not be sent, `None` for an error while receiving. An orderly end
    /// is no error. A failed send is also counted under the deprecated name.
    pub fn stream_error(&self, segment: Segment, code: Code, packet: Option<PacketKind>) {
        self.stream_errors.count(segment, code.name(), packet);
        if segment == Segment::FromAgent {
            self.server_failures.count(Direction::ToServer);
        }
    }
}

fn latency() -> Histogram {
    Histogram::new(LATENCY)
}
