//! A histogram of durations in atomics: an observation takes no lock, because there is one for each relayed packet.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Durations, exposed in seconds. Clones share the buckets.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// Upper bounds in seconds, ascending, without `+Inf`.
    bounds: &'static [f64],
    /// Observations per bucket (not cumulative); the last one is `+Inf`.
    buckets: Arc<[AtomicU64]>,
    /// In whole nanoseconds: exact, and sufficient for 584 years.
    sum: Arc<AtomicU64>,
}

impl Histogram {
    /// `bounds` are upper bounds in seconds, ascending; `+Inf` is added.
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: Arc::default() }
    }

    /// Counts one duration: two relaxed atomic additions.
    pub fn observe(&self, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        let index = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The number of observed durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // The count comes from the same reading as the buckets, so that `_count` always equals the value of `+Inf`.
        let count = buckets.iter().map(|(_, n)| n).sum();
        let sum = Duration::from_nanos(self.sum.load(Ordering::Relaxed)).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upper_bounds_are_inclusive() {
        let histogram = Histogram::new(&[0.005, 0.1]);
        for millis in [5, 6, 100, 101] {
            histogram.observe(Duration::from_millis(millis));
        }
        let counts: Vec<u64> = histogram.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect();
        assert_eq!(counts, [1, 2, 1]);
        assert_eq!(histogram.count(), 4);
    }
}
