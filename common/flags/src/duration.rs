//! Durations with their own rules.

use std::time::Duration;

use crate::{FlagError, GoDuration};

/// The minimum of `--unresponsive-timeout`: a peer counts as unresponsive after three seconds.
const LEAST_UNRESPONSIVE: GoDuration = GoDuration::from_seconds(10);

/// `--unresponsive-timeout` of both programs.
///
/// # Errors
/// If it is below 10 s.
pub fn unresponsive_timeout(flag: &'static str, given: GoDuration) -> Result<Duration, FlagError> {
    if given < LEAST_UNRESPONSIVE {
        return Err(FlagError::value(flag, given, "it must not be below 10s"));
    }
    Ok(given.or_zero())
}

/// A duration; 0 means none.
///
/// # Errors
/// If it is below 0.
pub fn optional_duration(flag: &'static str, given: GoDuration) -> Result<Option<Duration>, FlagError> {
    if given < GoDuration::ZERO {
        return Err(FlagError::value(flag, given, "it must not be below 0"));
    }
    Ok(Some(given.or_zero()).filter(|span| !span.is_zero()))
}
