//! Our own lease: created, renewed, and deleted at the end.

use std::time::Duration;

use cluster::lease::AGENT_ADDRESS;
use cluster::{ApiError, Clock, Lease, Leases, Moment};
use net::tls::unix_now;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{LEASE_SECONDS, LeaseSettings, pause};
use crate::metrics::Metrics;

/// Retries after the first attempt of a period (client-go's lease controller: 5).
const RETRIES: u32 = 5;
/// The pause before the first retry. It doubles with each retry.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause that the API may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(7);

/// Creates, renews and deletes our lease.
pub(super) struct Renewer {
    leases: Leases,
    settings: LeaseSettings,
    metrics: Metrics,
    /// The lease as the API last returned it, for the next update. `None`: it must be read first.
    held: Option<Lease>,
    /// The time of the renewal that was last sent, possibly without an answer. With [`Self::taken`] it distinguishes our lease
    /// from a successor's.
    sent: Option<Moment>,
    /// The time of the last renewal that the API is known to have stored: later ones may never have arrived.
    taken: Option<Moment>,
}

impl Renewer {
    pub(super) fn new(leases: Leases, settings: LeaseSettings, metrics: Metrics) -> Self {
        // Present from the start, so that an alert sees a lease that is never renewed.
        metrics.lease_renewed.set(0);
        Self { leases, settings, metrics, held: None, sent: None, taken: None }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.renew_insistently(&stop).await;
            if !pause(self.settings.every, &stop).await {
                break;
            }
        }
        self.delete().await;
    }

    /// One renewal with its retries. A running call is never cut off: its result decides what is deleted at the end.
    async fn renew_insistently(&mut self, stop: &CancellationToken) {
        for attempt in 0..=RETRIES {
            if stop.is_cancelled() {
                return;
            }
            let Err(error) = self.renew().await else { return };
            let lease = self.settings.name();
            self.metrics.journal.api_failed(&format!("lease {lease}: {error}"));
            if attempt == RETRIES {
                tracing::error!(lease, %error, "The lease could not be renewed; trying again in the next period");
                return;
            }
            tracing::debug!(lease, %error, attempt, "The lease could not be renewed");
            let wait =
                (MIN_PAUSE * 2_u32.pow(attempt)).max(error.retry_after().unwrap_or_default().min(MAX_PAUSE));
            tokio::select! {
                () = sleep(wait) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn renew(&mut self) -> Result<(), ApiError> {
        let lease = match self.held.take() {
            Some(lease) => Some(lease),
            None => match self.leases.get(&self.settings.name()).await {
                Ok(lease) => {
                    if self.is_ours(&lease) {
                        self.taken = lease.spec.renew_time;
                    }
                    Some(lease)
                }
                Err(error) if error.is(404) => None,
                Err(error) => return Err(error),
            },
        };
        let is_new = lease.is_none();
        let mut lease = lease.unwrap_or_else(|| Lease::new(&self.settings.namespace, &self.settings.name()));
        let now = Clock::system().now();
        lease.metadata.labels.clone_from(&self.settings.labels);
        let address = self.settings.advertise_address.clone();
        lease.metadata.annotations.remove(AGENT_ADDRESS);
        lease.metadata.annotations.extend(address.map(|address| (AGENT_ADDRESS.to_owned(), address)));
        lease.spec.holder_identity = Some(self.settings.server_id.clone());
        lease.spec.lease_duration_seconds = Some(LEASE_SECONDS);
        lease.spec.renew_time = Some(now);
        self.sent = Some(now);
        let written =
            if is_new { self.leases.create(&lease).await } else { self.leases.update(&lease).await };
        self.held = Some(written?);
        self.taken = Some(now);
        self.metrics.lease_renewed.set(unix_now());
        if is_new {
            tracing::info!(lease = lease.metadata.name, namespace = self.settings.namespace, "Lease created");
        }
        Ok(())
    }

    /// Deletes the lease if we wrote it: a successor with the same server id may hold it already.
    async fn delete(self) {
        let name = self.settings.name();
        if self.sent.is_none() {
            return;
        }
        tracing::info!(target: "v0", "Cleaning up server lease {name:?}");
        if let Err(error) = self.delete_unless_foreign(&name).await
            && !error.is(404)
        {
            let namespace = &self.settings.namespace;
            tracing::error!("Could not clean up lease {name:?} in namespace {namespace:?}: {error}");
        }
    }

    /// Whether the lease contains a renewal of ours.
    fn is_ours(&self, lease: &Lease) -> bool {
        lease.spec.renew_time.is_some_and(|renewed| [self.sent, self.taken].contains(&Some(renewed)))
    }

    async fn delete_unless_foreign(&self, name: &str) -> Result<(), ApiError> {
        let there = self.leases.get(name).await?;
        if !self.is_ours(&there) {
            tracing::info!(
                lease = name,
                "The lease belongs to another process with our server id, and stays"
            );
            return Ok(());
        }
        self.leases.delete(name, Some(&there.metadata.resource_version)).await
    }
}
