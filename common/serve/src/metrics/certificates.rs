//! Metrics of certificates: expiry, reloads, and certificates that only Go's rules accept.
//!
//! The Go programs have no such families, because they need a restart for new certificates.

use std::sync::Arc;

use net::tls::LegacyPkiObserver;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::CountBy;

// A file, by the flag that names it.
crate::label!(struct File in "file");

// The listener or client whose handshakes use the files.
crate::label!(struct Side in "side");

// Why only Go's rules accept a certificate, by net's label.
crate::label!(struct LegacyReason in "reason");

crate::label! {
    /// The result of a change of files.
    enum Outcome in "result" {
        /// The new files are in use.
        Success => "success",
        /// The new files were refused; the current configuration stays.
        Failure => "failure",
    }
}

crate::families! {
    /// Which certificate files are in use, until when they are valid, and handshakes that only Go's rules accept.
    pub struct Certificates {
        expiry: Family<File, Gauge> = "certificate_expiry_timestamp_seconds",
            "When the first certificate of a file in use expires, in seconds of Unix time, by the file's flag";
        reloads: CountBy<(Outcome, Side)> = "certificate_reloads_total",
            "Certificate reloads by listener or client and result";
        last: Family<Side, Gauge> = "certificate_last_reload_timestamp_seconds",
            "When certificate files were last loaded or refused, in seconds of Unix time";
        success: Family<Side, Gauge> = "certificate_last_reload_success",
            "1 if what certificate files hold is in use, 0 if their last change was refused";
        legacy: CountBy<LegacyReason> = "legacy_certificates_total",
            "Handshakes with a certificate that only Go's rules accept, by reason";
    }
}

impl Certificates {
    /// A file in use, named by its flag, expires at `at`, in seconds of Unix time.
    pub fn expires(&self, file: &'static str, at: i64) {
        self.expiry.get_or_create(&File(file)).set(at);
    }

    /// The files of a side were loaded at the start.
    pub fn loaded(&self, side: &'static str, now: i64) {
        for outcome in Outcome::ALL {
            // Visible at 0, so that the first change is an increase.
            let _: prometheus_client::metrics::counter::Counter =
                self.reloads.counter((*outcome, Side(side)));
        }
        self.set(side, now, true);
    }

    /// The files of a side changed; `success` if the new ones are in use.
    pub fn reloaded(&self, side: &'static str, now: i64, success: bool) {
        let outcome = if success { Outcome::Success } else { Outcome::Failure };
        self.reloads.count((outcome, Side(side)));
        self.set(side, now, success);
    }

    /// The files of a side again match the current configuration: no reload, and no failure any more.
    pub fn restored(&self, side: &'static str) {
        self.success.get_or_create(&Side(side)).set(1);
    }

    fn set(&self, side: &'static str, now: i64, success: bool) {
        self.last.get_or_create(&Side(side)).set(now);
        self.success.get_or_create(&Side(side)).set(i64::from(success));
    }

    /// An observer that counts the handshakes that only Go's rules accept.
    pub fn legacy_observer(&self) -> LegacyPkiObserver {
        let count = self.legacy.clone();
        Arc::new(move |legacy| count.count(LegacyReason(legacy.label())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Exposition, Registry};

    #[test]
    fn reload_failure_keeps_the_values_in_use() {
        let mut registry = Registry::default();
        let certificates = Certificates::register(&mut registry);
        certificates.loaded("agents", 1_000);
        certificates.expires("cluster-cert", 5_000);
        certificates.reloaded("agents", 2_000, false);
        let scrape = Exposition::new(registry).scrape();
        for line in [
            "certificate_expiry_timestamp_seconds{file=\"cluster-cert\"} 5000",
            "certificate_reloads_total{result=\"success\",side=\"agents\"} 0",
            "certificate_reloads_total{result=\"failure\",side=\"agents\"} 1",
            "certificate_last_reload_timestamp_seconds{side=\"agents\"} 2000",
            "certificate_last_reload_success{side=\"agents\"} 0",
        ] {
            assert!(scrape.contains(&format!("{line}\n")), "{line} is not in {scrape}");
        }
    }

    #[test]
    fn files_that_are_put_back_end_a_failure_and_are_no_reload() {
        let mut registry = Registry::default();
        let certificates = Certificates::register(&mut registry);
        certificates.loaded("agents", 1_000);
        certificates.reloaded("agents", 2_000, false);
        certificates.restored("agents");
        let scrape = Exposition::new(registry).scrape();
        for line in [
            "certificate_last_reload_success{side=\"agents\"} 1",
            "certificate_reloads_total{result=\"success\",side=\"agents\"} 0",
            "certificate_reloads_total{result=\"failure\",side=\"agents\"} 1",
            "certificate_last_reload_timestamp_seconds{side=\"agents\"} 2000",
        ] {
            assert!(scrape.contains(&format!("{line}\n")), "{line} is not in {scrape}");
        }
    }
}
