//! The number of a runtime's tasks: a leak shows here before it shows in memory.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::runtime::{Handle, RuntimeMetrics};

/// `tasks` (ours): the tasks of one runtime that have not ended, counted at each scrape.
#[derive(Debug)]
pub struct Tasks(RuntimeMetrics);

impl Tasks {
    /// Registers the gauge for the runtime of `handle`; `prefix` is that of all metrics of the program.
    pub fn register(registry: &mut Registry, prefix: &str, handle: &Handle) {
        registry.sub_registry_with_prefix(prefix).register_collector(Box::new(Self(handle.metrics())));
    }
}

impl Collector for Tasks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let tasks = ConstGauge::new(i64::try_from(self.0.num_alive_tasks()).unwrap_or(i64::MAX));
        let help = "Tasks of the data path that have not ended";
        tasks.encode(encoder.encode_descriptor("tasks", help, None, tasks.metric_type())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Exposition;

    #[tokio::test]
    async fn tasks_count_until_they_end() {
        let mut registry = Registry::default();
        Tasks::register(&mut registry, "p", &Handle::current());
        let exposition = Exposition::new(registry);
        let shown = || {
            let scrape = exposition.scrape();
            assert!(scrape.contains("# TYPE p_tasks gauge\n"), "{scrape}");
            scrape.lines().find_map(|line| line.strip_prefix("p_tasks ")?.parse::<u32>().ok())
        };
        assert_eq!(shown(), Some(0));
        let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
        assert_eq!(shown(), Some(3));
        for task in tasks {
            task.abort();
            assert!(task.await.is_err());
        }
        assert_eq!(shown(), Some(0));
    }
}
