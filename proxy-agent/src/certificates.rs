//! Certificates that change while the agent runs: their watcher, and what metrics say about them.
//!
//! Only handshakes of later see a change; streams stay. The token's file needs no watcher, it is read for each
//! connect.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use transport::tls::{ClientTls, Rotated, Rotating, Validities, unix_now, watch};

use crate::metrics::Metrics;

/// The least time between two looks: less would be a busy loop.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

/// Metrics' name for handshakes with servers, the only ones that the agent has.
const SIDE: &str = "servers";

/// Shows the certificates in use, and watches their files on `runtime` unless `every` is none. The watch ends with
/// the handle.
pub(crate) fn keep_fresh(
    runtime: &Handle,
    tls: ClientTls,
    every: Option<Duration>,
    metrics: &Metrics,
) -> Option<AbortOnDropHandle<()>> {
    metrics.certificates.loaded(SIDE, unix_now());
    show(metrics, tls.validities());
    let every = every?.max(LEAST_INTERVAL);
    let metrics = metrics.clone();
    let watching = watch(tls, "--ca-cert, --agent-cert, --agent-key", every, move |rotated| match rotated {
        Rotated::Taken(validities) => {
            show(&metrics, validities);
            metrics.certificates.reloaded(SIDE, unix_now(), true);
        }
        Rotated::Refused => metrics.certificates.reloaded(SIDE, unix_now(), false),
        Rotated::Restored => metrics.certificates.restored(SIDE),
    });
    Some(AbortOnDropHandle::new(runtime.spawn(watching)))
}

fn show(metrics: &Metrics, validities: Validities) {
    for (file, validity) in [("agent-cert", validities.own), ("ca-cert", validities.authorities)] {
        if let Some(validity) = validity {
            metrics.certificates.expires(file, validity.not_after);
        }
    }
}
