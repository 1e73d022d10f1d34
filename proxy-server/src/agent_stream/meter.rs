//! Passes the driver's counts to the server's metrics.

use std::sync::Arc;

use driver::Traffic;
use grpc::WireError;
use mux::{Cause, Dropped, PacketKind};
use serve::logs::{LogLimit, Peer};
use serve::metrics::{LiveGuard, PacketMeter, Segment};
use tokio::time::Instant;

use super::handle::{LinkFacts, LinkHandle};
use crate::backends::{AgentStats, LaneTraffic, Registration};
use crate::dial::FailureReason;
use crate::metrics::{Metrics, ServiceMethod};

/// Counts the events of one agent stream.
pub(crate) struct LinkMeter {
    metrics: Metrics,
    from_agent: PacketMeter,
    to_agent: PacketMeter,
    /// This stream's part of the server's queued bytes, and of the agent's waiting bytes.
    queued: usize,
    paused: Option<LiveGuard>,
    facts: Arc<LinkFacts>,
    stats: AgentStats,
    lane: LaneTraffic,
    /// The numbers of bulk and of small connections that the lane was told.
    connections: (usize, usize),
    /// A full stream pauses many times a second.
    logs: LogLimit,
}

impl LinkMeter {
    pub(crate) fn new(metrics: &Metrics, facts: Arc<LinkFacts>, of: &Registration<LinkHandle>) -> Self {
        LinkMeter {
            metrics: metrics.clone(),
            from_agent: metrics.packets.meter(Segment::FromAgent),
            to_agent: metrics.packets.meter(Segment::ToAgent),
            queued: 0,
            paused: None,
            facts,
            stats: of.stats.clone(),
            lane: of.lane.clone(),
            connections: (0, 0),
            logs: LogLimit::default(),
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
        self.to_agent.count(kind);
    }

    fn received(&self, kind: PacketKind) {
        self.from_agent.count(kind);
    }

    fn dropped(&self, reason: Dropped) {
        if reason == Dropped::UnknownDial {
            self.metrics.dials.failures.count(FailureReason::UnrecognizedResponse);
            if let Some(suppressed) = self.logs.due_for("unasked", ()) {
                let agent_id = Peer(&self.facts.agent_id);
                tracing::info!(target: "v2", agentID = %agent_id, suppressed, "DIAL_RSP not recognized; dropped");
            }
        }
        self.metrics.losses.dropped(reason);
    }

    fn broken(&self, cause: &Cause) {
        self.metrics.losses.reset(cause);
    }

    fn queued(&mut self, charged: usize) {
        let before = std::mem::replace(&mut self.queued, charged);
        if charged != before {
            self.metrics.queued_bytes.inc_by(charged as i64 - before as i64);
            self.stats.waiting_changed(before, charged);
        }
    }

    fn carries(&mut self, traffic: Traffic) {
        let (sent, received) = self.facts.traffic.set(&traffic);
        self.metrics.payload.add(sent, received);
        let connections = (traffic.bulk, traffic.small);
        if std::mem::replace(&mut self.connections, connections) != connections || sent + received > 0 {
            self.lane.moved(Instant::now(), sent + received, connections);
        }
    }

    fn paused(&mut self, paused: bool) {
        if paused && let Some(suppressed) = self.logs.due_for("full", ()) {
            let agent_id = Peer(&self.facts.agent_id);
            tracing::info!(target: "v2", agentID = %agent_id, suppressed, "Receive channel from agent is full");
        }
        self.paused = paused.then(|| self.metrics.full_receive_channels.enter(ServiceMethod::Connect));
    }

    fn receive_error(&self, error: &WireError) {
        self.metrics.stream_error(Segment::FromAgent, error.code, None);
    }

    fn send_error(&self, error: &WireError, kind: PacketKind) {
        self.metrics.stream_error(Segment::ToAgent, error.code, Some(kind));
    }
}
