//! Metrics of both programs about the program itself and its payload.

use std::panic::{set_hook, take_hook};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use tokio::runtime::{Handle, RuntimeMetrics};

use super::{CountBy, Counter};

crate::label! {
    /// The direction of payload, the same at both programs.
    enum Direction in "direction" {
        /// From the client to the endpoint.
        ToEndpoint => "to_endpoint",
        /// From the endpoint to the client.
        FromEndpoint => "from_endpoint",
    }
}

crate::label!(struct Version in "version");

/// Registers `build_info` {version}, which is always 1.
pub fn register_build_info(registry: &mut Registry) {
    let family = Family::<Version, Gauge>::default();
    family.get_or_create(&Version(env!("CARGO_PKG_VERSION"))).set(1);
    registry.register("build_info", "1 for the version of the program", family);
}

/// `payload_bytes_total` {direction}. Clones share the counts.
#[derive(Debug, Clone)]
pub struct PayloadBytes {
    to_endpoint: Counter,
    from_endpoint: Counter,
}

impl PayloadBytes {
    /// Registers the family, with both directions at 0.
    pub fn register(registry: &mut Registry) -> Self {
        let help = "Payload bytes that agent streams have carried, by direction";
        let family = CountBy::register(registry, "payload_bytes_total", help);
        let [to_endpoint, from_endpoint] =
            [Direction::ToEndpoint, Direction::FromEndpoint].map(|direction| family.counter(direction));
        Self { to_endpoint, from_endpoint }
    }

    /// Adds the bytes of one turn of an agent stream.
    pub fn add(&self, to_endpoint: u64, from_endpoint: u64) {
        for (counter, bytes) in [(&self.to_endpoint, to_endpoint), (&self.from_endpoint, from_endpoint)] {
            if bytes > 0 {
                counter.inc_by(bytes);
            }
        }
    }
}

/// `tasks` (ours): the tasks of one runtime that have not ended, counted at each scrape. A leak shows here before it shows in
/// memory.
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

/// Registers `panics_total` (ours), and counts every panic of the process from now on; each ends its task. No release should
/// have one; docs/supply-chain.md tells what each task is needed for. The message goes to standard error, as before. Called
/// once, because a process has one hook.
pub fn count_panics(registry: &mut Registry) {
    let (counter, message) = (Counter::<u64>::default(), take_hook());
    let help = "Panics, each of which ended one task of the process";
    registry.register("panics_total", help, counter.clone());
    set_hook(Box::new(move |panic| {
        counter.inc();
        message(panic);
    }));
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
