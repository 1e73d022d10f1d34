//! Certificates that change while a program runs: watches their files and updates their metrics.
//!
//! Only later handshakes use a new certificate; established connections continue.

use std::sync::Arc;
use std::time::Duration;

use net::tls::{Options, Rotated, Tls, Validities, unix_now, watch};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio_util::task::AbortOnDropHandle;

use crate::metrics::Certificates;
use crate::statusz::Facts;

/// The shortest poll interval, to prevent a busy loop.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The interval of the checks of the kubeconfig's certificate, if files are not reloaded.
const POLL: Duration = Duration::from_secs(60);

/// The kubeconfig's flag; its client certificate authenticates us at the Kubernetes API.
const KUBECONFIG: &str = "kubeconfig";

/// The listener or client whose handshakes use the files.
#[derive(Debug, Clone, Copy)]
pub struct CertificateSide {
    /// The name in metrics.
    pub name: &'static str,
    /// The name of the files in logs: their flags.
    pub files: &'static str,
    /// The flag of the certificate.
    pub cert: &'static str,
    /// The flag of the authorities.
    pub authorities: &'static str,
}

/// Exports the expiry of the certificates in use, shows them in the status, and watches their files on `runtime` every
/// `every`, if set. The watch ends when the handle is dropped.
pub fn keep_fresh<O: Options>(
    runtime: &Handle,
    facts: &Facts,
    tls: Tls<O>,
    side: CertificateSide,
    every: Option<Duration>,
    metrics: &Certificates,
) -> Option<AbortOnDropHandle<()>> {
    metrics.loaded(side.name, unix_now());
    show(metrics, side, tls.validities());
    let certificates = tls.clone();
    let refused = facts.certificates(side, move || certificates.certificates());
    let every = every?.max(MIN_INTERVAL);
    let metrics = metrics.clone();
    let watching = watch(tls, side.files, every, move |rotated| {
        refused.lock().clear();
        match rotated {
            Rotated::Taken(validities) => {
                show(&metrics, side, validities);
                metrics.reloaded(side.name, unix_now(), true);
            }
            Rotated::Refused(why) => {
                *refused.lock() = why;
                metrics.reloaded(side.name, unix_now(), false);
            }
            Rotated::Restored => metrics.restored(side.name),
        }
    });
    Some(AbortOnDropHandle::new(runtime.spawn(watching)))
}

/// Shows when the kubeconfig's certificate expires, if it has one, in the status and in the metrics, now and every `every`, or every
/// [`POLL`] if that is not set: the certificate may be in a file that is read at each use. The polling ends when the handle is dropped.
pub fn keep_kubeconfig_shown(
    runtime: &Handle,
    facts: &Facts,
    expires: Option<impl Fn() -> Option<i64> + Clone + Send + Sync + 'static>,
    every: Option<Duration>,
    metrics: &Certificates,
) -> Option<AbortOnDropHandle<()>> {
    let (expires, metrics, shown) = (expires?, metrics.clone(), Arc::new(Mutex::new(None)));
    let last = Arc::clone(&shown);
    facts.kubeconfig_certificate(move || *last.lock());
    let show = move || {
        let expires = expires();
        *shown.lock() = expires;
        if let Some(at) = expires {
            metrics.expires(KUBECONFIG, at);
        }
    };
    show();
    let every = every.unwrap_or(POLL).max(MIN_INTERVAL);
    Some(AbortOnDropHandle::new(runtime.spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            // On a blocking thread: a network file system may hang.
            let _ = spawn_blocking(show.clone()).await;
        }
    })))
}

fn show(metrics: &Certificates, side: CertificateSide, validities: Validities) {
    for (file, validity) in [(side.cert, validities.own), (side.authorities, validities.authorities)] {
        if let Some(validity) = validity {
            metrics.expires(file, validity.not_after);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use prometheus_client::registry::Registry;

    use super::*;
    use crate::logs::VerbosityLevel;
    use crate::metrics::Exposition;
    use crate::statusz::unix;

    #[tokio::test(start_paused = true)]
    async fn a_kubeconfigs_certificate_is_looked_at_again() {
        let mut registry = Registry::default();
        let metrics = Certificates::register(&mut registry);
        let scrape = Exposition::new(registry);
        let shown = |at: i64| {
            scrape
                .scrape()
                .contains(&format!("certificate_expiry_timestamp_seconds{{file=\"kubeconfig\"}} {at}\n"))
        };
        let file = Arc::new(AtomicI64::new(5_000));
        let read = Arc::clone(&file);
        let expires = move || Some(read.load(Ordering::Relaxed)).filter(|at| *at > 0);
        let every = Some(Duration::from_secs(10));
        let facts = Facts::new("proxy-server", "", "", &[], VerbosityLevel::new(0));
        let _looks = keep_kubeconfig_shown(&Handle::current(), &facts, Some(expires), every, &metrics);
        assert!(shown(5_000), "at once");
        file.store(9_000, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert!(shown(9_000), "the file was renewed");
        file.store(0, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert!(shown(9_000), "a file that cannot be read says nothing");
    }

    #[tokio::test]
    async fn a_kubeconfigs_certificate_that_cannot_be_read_delays_nothing_else() {
        let metrics = Certificates::register(&mut Registry::default());
        let facts = Facts::new("proxy-server", "", "", &[], VerbosityLevel::new(0));
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (reads, held) = (Arc::new(AtomicI64::new(0)), Arc::new(Mutex::new(held)));
        let read = Arc::clone(&reads);
        // The second read hangs.
        let expires = move || match read.fetch_add(1, Ordering::Relaxed) {
            0 => Some(5_000),
            _ => held.lock().recv_timeout(Duration::from_secs(20)).ok().map(|()| 9_000),
        };
        let _looks =
            keep_kubeconfig_shown(&Handle::current(), &facts, Some(expires), Some(MIN_INTERVAL), &metrics);
        let shown = || facts.document().certificates.first().map(|shown| shown.not_after.clone());
        while reads.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(shown(), Some(unix(5_000)), "the read hangs");
        release.send(()).unwrap();
        while shown() != Some(unix(9_000)) {
            tokio::task::yield_now().await;
        }
    }
}
