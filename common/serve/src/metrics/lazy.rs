//! A metric that appears at its first use, like the child of a Go vector without labels.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

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
