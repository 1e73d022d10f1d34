//! Gauges that are always exact, because guards of the counted objects update them.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Lazy, registered};

/// Counts live objects of one kind. Appears at first use. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Live(Lazy<Gauge>);

impl Live {
    /// Registers under `name` (with the registry's prefix).
    pub fn register(registry: &mut Registry, name: &str, help: &str) -> Self {
        Self(registered(registry, name, help, Lazy::default()))
    }

    /// Adds one, until the guard is dropped.
    pub fn enter(&self) -> LiveGuard {
        LiveGuard::enter(&self.0)
    }

    /// Makes the gauge appear, at 0 if there are no objects.
    pub fn show(&self) {
        let _: &Gauge = &self.0;
    }

    /// The current number of live objects.
    pub fn count(&self) -> i64 {
        self.0.peek().map_or(0, Gauge::get)
    }
}

/// One live object, counted from its construction to its drop.
#[derive(Debug)]
#[must_use = "the gauge falls when this is dropped"]
pub struct LiveGuard(Gauge);

impl LiveGuard {
    /// Adds one to this gauge.
    pub fn enter(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
