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

/// The traffic of one link, for other threads. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SharedTraffic(Arc<[AtomicU64; 5]>);

impl SharedTraffic {
    /// Replaces the numbers. Returns the bytes that were sent, and those that were received, since the last call.
    pub fn set(&self, traffic: Traffic) -> (u64, u64) {
        let Traffic { connections, small, bulk, sent, received } = traffic;
        let [counts @ .., sent_before, received_before] = &*self.0;
        for (count, now) in counts.iter().zip([connections, small, bulk]) {
            count.store(now as u64, Ordering::Relaxed);
        }
        let since = |before: &AtomicU64, now: u64| now.saturating_sub(before.swap(now, Ordering::Relaxed));
        (since(sent_before, sent), since(received_before, received))
    }

    /// The numbers of the link's last turn.
    pub fn get(&self) -> Traffic {
        let number = |place: usize| self.0[place].load(Ordering::Relaxed);
        let count = |place| usize::try_from(number(place)).unwrap_or(usize::MAX);
        Traffic {
            connections: count(0),
            small: count(1),
            bulk: count(2),
            sent: number(3),
            received: number(4),
        }
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
