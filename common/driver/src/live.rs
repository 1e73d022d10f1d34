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
    /// Payload sent to the peer since the link's start, in bytes.
    pub sent: u64,
    /// Payload received from the peer since the link's start, in bytes.
    pub received: u64,
}

/// The traffic of one link, for other threads. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SharedTraffic(Arc<[AtomicU64; 3]>);

impl SharedTraffic {
    /// Replaces the numbers. Returns the bytes that were sent, and those that were received, since the last call.
    pub fn set(&self, Traffic { connections, sent, received }: Traffic) -> (u64, u64) {
        let [open, before @ ..] = &*self.0;
        open.store(connections as u64, Ordering::Relaxed);
        let [sent_before, received_before] =
            [0, 1].map(|number| before[number].swap([sent, received][number], Ordering::Relaxed));
        (sent.saturating_sub(sent_before), received.saturating_sub(received_before))
    }

    /// The numbers of the link's last turn.
    pub fn get(&self) -> Traffic {
        let [connections, sent, received] = [0, 1, 2].map(|number| self.0[number].load(Ordering::Relaxed));
        Traffic { connections: usize::try_from(connections).unwrap_or(usize::MAX), sent, received }
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
