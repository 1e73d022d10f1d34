//! The limit on open descriptors.

use std::fmt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The process's limit on descriptors, raised as far as permitted. `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The soft limit at the start.
    pub before: Option<u64>,
    /// The soft limit now.
    pub now: Option<u64>,
    /// The hard limit.
    pub hard: Option<u64>,
}

impl DescriptorLimit {
    /// Raises the soft limit to the hard limit, as Go's runtime does, and returns both. If the kernel refuses, the
    /// limit stays.
    pub fn raise() -> Self {
        let found = getrlimit(Resource::Nofile);
        let wanted = Rlimit { current: found.maximum, maximum: found.maximum };
        if found.current != found.maximum && setrlimit(Resource::Nofile, wanted).is_err() {
            tracing::warn!(
                soft = found.current,
                hard = found.maximum,
                "cannot raise the limit on open descriptors"
            );
        }
        Self { before: found.current, now: getrlimit(Resource::Nofile).current, hard: found.maximum }
    }
}

impl fmt::Display for DescriptorLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.now {
            Some(limit) => write!(f, "{limit}"),
            None => f.write_str("unlimited"),
        }
    }
}
