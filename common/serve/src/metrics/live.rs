//! Metrics that appear at their first use, and gauges of live objects: guards of the objects update them, so they are always
//! exact.

use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

use super::registered;

/// A metric that scrapes omit before its first use. Clones share it. Dereferencing is a use.
#[derive(Debug, Clone)]
pub struct Lazy<M> {
    cell: Arc<OnceLock<M>>,
    make: fn() -> M,
}

impl<M> Lazy<M> {
    /// `make` builds the metric at its first use.
    pub fn new(make: fn() -> M) -> Self {
        Self { cell: Arc::default(), make }
    }

    /// The metric, if it was used: a look at it is no use.
    pub fn peek(&self) -> Option<&M> {
        self.cell.get()
    }
}

impl<M: Default> Default for Lazy<M> {
    fn default() -> Self {
        Self::new(M::default)
    }
}

impl<M> Deref for Lazy<M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.cell.get_or_init(self.make)
    }
}

impl<M: TypedMetric> TypedMetric for Lazy<M> {
    const TYPE: MetricType = M::TYPE;
}

impl<M: EncodeMetric + TypedMetric> EncodeMetric for Lazy<M> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.peek().map_or(Ok(()), |metric| metric.encode(encoder))
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        self.peek().is_none()
    }
}

/// Counts live objects of one kind.
pub type Live = Lazy<Gauge>;

impl Live {
    /// Adds one, until the guard is dropped.
    pub fn enter(&self) -> LiveGuard {
        LiveGuard::enter(self)
    }

    /// Makes the gauge appear, at 0 if there are no objects.
    pub fn show(&self) {
        let _: &Gauge = self;
    }

    /// The current number of live objects.
    pub fn count(&self) -> i64 {
        self.peek().map_or(0, Gauge::get)
    }
}

/// One live object, counted from its construction to its drop.
#[derive(Debug)]
#[must_use = "the gauge falls when this is dropped"]
pub struct LiveGuard(Gauge);

impl LiveGuard {
    fn enter(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The bounds of a label set.
pub trait Labels: EncodeLabelSet + Copy + fmt::Debug + Hash + Eq + Send + Sync + 'static {}

impl<L: EncodeLabelSet + Copy + fmt::Debug + Hash + Eq + Send + Sync + 'static> Labels for L {}

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
