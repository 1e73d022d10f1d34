//! Certificates that change while a program runs: their watchers, and what metrics say about them.
//!
//! Only handshakes of later see a change; what is connected stays connected.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use transport::tls::{Rotated, Rotating, Validities, unix_now, watch};

use crate::metrics::Certificates;

/// The least time between two looks: less would be a busy loop.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

/// Whose handshakes the files are for.
#[derive(Debug, Clone, Copy)]
pub struct CertificateSide {
    /// Metrics' name.
    pub name: &'static str,
    /// What the log calls its files: their flags.
    pub files: &'static str,
    /// The flag of the certificate, which expires.
    pub cert: &'static str,
    /// The flag of the authorities, which do too.
    pub authorities: &'static str,
}

/// Shows the certificates in use, and watches their files on `runtime` unless `every` is none. The watch ends with
/// the handle.
pub fn keep_fresh<R: Rotating>(
    runtime: &Handle,
    tls: R,
    side: CertificateSide,
    every: Option<Duration>,
    metrics: &Certificates,
) -> Option<AbortOnDropHandle<()>> {
    metrics.loaded(side.name, unix_now());
    show(metrics, side, tls.validities());
    let every = every?.max(LEAST_INTERVAL);
    let metrics = metrics.clone();
    let watching = watch(tls, side.files, every, move |rotated| match rotated {
        Rotated::Taken(validities) => {
            show(&metrics, side, validities);
            metrics.reloaded(side.name, unix_now(), true);
        }
        Rotated::Refused => metrics.reloaded(side.name, unix_now(), false),
        Rotated::Restored => metrics.restored(side.name),
    });
    Some(AbortOnDropHandle::new(runtime.spawn(watching)))
}

fn show(metrics: &Certificates, side: CertificateSide, validities: Validities) {
    for (file, validity) in [(side.cert, validities.own), (side.authorities, validities.authorities)] {
        if let Some(validity) = validity {
            metrics.expires(file, validity.not_after);
        }
    }
}
