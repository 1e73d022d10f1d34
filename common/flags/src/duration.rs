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

/// `--keepalive-timeout` of both programs. As in grpc-go, 0 means 20 s.
///
/// # Errors
/// None; values below 1 s are raised to it.
pub fn keepalive_timeout(_flag: &'static str, given: GoDuration) -> Result<Duration, FlagError> {
    match given {
        GoDuration::ZERO => Ok(Duration::from_secs(20)),
        given => Ok(given.or_zero().max(Duration::from_secs(1))),
    }
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
