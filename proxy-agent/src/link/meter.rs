//! Passes the driver's counts to the agent's metrics.

use driver::{SharedTraffic, Traffic};
use grpc::WireError;
use mux::{Cause, Dropped, PacketKind};
use serve::metrics::{PacketMeter, Segment};

use crate::metrics::Metrics;

/// Counts the events of one stream.
pub(crate) struct LinkMeter {
    metrics: Metrics,
    to_agent: PacketMeter,
    from_agent: PacketMeter,
    queued: usize,
    traffic: SharedTraffic,
}

impl LinkMeter {
    pub(crate) fn new(metrics: &Metrics, traffic: SharedTraffic) -> Self {
        LinkMeter {
            metrics: metrics.clone(),
            to_agent: metrics.packets.meter(Segment::ToAgent),
            from_agent: metrics.packets.meter(Segment::FromAgent),
            queued: 0,
            traffic,
        }
    }
}

impl Drop for LinkMeter {
    fn drop(&mut self) {
        driver::Meter::queued(self, 0);
    }
}

impl driver::Meter for LinkMeter {
    fn sent(&self, kind: PacketKind) {
        self.from_agent.count(kind);
    }

    fn received(&self, kind: PacketKind) {
        self.to_agent.count(kind);
    }

    fn dropped(&self, reason: Dropped) {
        self.metrics.losses.dropped(reason);
    }

    fn broken(&self, cause: &Cause) {
        self.metrics.losses.reset(cause);
    }

    fn queued(&mut self, charged: usize) {
        let before = std::mem::replace(&mut self.queued, charged);
        if charged != before {
            self.metrics.queued_bytes.inc_by(charged as i64 - before as i64);
        }
    }

    fn carries(&mut self, traffic: Traffic) {
        let (sent, received) = self.traffic.set(&traffic);
        self.metrics.payload.add(received, sent);
    }

    fn receive_error(&self, error: &WireError) {
        self.metrics.stream_error(Segment::ToAgent, error.code, None);
    }

    fn send_error(&self, error: &WireError, kind: PacketKind) {
        self.metrics.stream_error(Segment::FromAgent, error.code, Some(kind));
    }
}
