//! Leases: this replica's own, renewed while it serves, and the deletion of those that others left behind.
//!
//! Agents count the replicas by them. [`renew`] keeps ours, [`collect`] judges and deletes expired ones; the two go
//! on independently, each at its own pace. Nothing waits for the API here but these tasks: a server without leases
//! carries traffic like any other.

mod collect;
mod renew;

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::{Client, Clock};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::collect::Collector;
use self::renew::Renewer;
use crate::metrics::Metrics;

/// How long a renewal lasts, in seconds. Source: Go's cmd/server/app, as the other two.
const LEASE_SECONDS: i64 = 30;
const RENEW_EVERY: Duration = Duration::from_secs(15);
const COLLECT_EVERY: Duration = Duration::from_secs(15);
/// By how much of itself a pause is lengthened at random (Go: 0.04).
const JITTER: f64 = 0.04;
/// What the names of leases begin with, before the server's id.
const NAME: &str = "konnectivity-proxy-server-";
/// How long the end of our own lease may take: a renewal under way, and the deletion.
const STOP_WITHIN: Duration = Duration::from_secs(3);

/// What the leases say, and how often.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    /// The namespace of all of them.
    pub namespace: String,
    /// What marks them.
    pub labels: BTreeMap<String, String>,
    /// Who holds ours; also the end of its name.
    pub server_id: String,
    /// What the wall clock says.
    pub clock: Clock,
    /// The pause between renewals, before jitter.
    pub renew_every: Duration,
    /// The pause between looks for expired leases.
    pub collect_every: Duration,
}

impl LeaseSettings {
    /// Settings as the Go server has them.
    pub fn new(namespace: String, labels: BTreeMap<String, String>, server_id: String) -> Self {
        let (renew_every, collect_every) = (RENEW_EVERY, COLLECT_EVERY);
        Self { namespace, labels, server_id, clock: Clock::system(), renew_every, collect_every }
    }

    /// The name of our lease.
    pub fn name(&self) -> String {
        format!("{NAME}{}", self.server_id)
    }

    /// The labels as a selector.
    fn selector(&self) -> String {
        let pairs: Vec<_> = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(",")
    }
}

/// The two tasks. Dropping it ends them, and leaves the lease to expire.
#[derive(Debug)]
pub struct LeaseController {
    stop: CancellationToken,
    tasks: [JoinHandle<()>; 2],
}

impl LeaseController {
    /// Starts both tasks on a runtime.
    pub fn start(runtime: &Handle, client: &Client, settings: LeaseSettings, metrics: Metrics) -> Self {
        let stop = CancellationToken::new();
        let leases = client.leases(&settings.namespace);
        let renewer = Renewer::new(leases.clone(), settings.clone(), metrics.clone());
        let collector = Collector::new(leases, settings, metrics);
        let tasks = [runtime.spawn(renewer.run(stop.clone())), runtime.spawn(collector.run(stop.clone()))];
        Self { stop, tasks }
    }

    /// Ends both tasks and deletes our lease, so that no agent looks for a server that has gone. Bounded in time.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let [renewer, collector] = &mut self.tasks;
        let ended = async { tokio::join!(renewer, collector) };
        if timeout(STOP_WITHIN, ended).await.is_err() {
            tracing::warn!("The lease could not be deleted in time; it expires within 30 s");
        }
    }
}

impl Drop for LeaseController {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Waits for a period with jitter; false if `stop` fell.
async fn pause(period: Duration, stop: &CancellationToken) -> bool {
    let period = period.mul_f64(1.0 + JITTER * rand::random::<f64>());
    tokio::select! {
        () = sleep(period) => true,
        () = stop.cancelled() => false,
    }
}

#[cfg(test)]
mod tests;
