//! Errors that prevent the start, each in one line that names the flag and the fix.

use std::fmt::Display;

/// Why a well-formed command line is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FlagError(pub(crate) String);

/// The names of flags are without their dashes; `fix` is the end of the line.
impl FlagError {
    /// A value that `flag` does not accept; `want` is the expected value.
    pub fn value(flag: &str, value: impl Display, want: impl Display) -> Self {
        Self(format!("--{flag}={value}: {want}"))
    }

    /// A flag that must be given, or must not be empty.
    pub fn empty(flag: &str, fix: &str) -> Self {
        Self(format!("--{flag} must not be empty: {fix}"))
    }

    /// The given flag requires the missing one, `other`.
    pub fn needs(flag: &str, other: &str, fix: &str) -> Self {
        Self(format!("--{flag} needs --{other}: {fix}"))
    }

    /// `flag` is to be removed, because `with` excludes it.
    pub fn conflict(flag: &str, with: &str, fix: &str) -> Self {
        Self(format!("--{flag} cannot be used with --{with}: {fix}"))
    }
}
