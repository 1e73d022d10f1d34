//! Errors that prevent the start, each in one line that names the flag and the fix.

use std::path::PathBuf;

/// Why a well-formed command line is invalid.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// The path does not exist.
    #[error("--{flag}: {path:?} does not exist: give the path of an existing file")]
    NoFile {
        /// The flag, without its dashes.
        flag: &'static str,
        /// The path as given.
        path: PathBuf,
    },
    /// A flag that requires another one.
    #[error("--{flag} needs --{other}: {fix}")]
    Needs {
        /// The flag that was given.
        flag: &'static str,
        /// The flag that is missing.
        other: &'static str,
        /// The fix.
        fix: &'static str,
    },
    /// Two flags that exclude each other.
    #[error("--{flag} cannot be used with --{with}: {fix}")]
    Conflict {
        /// The flag to remove.
        flag: &'static str,
        /// The flag that excludes it.
        with: &'static str,
        /// The fix.
        fix: &'static str,
    },
    /// A value that the flag does not accept.
    #[error("--{flag}={value}: {want}")]
    Value {
        /// The flag, without its dashes.
        flag: &'static str,
        /// The value as given.
        value: String,
        /// The expected value.
        want: String,
    },
    /// A flag that must be given, or must not be empty.
    #[error("--{flag} must not be empty: {fix}")]
    Empty {
        /// The flag, without its dashes.
        flag: &'static str,
        /// The fix.
        fix: &'static str,
    },
}

impl FlagError {
    /// A value that `flag` does not accept.
    #[expect(clippy::needless_pass_by_value, reason = "callers hand in numbers and format_args")]
    pub fn value(flag: &'static str, value: impl ToString, want: impl Into<String>) -> Self {
        Self::Value { flag, value: value.to_string(), want: want.into() }
    }
}
