//! The limit on open descriptors.

use std::fmt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The process's soft limit on descriptors, raised as far as permitted. `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorLimit(pub Option<u64>);

impl DescriptorLimit {
    /// Raises the soft limit to the hard limit, as Go's runtime does. If the kernel refuses, the
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
        Self(getrlimit(Resource::Nofile).current)
    }
}

impl fmt::Display for DescriptorLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(limit) => write!(f, "{limit}"),
            None => f.write_str("unlimited"),
        }
    }
}
