//! Implements the observer traits of modules that do not know the metrics.

use std::time::Duration;

use super::Metrics;
use crate::dial::{DialObserver, FailureReason};
use crate::route::{RouteObserver, Strategy};

impl RouteObserver for Metrics {
    fn ready_backends(&self, strategy: Strategy, count: usize) {
        self.set_ready_backends(strategy, count);
    }

    fn ready_backend_connections(&self, count: usize) {
        self.set_ready_backend_connections(count);
    }
}

impl DialObserver for Metrics {
    fn started(&self) {
        self.pending_dials.inc();
    }

    fn succeeded(&self, elapsed: Duration) {
        self.pending_dials.dec();
        self.dial_duration.observe(elapsed);
    }

    fn failed(&self, reason: FailureReason) {
        self.pending_dials.dec();
        self.dial_failures.count(reason);
    }
}
