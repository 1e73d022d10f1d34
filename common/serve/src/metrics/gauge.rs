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

/// A sum of amounts that live objects hold, for instance bytes in queues.
#[derive(Debug, Clone, Default)]
pub struct Holdings(Gauge);

impl Holdings {
    /// Registers under `name` (with the registry's prefix). Visible from the start.
    pub fn register(registry: &mut Registry, name: &str, help: &str) -> Self {
        Self(registered(registry, name, help, Gauge::default()))
    }

    /// A new holder with amount 0.
    pub fn hold(&self) -> Held {
        Held { sum: self.0.clone(), amount: 0 }
    }
}

/// One object's part of the sum. Dropping it subtracts the part.
#[derive(Debug)]
#[must_use = "what it holds is given back when this is dropped"]
pub struct Held {
    sum: Gauge,
    amount: usize,
}

impl Held {
    /// Sets the amount, and returns the one before. Costs one relaxed atomic addition, or none if nothing changed.
    pub fn set(&mut self, amount: usize) -> usize {
        if amount != self.amount {
            self.sum.inc_by(amount as i64 - self.amount as i64);
        }
        std::mem::replace(&mut self.amount, amount)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}
