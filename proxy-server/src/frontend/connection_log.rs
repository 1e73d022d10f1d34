//! The outcome of one dial: a failure, or an established connection until its end. Its counts, its log line and its line of the
//! connection log are written here, each exactly once. Never decides anything.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use driver::{CloseReason, Fill};
use flags::GoDuration;
use mux::Cause;
use serde::Serialize;
use serve::logs::{ConnectionLogWriter, Peer, milliseconds};
use serve::metrics::LiveGuard;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Frontend, OpenGuard, Protocol};
use crate::backends::LaneGuard;
use crate::dial::{DialStages, FailureReason, Target};
use crate::limits::Slot;
use crate::metrics::{ClosedReason, FrontendName, Metrics};

/// The names of a connection in the log.
#[derive(Debug)]
pub struct ConnInfo {
    /// Number of the connection over all frontends of this process, from 1.
    pub id: u64,
    /// `grpc` or `http-connect`; with several frontends as `--frontend` names it.
    pub frontend: &'static str,
    /// The client: the certificate's name, or the source address.
    pub peer: Arc<str>,
    /// The dialed target.
    pub target: Target,
    /// The agent's connect id.
    pub connect_id: i64,
    /// The stages of the dial.
    pub stages: DialStages,
    /// The connection log.
    pub records: ConnectionLogWriter,
    /// The server's metrics.
    pub metrics: Metrics,
}

/// A line of the connection log. Its fields are documented in docs/connection-log.md.
#[derive(Serialize)]
struct Record<'a> {
    connection: u64,
    frontend: &'static str,
    peer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<&'a str>,
    target: Peer<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<Peer<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_id: Option<i64>,
    attempts: u32,
    bytes_to_endpoint: u64,
    bytes_from_endpoint: u64,
    selection_ms: Option<f64>,
    dial_ms: Option<f64>,
    connect_ms: Option<f64>,
    total_ms: Option<f64>,
    end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Peer<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

impl ConnInfo {
    /// The names of a request that has just arrived, before its dial.
    pub(super) fn new(frontend: &Frontend, protocol: Protocol, peer: Arc<str>, target: Target) -> Self {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        ConnInfo {
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            frontend: frontend.name.map_or(protocol.name(), FrontendName::name),
            peer,
            target,
            connect_id: 0,
            stages: DialStages::default(),
            records: frontend.records.clone(),
            metrics: frontend.metrics.clone(),
        }
    }

    /// The agent that carries the connection, empty before the choice of one.
    pub(super) fn agent(&self) -> Peer<'_> {
        Peer(self.stages.agent.as_deref().unwrap_or_default())
    }

    /// Counts and records a dial that opened no connection.
    pub(super) fn not_established(&self, end: FailureReason, error: &dyn fmt::Display) {
        let error = error.to_string();
        self.metrics.dials.failed(&self.target, &self.stages, end, &error);
        if self.records.is_on() {
            self.record(None, (0, 0), end.name(), &error);
        }
    }

    /// The same for a client that left before the agent's answer.
    pub(super) fn canceled(&self) {
        self.not_established(FailureReason::FrontendClose, &"the client left before the agent's answer");
    }

    fn record(&self, connect: Option<Duration>, bytes: (u64, u64), end: &'static str, error: &str) {
        // As `auth::shown` joins them; an address holds no blank.
        let (certificate, peer) = match self.peer.rsplit_once(" at ") {
            Some((certificate, address)) => (Some(certificate), address),
            None => (None, &*self.peer),
        };
        let stages = &self.stages;
        self.records.write(&Record {
            connection: self.id,
            frontend: self.frontend,
            peer,
            certificate,
            target: Peer(&self.target.address),
            agent: stages.agent.as_deref().map(Peer),
            connect_id: connect.map(|_| self.connect_id),
            attempts: stages.attempts,
            bytes_to_endpoint: bytes.0,
            bytes_from_endpoint: bytes.1,
            selection_ms: milliseconds(stages.selection()),
            dial_ms: milliseconds(stages.dial()),
            connect_ms: milliseconds(connect),
            total_ms: milliseconds(Some(stages.total())),
            end,
            error: (!error.is_empty()).then_some(Peer(error)),
            trace_id: stages.span.trace_id(),
        });
    }
}

/// See the module.
pub struct ConnectionLog {
    identity: ConnInfo,
    since: Instant,
    /// The time from the request to this moment.
    connect: Duration,
    from_client: u64,
    to_client: u64,
    reason: Option<String>,
    /// The kind of the end: until another is known, that of a stream that ends without a report, as at a forced stop.
    closed: ClosedReason,
    /// Counts this connection at the server and on its lane until its end.
    established: Option<(LiveGuard, LaneGuard)>,
    /// Counts its client in the gauges.
    live: Option<OpenGuard>,
    /// Counts its full queue, and a link that its queue stops.
    full: [Option<LiveGuard>; 2],
    /// The connection's slot within the server's limits.
    _slot: Slot,
    /// Graceful shutdown waits for this token.
    _lifetime: TaskTrackerToken,
}

impl ConnectionLog {
    /// Counts the dial, starts the record, and logs that the connection is established. `live`, the slot and `lifetime` are released
    /// with it.
    pub(super) fn open(
        identity: ConnInfo,
        live: OpenGuard,
        (slot, on_lane): (Slot, LaneGuard),
        lifetime: TaskTrackerToken,
    ) -> Self {
        identity.metrics.dials.opened(&identity.stages);
        let connect = identity.stages.total();
        let ConnInfo { id, frontend, peer, target, connect_id, .. } = &identity;
        tracing::debug!(
            dialID = target.dial_id, connectionID = connect_id, agentID = %identity.agent(),
            dialAddress = %Peer(&target.address), dialDuration = %GoDuration::from(connect),
            connection = id, frontend, %peer,
            "Proxy connection established"
        );
        ConnectionLog {
            connect,
            established: Some((identity.metrics.established.enter(), on_lane)),
            identity,
            since: Instant::now(),
            from_client: 0,
            to_client: 0,
            reason: None,
            closed: ClosedReason::BackendClose,
            live: Some(live),
            full: [None, None],
            _slot: slot,
            _lifetime: lifetime,
        }
    }

