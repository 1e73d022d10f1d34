//! The log record of one established connection: bytes in each direction and the reason of its end, logged exactly once, when
//! it is dropped. Never decides anything.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use driver::{CloseReason, Fill};
use mux::Cause;
use serve::logs::Peer;
use serve::metrics::LiveGuard;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::OpenGuard;
use crate::dial::Target;
use crate::limits::Slot;
use crate::metrics::Metrics;

/// The names of a connection in the log.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Number of the connection over all frontends of this process, from 1.
    pub id: u64,
    /// `grpc` or `http-connect`; with several frontends as `--frontend` names it.
    pub frontend: &'static str,
    /// The client: the certificate's name, or the source address.
    pub peer: Arc<str>,
    /// The dialed target.
    pub target: Target,
    /// The agent that carries the connection.
    pub agent: Arc<str>,
    /// The agent's connect id.
    pub connect_id: i64,
}

/// See the module.
pub struct ConnectionLog {
    identity: Identity,
    metrics: Metrics,
    since: Instant,
    from_client: u64,
    to_client: u64,
    reason: Option<String>,
    /// Counts this connection in the gauges.
    live: Option<OpenGuard>,
    /// Counts its full queue, and a link that its queue stops.
    full: [Option<LiveGuard>; 2],
    /// The connection's slot within the server's limits.
    _slot: Slot,
    /// Graceful shutdown waits for this token.
    _lifetime: TaskTrackerToken,
}

impl ConnectionLog {
    /// Starts the record, and logs that the connection is established. `live`, `slot` and `lifetime` are released with it.
    pub(super) fn open(
        identity: Identity,
        metrics: Metrics,
        live: OpenGuard,
        slot: Slot,
        lifetime: TaskTrackerToken,
    ) -> Self {
        tracing::debug!(
            dialID = identity.target.dial_id,
            connectionID = identity.connect_id,
            agentID = %Peer(&identity.agent),
            dialAddress = %Peer(&identity.target.address),
            connection = identity.id,
            frontend = identity.frontend,
            peer = %identity.peer,
            "Proxy connection established"
        );
        ConnectionLog {
            identity,
            metrics,
            since: Instant::now(),
            from_client: 0,
            to_client: 0,
            reason: None,
            live: Some(live),
            full: [None, None],
            _slot: slot,
            _lifetime: lifetime,
        }
    }

    /// Counts bytes that were read from the client.
    pub fn from_client(&mut self, bytes: usize) {
        self.from_client += bytes as u64;
    }

    /// Counts payload that was written to the client, and the time that the write waited for the client.
    pub fn to_client(&mut self, bytes: usize, waited: Duration) {
        self.to_client += bytes as u64;
        self.metrics.frontend_write.observe(waited);
    }

    /// Counts the time that the client took to take the end of the connection.
    pub fn end_written(&mut self, waited: Duration) {
        self.metrics.frontend_write.observe(waited);
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
            tracing::error!(
                err = %error,
                host = %Peer(&self.identity.target.address),
                agentID = %Peer(&self.identity.agent),
                connectionID = self.identity.connect_id,
                "Received failure on connection"
            );
        }
    }

    /// Counts an HTTP CONNECT client whose queue is full, and whose queue stops its link.
    pub fn filled(&mut self, fill: Fill) {
        let [full, stops] = &mut self.full;
        *full = (fill != Fill::Room).then(|| self.metrics.full_frontend_queues.enter());
        *stops = (fill == Fill::HoldsUpLink).then(|| self.metrics.blocked_frontend_channels.enter());
    }

    /// Sets the reason of the end as the link reports it. An earlier reason is kept.
    pub fn ended(&mut self, close_reason: &CloseReason) {
        self.full = [None, None];
        self.reason.get_or_insert_with(|| close_reason.to_string());
    }
}

impl fmt::Debug for ConnectionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.identity.fmt(f)
    }
}

impl Drop for ConnectionLog {
    fn drop(&mut self) {
        tracing::debug!(
            connectionID = self.identity.connect_id,
            agentID = %Peer(&self.identity.agent),
            dialAddress = %Peer(&self.identity.target.address),
            connection = self.identity.id,
            frontend = self.identity.frontend,
            peer = %self.identity.peer,
            duration = ?self.since.elapsed(),
            bytes_from_client = self.from_client,
            bytes_to_client = self.to_client,
            reason = %Peer(self.reason.as_deref().unwrap_or("dropped with its agent stream")),
            "connection ended"
        );
    }
}
