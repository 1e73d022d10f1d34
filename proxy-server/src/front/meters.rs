//! The metrics that the frontends move, by what happens to them.

use std::time::Duration;

use serve::metrics::{DropReason, LiveGuard, PacketMeter, Segment};
use transport::wire::WireError;
use tunnel::PacketKind;

use crate::dial::FailureReason;
use crate::metrics::{Metrics, ServiceMethod};

/// Handles to the frontends' metrics. Cheap to clone.
///
/// Packets and stream errors are the gRPC frontend's: in Go an HTTP-CONNECT client moves neither.
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

    /// A packet without effect.
    pub(super) fn dropped(&self, why: DropReason) {
        self.metrics.drops.count(why);
    }

    /// To be called before the send.
    pub(super) fn sending(&self, kind: PacketKind) {
        self.to_client.count(kind);
    }

    pub(super) fn receive_failed(&self, error: &WireError) {
        self.metrics.stream_error(Segment::FromClient, error.code, None);
    }

    pub(super) fn send_failed(&self, error: &WireError, kind: PacketKind) {
        self.metrics.stream_error(Segment::ToClient, error.code, Some(kind));
    }

    /// What came from an agent (the answer to a dial, payload, an end) went to a client, who let us wait so long. What
    /// the server has to say by itself is not counted, as in Go.
    pub(super) fn frontend_write(&self, waited: Duration) {
        self.metrics.frontend_write.observe(waited);
    }

    /// A dial succeeded, but its client could not be told.
    pub(super) fn answer_not_delivered(&self) {
        self.metrics.dial_failures.count(FailureReason::SendRsp);
    }
}
