//! What a link carries, for operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mux::ConnectId;
use tokio::time::Instant;

/// What a link carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections whose local end has not been notified of its end.
    pub connections: usize,
    /// Those that moved up to [`mux::BULK_BYTES`] bytes, but not nothing.
    pub small: usize,
    /// Those that moved more.
    pub bulk: usize,
    /// Payload sent to the peer since the link's start, in bytes.
    pub sent: u64,
    /// Payload received from the peer since the link's start, in bytes.
    pub received: u64,
}

/// The traffic of one link, for other threads. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SharedTraffic(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    connections: AtomicUsize,
    sent: AtomicU64,
    received: AtomicU64,
}

impl SharedTraffic {
    /// Replaces the numbers. Returns the bytes that were sent, and those that were received, since the last call.
    pub fn set(&self, traffic: &Traffic) -> (u64, u64) {
        self.0.connections.store(traffic.connections, Ordering::Relaxed);
        let since = |before: &AtomicU64, now: u64| now.saturating_sub(before.swap(now, Ordering::Relaxed));
        (since(&self.0.sent, traffic.sent), since(&self.0.received, traffic.received))
    }

    /// [`Traffic::connections`] of the link's last turn.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Ordering::Relaxed)
    }

    /// [`Traffic::sent`] of the link's last turn.
    pub fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// [`Traffic::received`] of the link's last turn.
    pub fn received(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }
}

/// One connection, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveConnection {
    /// Unique within the link.
    pub id: ConnectId,
    /// The host and port that the client asked for.
    pub target: Box<str>,
    /// [`LocalIo::client`](crate::LocalIo::client).
    pub client: Box<str>,
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
