//! Measured figures: percentiles, and their output to CI's log from passing tests.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

/// The given percentile, `None` without times. Sorts the times.
pub fn percentile(times: &mut [Duration], percent: usize) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied()
}

/// Writes one line to standard error.
pub fn say(test: &str, figures: impl Display) {
    // If standard error is closed, the line is lost.
    let _ = writeln!(std::io::stderr(), "figures: {test}: {figures}");
}

/// Replaces the text between the lines `<!-- generated: NAME -->` and `<!-- end -->`; `None` if there are no such lines.
pub fn replace_generated(page: &str, name: &str, text: &str) -> Option<String> {
    const END: &str = "<!-- end -->\n";
    let begin = format!("<!-- generated: {name} -->\n");
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}\n{text}\n{END}{after}"))
}
