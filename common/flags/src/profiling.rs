//! The profiling flags of both binaries, as in Go.

use crate::{FlagError, FlagSet};

/// The raw flags.
#[derive(Debug, Default)]
pub struct ProfilingFlags {
    enable_profiling: bool,
    enable_contention_profiling: bool,
}

impl ProfilingFlags {
    /// Adds the flags to a set, under its last heading.
    pub fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.add("enable-profiling", &mut self.enable_profiling, "Serve profiles on the admin port.");
        set.add(
            "enable-contention-profiling",
            &mut self.enable_contention_profiling,
            "Needs --enable-profiling.",
        )
        .no_effect("profiles of lock contention belong to Go's runtime");
    }

    /// Whether profiles are served.
    ///
    /// # Errors
    /// If contention profiling is set without profiling.
    pub fn check(self) -> Result<bool, FlagError> {
        if self.enable_contention_profiling && !self.enable_profiling {
            return Err(FlagError::Needs {
                flag: "enable-contention-profiling",
                other: "enable-profiling",
                fix: "give both, or neither",
            });
        }
        Ok(self.enable_profiling)
    }
}
