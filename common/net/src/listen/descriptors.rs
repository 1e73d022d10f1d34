//! The limit on open descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the process's soft limit on descriptors to the hard limit, as Go's runtime does, and logs the result. If the kernel
/// refuses, the limit stays.
pub fn raise_descriptor_limit() {
    let found = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: found.maximum, maximum: found.maximum };
    if found.current != found.maximum && setrlimit(Resource::Nofile, wanted).is_err() {
        tracing::warn!(
            soft = found.current,
            hard = found.maximum,
            "cannot raise the limit on open descriptors"
        );
    }
    let limit = getrlimit(Resource::Nofile).current;
    let descriptors = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    tracing::info!(descriptors, "Descriptor limit");
}
