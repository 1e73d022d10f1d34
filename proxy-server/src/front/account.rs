//! The account of one established connection: bytes each way and the reason of its end, logged exactly once,
//! when it is dropped. Never decides anything.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use relay::Ending;
use serve::logs::Peer;
use serve::metrics::LiveGuard;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tunnel::Cause;

use super::meters::Meters;
use crate::dial::Target;
use crate::limits::ConnectionSlot;

/// What a connection is called in the log.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Counts connections of all frontends of this process, from 1.
    pub id: u64,
    /// `grpc` or `http-connect`.
    pub frontend: &'static str,
    /// Who dialled: the certificate's name, or where the connection came from.
    pub peer: Arc<str>,
    /// What was dialled.
    pub target: Target,
    /// The agent that it goes through.
    pub agent: Arc<str>,
    /// The agent's number for it.
    pub connect_id: i64,
}

/// See the module.
pub struct Account {
    identity: Identity,
    meters: Meters,
    since: Instant,
    from_client: u64,
    to_client: u64,
    reason: Option<String>,
    /// The gauge that this connection counts in.
    live: Option<LiveGuard>,
    /// Its room within the server's limits.
    _slot: ConnectionSlot,
    /// What shutdown waits for.
    _lifetime: TaskTrackerToken,
}

impl Account {
    /// Opens the account, and logs the connection's begin. `live`, `slot` and `lifetime` are given back with the
    /// account.
    pub fn open(
        identity: Identity,
        meters: Meters,
        live: LiveGuard,
        slot: ConnectionSlot,
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
        Account {
            identity,
            meters,
            since: Instant::now(),
            from_client: 0,
            to_client: 0,
            reason: None,
            live: Some(live),
            _slot: slot,
            _lifetime: lifetime,
        }
    }

    /// Bytes were read from the client.
    pub fn from_client(&mut self, bytes: usize) {
        self.from_client += bytes as u64;
    }

    /// Payload was written to the client, who let us wait so long.
    pub fn to_client(&mut self, bytes: usize, waited: Duration) {
        self.to_client += bytes as u64;
        self.meters.frontend_write(waited);
    }

    /// The client was told of the end, and let us wait so long.
    pub fn told_end(&mut self, waited: Duration) {
        self.meters.frontend_write(waited);
    }

    /// The client has gone, while what it sent is still on its way.
    pub fn left(&mut self) {
        self.live = None;
    }

    /// The reason of the end, when it is not the backend's. The first one stays.
    pub fn note(&mut self, reason: &dyn fmt::Display) {
        if self.reason.is_none() {
            self.reason = Some(format!("frontend: {reason}"));
        }
    }

    /// The client's socket failed while it was read. That the client closed without reading on is no failure.
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

    /// The reason of the end, as the link tells it. A reason noted before stays.
    pub fn ended(&mut self, ending: &Ending) {
        if self.reason.is_none() {
            self.reason = Some(ending.to_string());
        }
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.identity.fmt(f)
    }
}

impl Drop for Account {
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
