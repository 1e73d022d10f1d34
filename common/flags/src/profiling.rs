//! The flags of what the admin ports of both binaries show: profiles, as in Go, and the status.

use crate::FlagError;

crate::flags! {
    /// The flags as written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ProfilingFlags {
        "Health and administration" {
            /// Serve profiles on the admin port.
            enable_profiling: bool = "false" [go = (20, "EnableProfiling set to %v.")],
            /// Needs --enable-profiling.
            enable_contention_profiling: bool = "false" [go = (21, "EnableContentionProfiling set to %v.")]
                [no_effect = "profiles of lock contention belong to Go's runtime"],
            /// Serve / and /statusz even if the admin port does not listen on a loopback address. Everyone who reaches the
            /// port can then read peers, targets and errors. (Not a flag of the Go programs.)
            status_on_any_address: bool = "false",
        }
    }
}

impl ProfilingFlags {
    /// The flags, which fit together.
    ///
    /// # Errors
    /// If contention profiling is set without profiling.
    pub fn check(self) -> Result<Self, FlagError> {
        if self.enable_contention_profiling && !self.enable_profiling {
            let (flag, other) = ("enable-contention-profiling", "enable-profiling");
            return Err(FlagError::needs(flag, other, "add it"));
        }
        Ok(self)
    }
}
