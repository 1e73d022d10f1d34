//! Which destinations an agent may be asked to reach.
//!
//! The one place where a dial can be forbidden: called with the addresses a name resolved to, between the
//! lookup and the connect, so that what was checked is what is connected to (a second lookup could answer
//! differently). Sees canonical addresses only: IPv4-mapped ones are unmapped, unspecified ones are loopback.

use std::net::SocketAddr;

/// Decides over destinations. The default allows all of them, as Go does.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DestinationPolicy {}

impl DestinationPolicy {
    /// Whether the agent may connect to `destination`.
    pub fn allows(&self, destination: SocketAddr) -> bool {
        let _ = destination;
        true
    }
}
