//! Leases: renews this replica's own lease while it serves, and deletes expired leases of other replicas.
//!
//! Agents count the replicas by leases. [`renew`] keeps our own, [`collect`] judges and deletes expired ones; the two tasks are
//! independent. Only these tasks wait for the API: a server without leases carries traffic all the same.

mod collect;
mod renew;

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::Client;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::collect::Collector;
use self::renew::Renewer;
use crate::metrics::Metrics;

/// Duration of a lease in seconds. Source of this and the next: Go's `cmd/server/app`.
const LEASE_SECONDS: i64 = 30;
/// The pause between renewals, and between lists of leases, without jitter.
pub const PERIOD: Duration = Duration::from_secs(15);
/// Random lengthening of a pause, as a fraction of it (Go: 0.04).
const JITTER: f64 = 0.04;
/// The prefix of lease names; the server id follows.
const NAME: &str = "konnectivity-proxy-server-";
/// Time limit for the end of our own lease: a running renewal and the deletion.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The content of the leases, and the interval.
#[derive(Clone)]
pub struct LeaseSettings {
    /// The namespace of all leases.
    pub namespace: String,
    /// The labels of all leases.
    pub labels: BTreeMap<String, String>,
    /// The holder of our lease, and the suffix of its name.
    pub server_id: String,
    /// `HOST:PORT` where agents reach this replica directly.
    pub advertise_address: Option<String>,
    /// [`PERIOD`], except in tests.
    pub every: Duration,
}

impl LeaseSettings {
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

/// The two tasks. Dropping it ends both, and leaves the lease to expire.
#[derive(Debug)]
pub struct LeaseController {
    stop: CancellationToken,
    tasks: [AbortOnDropHandle<()>; 2],
}

impl LeaseController {
    /// Starts both tasks on `runtime`.
    pub fn start(runtime: &Handle, client: &Client, settings: LeaseSettings, metrics: Metrics) -> Self {
        let stop = CancellationToken::new();
        let leases = client.leases(&settings.namespace);
        let renewer = Renewer::new(leases.clone(), settings.clone(), metrics.clone());
        let collector = Collector::new(leases, settings, metrics);
        let tasks = [runtime.spawn(renewer.run(stop.clone())), runtime.spawn(collector.run(stop.clone()))];
        Self { stop, tasks: tasks.map(AbortOnDropHandle::new) }
    }

    /// Ends both tasks and deletes our lease, so that agents do not look for a server that has gone. Returns within
    /// [`STOP_TIMEOUT`].
    pub async fn stop(mut self) {
        self.stop.cancel();
        let [renewer, collector] = &mut self.tasks;
        let ended = async { tokio::join!(renewer, collector) };
        if timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!("The lease could not be deleted in time; it expires within 30 s");
        }
    }
}

/// Waits for a period with jitter; false if `stop` was canceled.
async fn pause(interval: Duration, stop: &CancellationToken) -> bool {
    let interval = interval.mul_f64(1.0 + JITTER * rand::random::<f64>());
    tokio::select! {
        () = sleep(interval) => true,
        () = stop.cancelled() => false,
    }
}

#[cfg(test)]
mod tests;
