//! Passes the driver's counts to the agent's metrics.

use mux::{Cause, Dropped, PacketKind};
use serve::metrics::{DropReason, Held, PacketMeter};
use transport::wire::WireError;

use crate::metrics::{Direction, Metrics};

/// Counts the events of one stream.
pub(crate) struct LinkMeter {
    metrics: Metrics,
    from_server: PacketMeter,
    to_server: PacketMeter,
    queued: Held,
}

impl LinkMeter {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        LinkMeter {
            metrics: metrics.clone(),
            from_server: metrics.packets(Direction::FromServer),
            to_server: metrics.packets(Direction::ToServer),
            queued: metrics.queued_bytes.hold(),
        }
    }
}

impl driver::Meter for LinkMeter {
    fn sent(&self, kind: PacketKind) {
        self.to_server.count(kind);
    }

    fn received(&self, kind: PacketKind) {
        self.from_server.count(kind);
    }

    fn unknown(&self) {
        self.metrics.drops.count(DropReason::UnknownType);
    }

    fn malformed(&self) {
        self.metrics.drops.count(DropReason::Malformed);
    }

    fn dropped(&self, reason: Dropped) {
        self.metrics.drops.count(reason);
    }

    fn broken(&self, cause: &Cause) {
        self.metrics.resets.count(cause);
    }

    fn queued(&mut self, charged: usize) {
        self.queued.set(charged);
    }

    fn paused(&mut self, _paused: bool) {
        // The Go agent has no gauge for this; `queued_bytes` shows it.
    }

    fn receive_error(&self, error: &WireError) {
        self.metrics.stream_error(Direction::FromServer, error.code, None);
    }

    fn send_error(&self, error: &WireError, kind: PacketKind) {
        self.metrics.stream_error(Direction::ToServer, error.code, Some(kind));
    }
}
