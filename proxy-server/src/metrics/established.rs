//! Established connections: their number and their duration.

use serve::metrics::{CountBy, Histogram, Lazy, Live, LiveGuard, Registry};
use tokio::time::Instant;

use super::{ClosedReason, DURATION};

/// `established_connections`, `connection_duration_seconds` and `established_connections_closed_total`, which change together.
#[derive(Debug, Clone)]
pub struct Established {
    live: Live,
    duration: Lazy<Histogram>,
    closed: CountBy<ClosedReason>,
}

impl Established {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let duration = Lazy::new(|| Histogram::new(DURATION));
        let help = "Seconds from a connection's establishment to its end";
        registry.register("connection_duration_seconds", help, duration.clone());
        let help = "Established connections that ended, by reason";
        let closed = CountBy::register(registry, "established_connections_closed_total", help);
        let help = "Connections from a frontend to an endpoint";
        Self { live: Live::register(registry, "established_connections", help), duration, closed }
    }

    /// Counts a connection until the guard is dropped.
    pub fn enter(&self) -> EstablishedGuard {
        EstablishedGuard { since: Instant::now(), duration: self.duration.clone(), _live: self.live.enter() }
    }

    /// Counts a connection's end.
    pub fn closed(&self, _connection: EstablishedGuard, reason: ClosedReason) {
        self.closed.count(reason);
    }

    /// The number of established connections.
    pub fn count(&self) -> i64 {
        self.live.count()
    }
}

/// Counts one established connection until it is dropped.
#[derive(Debug)]
#[must_use = "the connection counts as ended when this is dropped"]
pub struct EstablishedGuard {
    since: Instant,
    duration: Lazy<Histogram>,
    _live: LiveGuard,
}

impl Drop for EstablishedGuard {
    fn drop(&mut self) {
        self.duration.observe(self.since.elapsed());
    }
}
