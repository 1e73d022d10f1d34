//! The limit on open descriptors, and which sockets may have the last ones.
//!
//! The kernel assigns the lowest free number. So a descriptor with the number n shows that at least n others were open, and a
//! number that one [`Priority`] may not have stays free for the next one, without a count.
//!
//! Limits of this scheme: a number is judged once, when its socket is opened or admitted, and a socket keeps its number. So a
//! client with a high number is refused although lower ones are free meanwhile. Agents and peers that are not authenticated yet
//! cannot be told apart: a flood of handshakes can fill the agents' part of the reserve until they time out.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::LazyLock;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The fewest descriptors with which a program starts: 20 to 30 for itself, and some for peers.
const MIN_DESCRIPTORS: u64 = 64;

/// The most descriptors that connections leave to others.
const MAX_RESERVED_DESCRIPTORS: u64 = 512;

/// The priority of a socket when descriptors are short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// A connection that carries data: a client's that is served, an endpoint's. Leaves the reserve: 512 numbers, or a quarter of
    /// the limit if that is less.
    Connection,
    /// A client that may have to be refused. Leaves half of the reserve.
    Client,
    /// An agent. Leaves a quarter of the reserve to the program itself: files, probes, name lookups, requests to the Kubernetes API,
    /// an agent's streams.
    Agent,
}

impl Priority {
    /// Whether a socket of this priority may keep its number.
    pub fn may_keep(self, socket: &impl AsFd) -> bool {
        let limit = descriptor_limit().unwrap_or(u64::MAX);
        u64::try_from(socket.as_fd().as_raw_fd()).is_ok_and(|number| number < self.end(limit))
    }

    /// Whether a new socket of this priority could keep the number that it would get.
    pub fn may_open(self) -> bool {
        fcntl_dupfd_cloexec(io::stderr(), 0).is_ok_and(|next| self.may_keep(&next))
    }

    fn end(self, limit: u64) -> u64 {
        let reserve = MAX_RESERVED_DESCRIPTORS.min(limit / 4);
        limit
            - match self {
                Priority::Connection => reserve,
                Priority::Client => reserve / 2,
                Priority::Agent => reserve / 4,
            }
    }
}

/// The soft limit of open descriptors of this process, `None` if there is none. The kernel is asked once, by the first call: that
/// of [`raise_descriptor_limit`] in programs.
pub fn descriptor_limit() -> Option<u64> {
    static LIMIT: LazyLock<Option<u64>> = LazyLock::new(|| getrlimit(Resource::Nofile).current);
    *LIMIT
}

/// Raises the process's soft limit on descriptors to the hard limit, as Go's runtime does, and logs the result. If the kernel
/// refuses, the limit stays.
///
/// # Errors
/// The limit is too low for the program.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let found = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: found.maximum, maximum: found.maximum };
    if found.current != found.maximum && setrlimit(Resource::Nofile, wanted).is_err() {
        tracing::warn!(
            soft = found.current,
            hard = found.maximum,
            "cannot raise the limit on open descriptors"
        );
    }
    let limit = descriptor_limit();
    if let Some(limit) = limit.filter(|limit| *limit < MIN_DESCRIPTORS) {
        let why = format!(
            "the limit on open descriptors is {limit}: set LimitNOFILE or ulimit -n to {MIN_DESCRIPTORS} or more"
        );
        return Err(io::Error::other(why));
    }
    let descriptors = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    tracing::info!(descriptors, "Descriptor limit");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_priority_leaves_descriptors_to_the_next() {
        let ends = |limit| [Priority::Connection, Priority::Client, Priority::Agent].map(|of| of.end(limit));
        assert_eq!(ends(64), [48, 56, 60]);
        assert_eq!(ends(1_024), [768, 896, 960]);
        assert_eq!(ends(1_048_576), [1_048_064, 1_048_320, 1_048_448]);
        assert_eq!(ends(0), [0, 0, 0]);
    }
}
