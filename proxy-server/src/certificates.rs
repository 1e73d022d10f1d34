//! Certificates that change while the server runs: their watchers, and what metrics say about them.
//!
//! Only handshakes of later see a change; what is connected stays connected.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use transport::tls::{Rotated, Rotating, ServerTls, Validities, unix_now, watch};

use crate::metrics::Metrics;

/// The least time between two looks: less would be a busy loop.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

/// One of the two listeners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side {
    /// Metrics' name.
    name: &'static str,
    /// What the log calls its files: their flags.
    files: &'static str,
    /// The flags of the two files that expire.
    cert: &'static str,
    authorities: &'static str,
}

/// Where kube-apiserver connects.
pub(crate) const FRONTEND: Side = Side {
    name: "frontend",
    files: "--server-cert, --server-key, --server-ca-cert",
    cert: "server-cert",
    authorities: "server-ca-cert",
};

/// Where agents connect.
pub(crate) const AGENTS: Side = Side {
    name: "agents",
    files: "--cluster-cert, --cluster-key, --cluster-ca-cert",
    cert: "cluster-cert",
    authorities: "cluster-ca-cert",
};

/// Shows the certificates in use, and watches their files on `runtime` unless `every` is none. The watch ends with
/// the handle.
pub(crate) fn keep_fresh(
    runtime: &Handle,
    tls: ServerTls,
    side: Side,
    every: Option<Duration>,
    metrics: &Metrics,
) -> Option<AbortOnDropHandle<()>> {
    metrics.certificates.loaded(side.name, unix_now());
    show(metrics, side, tls.validities());
    let every = every?.max(LEAST_INTERVAL);
    let metrics = metrics.clone();
    let watching = watch(tls, side.files, every, move |rotated| match rotated {
        Rotated::Taken(validities) => {
            show(&metrics, side, validities);
            metrics.certificates.reloaded(side.name, unix_now(), true);
        }
        Rotated::Refused => metrics.certificates.reloaded(side.name, unix_now(), false),
        Rotated::Restored => metrics.certificates.restored(side.name),
    });
    Some(AbortOnDropHandle::new(runtime.spawn(watching)))
}

fn show(metrics: &Metrics, side: Side, validities: Validities) {
    for (file, validity) in [(side.cert, validities.own), (side.authorities, validities.authorities)] {
        if let Some(validity) = validity {
            metrics.certificates.expires(file, validity.not_after);
        }
    }
}
