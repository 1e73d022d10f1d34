//! What a link carries, for operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mux::ConnectId;
use tokio::time::Instant;

/// What a link carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections whose local end has not been notified of its end.
    pub connections: usize,
    /// Those that moved up to [`mux::BULK`] bytes, but not nothing.
    pub small: usize,
    /// Those that moved more.
    pub bulk: usize,
    /// Payload sent to the peer since the link's start, in bytes.
    pub sent: u64,
    /// Payload received from the peer since the link's start, in bytes.
    pub received: u64,
}

/// The traffic of one link, for other threads: connections, bytes sent, bytes received. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SharedTraffic(Arc<[AtomicU64; 3]>);

impl SharedTraffic {
    /// Replaces the numbers. Returns the bytes that were sent, and those that were received, since the last call.
    pub fn set(&self, traffic: &Traffic) -> (u64, u64) {
        let [connections, sent, received] = &*self.0;
        connections.store(traffic.connections as u64, Ordering::Relaxed);
        let since = |before: &AtomicU64, now: u64| now.saturating_sub(before.swap(now, Ordering::Relaxed));
        (since(sent, traffic.sent), since(received, traffic.received))
    }

    /// [`Traffic::connections`] of the link's last turn.
    pub fn connections(&self) -> usize {
        usize::try_from(self.0[0].load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// [`Traffic::sent`] of the link's last turn.
    pub fn sent(&self) -> u64 {
        self.0[1].load(Ordering::Relaxed)
    }

    /// [`Traffic::received`] of the link's last turn.
    pub fn received(&self) -> u64 {
        self.0[2].load(Ordering::Relaxed)
    }
}

/// One connection, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveConnection {
    /// Unique within the link.
    pub id: ConnectId,
    /// The host and port that the client asked for.
    pub target: Box<str>,
    /// When it was established.
    pub since: Instant,
    /// Payload sent to the peer, in bytes.
    pub sent: u64,
    /// Payload received from the peer, in bytes.
    pub received: u64,
    /// Payload that waits for the local end, in bytes.
    pub queued: usize,
    /// For how long the local end has accepted nothing while bytes waited.
    pub stalled: Option<Duration>,
}
