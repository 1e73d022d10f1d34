//! The metrics of the frontends, updated by event.

use std::time::Duration;

use mux::PacketKind;
use serve::metrics::{DropReason, LiveGuard, PacketMeter, Segment};
use transport::wire::WireError;

use crate::dial::FailureReason;
use crate::metrics::{Metrics, ServiceMethod};

/// Handles to the frontends' metrics. Cheap to clone.
///
/// Packets and stream errors are counted by the gRPC frontend only: in Go an HTTP CONNECT client changes neither.
#[derive(Debug, Clone)]
pub struct Meters {
    metrics: Metrics,
    from_client: PacketMeter,
    to_client: PacketMeter,
}

impl Meters {
    /// Handles to these metrics.
    pub fn new(metrics: Metrics) -> Self {
        let from_client = metrics.packets.meter(Segment::FromClient);
        let to_client = metrics.packets.meter(Segment::ToClient);
        Meters { metrics, from_client, to_client }
    }

    pub(super) fn http_connection(&self) -> LiveGuard {
        self.metrics.http_connections.enter()
    }

    pub(super) fn proxy_stream(&self) -> LiveGuard {
        self.metrics.grpc_connections.enter(ServiceMethod::Proxy)
    }

    pub(super) fn received(&self, kind: PacketKind) {
        self.from_client.count(kind);
    }

    /// Counts a packet without effect.
    pub(super) fn dropped(&self, why: DropReason) {
        self.metrics.drops.count(why);
    }

    /// Must be called before the send.
    pub(super) fn sending(&self, kind: PacketKind) {
        self.to_client.count(kind);
    }

    pub(super) fn receive_failed(&self, error: &WireError) {
        self.metrics.stream_error(Segment::FromClient, error.code, None);
    }

    pub(super) fn send_failed(&self, error: &WireError, kind: PacketKind) {
        self.metrics.stream_error(Segment::ToClient, error.code, Some(kind));
    }

    /// Observes how long a client took to take a packet that came from an agent (dial answer, payload, end). As in Go, the
    /// server's own answers are not observed.
    pub(super) fn frontend_write(&self, waited: Duration) {
        self.metrics.frontend_write.observe(waited);
    }

    /// Counts a successful dial whose client could not be told.
    pub(super) fn answer_not_delivered(&self) {
        self.metrics.dial_failures.count(FailureReason::SendRsp);
    }
}
