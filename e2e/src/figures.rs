//! Figures that a test measured, where a reader of CI's log finds them: past the capture of passing tests.

use std::fmt::Display;
use std::io::Write;

/// Writes one line to standard error.
pub fn say(test: &str, figures: impl Display) {
    // Nobody is left to tell if standard error is closed.
    let _ = writeln!(std::io::stderr(), "figures: {test}: {figures}");
}
