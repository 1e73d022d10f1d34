//! Figures that a test measured: percentiles, and a way past the capture of passing tests into CI's log.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

/// What so many percent of the times stay below, `None` if there are none. Sorts them.
pub fn percentile(times: &mut [Duration], percent: usize) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied()
}

/// Writes one line to standard error.
pub fn say(test: &str, figures: impl Display) {
    // Nobody is left to tell if standard error is closed.
    let _ = writeln!(std::io::stderr(), "figures: {test}: {figures}");
}
