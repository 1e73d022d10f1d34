//! Measured figures: percentiles, and their output to CI's log from passing tests.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

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

/// Replaces the text between the lines `<!-- generated: NAME -->` and `<!-- end -->` of a page.
pub fn replace_generated(page: &str, name: &str, text: &str) -> Result<String> {
    const END: &str = "<!-- end -->\n";
    let begin = format!("<!-- generated: {name} -->\n");
    let (before, rest) = page.split_once(&begin).with_context(|| format!("no marker of {name}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("no end of {name}"))?;
    Ok(format!("{before}{begin}\n{text}\n{END}{after}"))
}

/// The same in a file.
pub fn write_generated(path: &Path, name: &str, text: &str) -> Result<()> {
    let page = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let page = replace_generated(&page, name, text).with_context(|| path.display().to_string())?;
    Ok(std::fs::write(path, page)?)
}
