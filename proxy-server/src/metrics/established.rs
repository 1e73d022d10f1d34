//! Established connections: their number and their duration.

use serve::metrics::{CountBy, Histogram, Lazy, Live, LiveGuard};
use tokio::time::Instant;

use super::{ClosedReason, DURATION};

serve::families! {
    /// Established connections, whose metrics change together.
    pub struct Established {
        live: Live = "established_connections",
            "Current number of established end-to-end connections (post-dial).";
        duration: Lazy<Histogram> = "connection_duration_seconds",
            "Seconds from a connection's establishment to its end", Lazy::new(|| Histogram::new(DURATION));
        closed: CountBy<ClosedReason> = "established_connections_closed_total",
            "Established connections that ended, by reason";
    }
}

impl Established {
    /// Counts a connection until the guard is dropped.
    pub fn enter(&self) -> EstablishedGuard {
        EstablishedGuard {
            since: Instant::now(),
            // Its stream may end without a word, as at a forced stop.
            reason: ClosedReason::BackendClose,
            ended: self.clone(),
            _live: self.live.enter(),
        }
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
    reason: ClosedReason,
    ended: Established,
    _live: LiveGuard,
}

impl EstablishedGuard {
    /// Counts the connection's end.
    pub fn closed(mut self, reason: ClosedReason) {
        self.reason = reason;
    }
}

impl Drop for EstablishedGuard {
    fn drop(&mut self) {
        self.ended.duration.observe(self.since.elapsed());
        self.ended.closed.count(self.reason);
    }
}

#[cfg(test)]
mod tests {
    use serve::metrics::Registry;

    use super::*;

    #[test]
    fn every_connection_that_ends_has_a_reason() {
        let established = Established::register(&mut Registry::default());
        established.enter().closed(ClosedReason::Closed);
        drop(established.enter());
        let count = |reason| established.closed.counter(reason).get();
        assert_eq!(
            (count(ClosedReason::Closed), count(ClosedReason::BackendClose), established.count()),
            (1, 1, 0)
        );
    }
}
