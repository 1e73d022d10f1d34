//! What the relay counts, in the server's metrics.

use serve::metrics::{DropReason, Held, LiveGuard, PacketMeter, Segment};
use transport::wire::WireError;
use tunnel::{Cause, Dropped, PacketKind};

use crate::dial::FailureReason;
use crate::metrics::{Metrics, ServiceMethod};

/// The meter of one agent stream.
pub(crate) struct LinkMeter {
    metrics: Metrics,
    from_agent: PacketMeter,
    to_agent: PacketMeter,
    queued: Held,
    paused: Option<LiveGuard>,
}

impl LinkMeter {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        LinkMeter {
            metrics: metrics.clone(),
            from_agent: metrics.packets.meter(Segment::FromAgent),
            to_agent: metrics.packets.meter(Segment::ToAgent),
            queued: metrics.queued_bytes.hold(),
            paused: None,
        }
    }
}

impl relay::Meter for LinkMeter {
    fn sent(&self, kind: PacketKind) {
        self.to_agent.count(kind);
    }

    fn received(&self, kind: PacketKind) {
        self.from_agent.count(kind);
    }

    fn unknown(&self) {
        self.metrics.drops.count(DropReason::UnknownType);
    }

    fn malformed(&self) {
        self.metrics.drops.count(DropReason::Malformed);
    }

    fn dropped(&self, reason: Dropped) {
        if reason == Dropped::UnknownDial {
            self.metrics.dial_failures.count(FailureReason::UnrecognizedResponse);
        }
        self.metrics.drops.count(reason);
    }

    fn broken(&self, cause: &Cause) {
        self.metrics.resets.count(cause);
    }

    fn queued(&mut self, charged: usize) {
        self.queued.set(charged);
    }

    fn paused(&mut self, paused: bool) {
        self.paused = paused.then(|| self.metrics.full_receive_channels.enter(ServiceMethod::Connect));
    }

    fn receive_error(&self, error: &WireError) {
        self.metrics.stream_error(Segment::FromAgent, error.code, None);
    }

    fn send_error(&self, error: &WireError, kind: PacketKind) {
        self.metrics.stream_error(Segment::ToAgent, error.code, Some(kind));
    }
}
