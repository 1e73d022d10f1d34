//! Vectors with typed labels: a child appears at its first use.

use std::fmt::Debug;
use std::hash::Hash;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{LiveGuard, registered};

/// The bounds of a label set.
pub trait Labels: EncodeLabelSet + Copy + Debug + Hash + Eq + Send + Sync + 'static {}

impl<L: EncodeLabelSet + Copy + Debug + Hash + Eq + Send + Sync + 'static> Labels for L {}

/// A counter per label set.
#[derive(Debug, Clone)]
pub struct CountBy<L>(Family<L, Counter>);

impl<L: Labels> CountBy<L> {
    /// Registers under `name` (with the registry's prefix).
    pub fn register(registry: &mut Registry, name: &str, help: &str) -> Self {
        Self(registered(registry, name, help, Family::default()))
    }

    /// Adds one. Takes a read lock and hashes: on a hot path keep a [`CountBy::counter`].
    pub fn count(&self, labels: L) {
        self.0.get_or_create(&labels).inc();
    }

    /// The child, which appears by this call.
    pub fn counter(&self, labels: L) -> Counter {
        self.0.get_or_create_owned(&labels)
    }
}

/// A gauge of live objects per label set.
#[derive(Debug, Clone)]
pub struct LiveBy<L>(Family<L, Gauge>);

impl<L: Labels> LiveBy<L> {
    /// Registers under `name` (with the registry's prefix).
    pub fn register(registry: &mut Registry, name: &str, help: &str) -> Self {
        Self(registered(registry, name, help, Family::default()))
    }

    /// Makes the child with these labels appear, at zero.
    pub fn show(&self, labels: L) {
        drop(self.0.get_or_create(&labels));
    }

    /// Adds one with these labels, until the guard is dropped.
    pub fn enter(&self, labels: L) -> LiveGuard {
        LiveGuard::enter(&self.0.get_or_create(&labels))
    }
}
