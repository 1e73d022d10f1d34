//! Spans of time that may be switched off.

use std::time::Duration;

use crate::{GoDuration, Refusal};

/// A span of which 0 means none.
///
/// # Errors
/// Below 0.
pub fn period(flag: &'static str, given: GoDuration) -> Result<Option<Duration>, Refusal> {
    if given < GoDuration::ZERO {
        return Err(Refusal::value(flag, given, "it must not be below 0"));
    }
    Ok(Some(given.or_zero()).filter(|span| !span.is_zero()))
}
