//! The server's limits on agents, dials and connections, each with its reason, and the counters that enforce those of dials and
//! connections. The limits on memory of unauthenticated connections are in `common/grpc/src/admission.rs`.
//!
//! A counter here only grants or refuses; it never closes a granted connection.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Identifiers of one agent stream. Real agents announce a few; each is an entry in the route tables.
pub const MAX_IDENTIFIERS: usize = 256;

/// Bytes of one identifier after unescaping. A DNS name has at most 253.
pub const MAX_IDENTIFIER_BYTES: usize = 512;

/// Streams of one agent id, of which the lanes of one agent process count once. A healthy agent needs one, and briefly two while it
/// finds a duplicate; the rest is for half-open predecessors. A new stream above the limit is refused: it never displaces an
/// existing one.
pub const MAX_STREAMS_PER_AGENT: usize = 4;

/// Streams of one agent id, each lane counted: four lanes, two retired predecessors of each, and as many again for a process whose
/// lanes are half-open.
pub const MAX_LANES_PER_AGENT: usize = 16;

/// Agent ids known at once: about three times the largest supported cluster (5,000 nodes, an agent on each).
pub const MAX_AGENTS: usize = 16_000;

/// Connections of admitted agents, before the descriptor limit applies. An agent has one, briefly two, and lanes only while half of
/// this number is free, so this limit never applies before [`MAX_AGENTS`].
pub const MAX_AGENT_CONNECTIONS: usize = 2 * MAX_AGENTS;

/// Pending dials on one agent. Above the usual descriptor limit of an agent; further dials wait within their own deadline
/// instead of queueing at the agent.
pub const MAX_PENDING_DIALS_PER_AGENT: usize = 4_096;

/// Pending dials of the server: four agents at their limit.
pub const MAX_PENDING_DIALS: usize = 16_384;

/// Connections through one agent: half of the ephemeral ports of an agent's host towards one endpoint.
pub const MAX_CONNECTIONS_PER_AGENT: usize = 16_000;

/// Connections of the server. At 2 to 4 KiB each they take less than 200 MiB. Those with a socket each are also refused while
/// descriptors are short ([`net::listen::Priority`]).
pub const MAX_CONNECTIONS: usize = 50_000;

/// Connections of unauthenticated peers to the agent port, and to all frontends, before the descriptor limit applies. At 450 new connections per
/// second each has 9 s, enough for a slow handshake. `common/grpc/src/admission.rs` limits their memory.
pub const MAX_UNAUTHENTICATED: usize = 4_096;

/// [`MAX_UNAUTHENTICATED`], or an eighth of the descriptor limit if that is less. `None` means that there is no descriptor limit.
pub fn unauthenticated_within(descriptors: Option<u64>) -> usize {
    least(MAX_UNAUTHENTICATED, descriptors.map(|all| all / 8))
}

/// [`MAX_AGENT_CONNECTIONS`], or five eighths of the descriptor limit if that is less: a quarter is left for frontends, probes
/// and files, and an eighth for the port's unauthenticated peers.
pub fn agent_connections_within(descriptors: Option<u64>) -> usize {
    least(MAX_AGENT_CONNECTIONS, descriptors.map(|all| all - all / 4 - all / 8))
}

fn least(most: usize, usable: Option<u64>) -> usize {
    usable.and_then(|usable| usize::try_from(usable).ok()).map_or(most, |usable| usable.min(most))
}

/// The limits of dials and connections of one agent id or of the whole server. Cheap to clone; clones share the counters.
#[derive(Debug, Clone)]
pub struct Budget {
    pending: Arc<Semaphore>,
    connections: Arc<Semaphore>,
}

impl Budget {
    /// A budget of `pending` dials and `connections` connections.
    pub fn new(pending: usize, connections: usize) -> Self {
        Self {
            pending: Arc::new(Semaphore::new(pending)),
            connections: Arc::new(Semaphore::new(connections)),
        }
    }

    /// A slot for one more connection, or `None` at once: connections last too long to wait for a free slot.
    pub fn connection(&self, agent: &Budget) -> Option<Slot> {
        let agent = Arc::clone(&agent.connections).try_acquire_owned().ok()?;
        Some(Slot { _agent: agent, _server: Arc::clone(&self.connections).try_acquire_owned().ok()? })
    }

    /// Waits for a slot for one more dial, first come first served. Cancel-safe; the caller limits the wait.
    ///
    /// The agent's slot is taken first: dials that wait for one silent agent must not use up the server's slots.
    pub async fn dial(&self, agent: &Budget) -> Slot {
        const OPEN: &str = "a budget's semaphores are never closed";
        let agent = Arc::clone(&agent.pending).acquire_owned().await.expect(OPEN);
        Slot { _agent: agent, _server: Arc::clone(&self.pending).acquire_owned().await.expect(OPEN) }
    }
}

/// The slot of one pending dial, or of one connection from before its dial. Released when this is dropped.
#[derive(Debug)]
pub struct Slot {
    _agent: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_clamp_the_agent_port() {
        for plenty in [None, Some(u64::MAX), Some(1_048_576), Some(65_536)] {
            assert_eq!(agent_connections_within(plenty), MAX_AGENT_CONNECTIONS);
        }
        assert_eq!(agent_connections_within(Some(1_024)), 640);
        assert_eq!(unauthenticated_within(Some(1_024)), 128);
        assert_eq!(agent_connections_within(Some(0)), 0);
    }

    #[test]
    fn connections_are_counted_per_agent_and_in_all() {
        let (server, one, two) = (Budget::new(9, 3), Budget::new(9, 2), Budget::new(9, 2));
        let first = server.connection(&one).expect("room");
        let _second = server.connection(&one).expect("room");
        assert!(server.connection(&one).is_none(), "the agent is full");
        let _third = server.connection(&two).expect("room");
        assert!(server.connection(&two).is_none(), "the server is full");
        drop(first);
        assert!(server.connection(&two).is_some(), "a refusal kept nothing");
    }

    #[tokio::test]
    async fn a_silent_agent_does_not_use_up_the_server() {
        let (server, silent, other) = (Budget::new(2, 9), Budget::new(1, 9), Budget::new(1, 9));
        let _pending = server.dial(&silent).await;
        let mut waiting = Box::pin(server.dial(&silent));
        tokio::select! {
            biased; // the waiter must have queued up before the other agent's dial asks
            _ = &mut waiting => panic!("granted above the agent's limit"),
            _ = server.dial(&other) => {}
        }
    }
}
