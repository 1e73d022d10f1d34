//! The result of a load, and its counters.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use parking_lot::Mutex;

use super::Plan;
use crate::figures::percentile;

/// Number of errors that are kept as text.
const KEPT: usize = 10;

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Dials that were started.
    pub dials: usize,
    /// Time from the first dial to the last.
    pub took: Duration,
    /// Required dials per second.
    pub rate: u32,
    /// Dials that failed.
    pub failed: usize,
    /// Dialed connections that did not end in order.
    pub cut: usize,
    /// Required transfers.
    pub transfers: usize,
    /// Transfers that lasted to the end with every byte intact.
    pub transfers_whole: usize,
    /// Transfers that did not.
    pub transfers_cut: usize,
    /// Bytes that the transfers carried in one direction.
    pub carried: u64,
    /// Median dial latency.
    pub p50: Duration,
    /// 99th percentile of the dial latency.
    pub p99: Duration,
    /// The first errors.
    pub errors: Vec<String>,
}

impl Report {
    /// Fails unless every dial and transfer succeeded, at the required rate.
    pub fn check(&self) -> Result<()> {
        ensure!(self.failed == 0 && self.cut == 0 && self.transfers_cut == 0, "{self}");
        ensure!(self.transfers_whole == self.transfers, "a transfer is missing: {self}");
        ensure!(self.dials > 0 && self.reached() >= f64::from(self.rate), "too few dials: {self}");
        Ok(())
    }

    /// Dials per second.
    fn reached(&self) -> f64 {
        self.dials as f64 / self.took.as_secs_f64()
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { dials, took, rate, failed, cut, p50, p99, .. } = self;
        write!(f, "{dials} dials in {took:.1?}, {:.1} of {rate} a second: ", self.reached())?;
        write!(f, "{failed} failed, {cut} cut, p50 {p50:.1?}, p99 {p99:.1?}")?;
        if self.transfers > 0 {
            let Report { transfers, transfers_whole, transfers_cut, carried, .. } = self;
            let carried = carried >> 20;
            write!(
                f,
                "; {transfers_whole} of {transfers} transfers whole, {transfers_cut} cut, {carried} MiB"
            )?;
        }
        for error in &self.errors {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

/// The counters of a running load.
#[derive(Debug, Default)]
pub(super) struct Tally {
    report: Mutex<Report>,
    latencies: Mutex<Vec<Duration>>,
    begun: AtomicUsize,
}

impl Tally {
    /// Counts a dial, and returns its number.
    pub(super) fn begin(&self) -> usize {
        self.begun.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    pub(super) fn established(&self, after: Duration) {
        self.latencies.lock().push(after);
    }

    pub(super) fn carried(&self, bytes: u64) {
        self.report.lock().carried += bytes;
    }

    /// Counts a transfer that ended in order.
    pub(super) fn whole(&self) {
        self.report.lock().transfers_whole += 1;
    }

    pub(super) fn error(&self, count: impl FnOnce(&mut Report), error: &anyhow::Error) {
        let mut report = self.report.lock();
        count(&mut report);
        if report.errors.len() < KEPT {
            report.errors.push(format!("{error:#}"));
        }
    }

    /// The report, after everything has ended.
    pub(super) fn report(&self, plan: &Plan, dials: usize, took: Duration) -> Report {
        let mut latencies = std::mem::take(&mut *self.latencies.lock());
        let mut at = |percent| percentile(&mut latencies, percent).unwrap_or_default();
        let (p50, p99) = (at(50), at(99));
        let (rate, transfers) = (plan.rate, plan.transfers);
        Report { dials, took, rate, transfers, p50, p99, ..self.report.lock().clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::Report;
    use std::time::Duration;

    #[test]
    fn less_than_promised_is_a_failure() {
        let whole = Report {
            dials: 1_000,
            took: Duration::from_secs(10),
            rate: 100,
            transfers: 50,
            transfers_whole: 50,
            ..Report::default()
        };
        whole.check().unwrap();
        let rows = [
            (
                Report { dials: 999, ..whole.clone() },
                "too few dials: 999 dials in 10.0s, 99.9 of 100 a second",
            ),
            (Report { dials: 0, rate: 0, ..whole.clone() }, "too few dials"),
            (Report { transfers_whole: 49, ..whole.clone() }, "49 of 50 transfers whole"),
            (Report { failed: 1, ..whole.clone() }, "1 failed"),
            (Report { cut: 1, ..whole.clone() }, "1 cut"),
            (Report { transfers_cut: 1, ..whole }, "50 of 50 transfers whole, 1 cut"),
        ];
        for (report, why) in rows {
            let error = report.check().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