    /// The client: the certificate's name, or the source address.
    pub fn client(&self) -> &str {
        &self.identity.peer
    }

    /// Counts bytes that were read from the client.
    pub fn from_client(&mut self, bytes: usize) {
        self.from_client += bytes as u64;
    }

    /// Counts payload that was written to the client, and the time that the write waited for the client.
    pub fn to_client(&mut self, bytes: usize, waited: Duration) {
        self.to_client += bytes as u64;
        self.identity.metrics.frontend_write.observe(waited);
    }

    /// Counts the time that the client took to take the end of the connection.
    pub fn end_written(&mut self, waited: Duration) {
        self.identity.metrics.frontend_write.observe(waited);
    }

    /// The client has gone, but its last bytes are still being delivered: removes it from the gauges.
    pub fn left(&mut self) {
        self.live = None;
    }

    /// Sets the reason of the end if the frontend caused it. The first reason is kept.
    pub fn note(&mut self, reason: &dyn fmt::Display) {
        self.reason.get_or_insert_with(|| format!("frontend: {reason}"));
    }

    /// Records that reading from the client failed. A client that closes without reading further is not logged as an error.
    pub fn read_failed(&mut self, error: &io::Error) {
        self.note(error);
        if !Cause::Local(error.to_string()).is_abort() {
            let ConnInfo { target, connect_id, .. } = &self.identity;
            tracing::error!(
                err = %error, host = %Peer(&target.address), agentID = %self.identity.agent(), connectionID = connect_id,
                "Received failure on connection"
            );
        }
    }

    /// Logs that an HTTP CONNECT client was told of its connection.
    pub fn answered(&self) {
        let ConnInfo { target, connect_id, .. } = &self.identity;
        tracing::debug!(
            host = %Peer(&target.address), agentID = %self.identity.agent(), connectionID = connect_id,
            "Connection established, sent 200 OK"
        );
    }

    /// Records that an HTTP CONNECT client could not be told of its connection.
    pub fn answer_failed(&mut self, error: &io::Error) {
        let ConnInfo { target, peer, id, .. } = &self.identity;
        tracing::error!(
            err = %error, host = %Peer(&target.address), agentID = %self.identity.agent(), connection = id, %peer,
            "failed to send 200 connection established"
        );
        self.note(error);
        self.closed(ClosedReason::FrontendClose);
    }

    /// Counts an HTTP CONNECT client whose queue is full, and whose queue stops its link.
    pub fn filled(&mut self, fill: Fill) {
        let [full, stops] = &mut self.full;
        *full = (fill != Fill::Room).then(|| self.identity.metrics.full_frontend_queues.enter());
        *stops = (fill == Fill::HoldsUpLink).then(|| self.identity.metrics.blocked_frontend_channels.enter());
    }

    /// Sets the reason of the end as the link reports it. An earlier reason is kept.
    pub fn ended(&mut self, close_reason: &CloseReason) {
        self.full = [None, None];
        self.closed(close_reason.into());
        self.reason.get_or_insert_with(|| close_reason.to_string());
    }

    /// Counts the end, once.
    fn closed(&mut self, reason: ClosedReason) {
        if let Some(_established) = self.established.take() {
            let metrics = &self.identity.metrics;
            metrics.connection_duration.observe(self.since.elapsed());
            metrics.established_closed.count(reason);
            self.closed = reason;
        }
    }
}

impl Drop for ConnectionLog {
    fn drop(&mut self) {
        self.closed(self.closed);
        let ConnInfo { id, frontend, peer, target, connect_id, .. } = &self.identity;
        tracing::debug!(
            connectionID = connect_id, agentID = %self.identity.agent(), dialAddress = %Peer(&target.address),
            connection = id, frontend, %peer, duration = ?self.since.elapsed(),
            bytes_from_client = self.from_client, bytes_to_client = self.to_client,
            reason = %Peer(self.reason.as_deref().unwrap_or("dropped with its agent stream")),
            "connection ended"
        );
        if self.identity.records.is_on() {
            let error = self.reason.as_deref().filter(|reason| *reason != "closed").unwrap_or_default();
            let bytes = (self.from_client, self.to_client);
            self.identity.record(Some(self.connect), bytes, self.closed.name(), error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::testing::{Readings, connection_log};

    #[tokio::test(start_paused = true)]
    async fn a_connection_counts_once_with_its_duration_and_reason() {
        let readings = Readings::new();
        let [mut closed, dropped] = [connection_log(&readings), connection_log(&readings)];
        assert_eq!(readings.metrics.established.count(), 2);
        tokio::time::advance(Duration::from_secs(20)).await;
        closed.ended(&CloseReason::Flushed);
        assert_eq!(readings.metrics.established.count(), 1, "its last bytes may still be written");
        drop((closed, dropped));
        assert_eq!(readings.metrics.established.count(), 0);
        assert_eq!(
            readings.samples("established_connections_closed_total"),
            ["backend_close", "closed"]
                .map(|reason| format!("established_connections_closed_total{{reason=\"{reason}\"}} 1"))
        );
        let durations = readings.samples("connection_duration_seconds");
        for sample in ["bucket{le=\"15\"} 0", "sum 40", "count 2"] {
            assert!(durations.contains(&format!("connection_duration_seconds_{sample}")), "{durations:?}");
        }
    }
}
