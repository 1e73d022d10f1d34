//! How many of everything a server carries, each number in one place with its reason, and the counters that
//! keep dials and connections below theirs.
//!
//! A counter here only grants or refuses; it never closes what was granted.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Identifiers of one agent stream. Real agents announce a handful; each costs an entry in the route tables.
pub const MAX_IDENTIFIERS: usize = 256;

/// Bytes of one identifier after unescaping. A DNS name has at most 253.
pub const MAX_IDENTIFIER_BYTES: usize = 512;

/// Streams of one agent id. A healthy agent needs one, and two for a moment while it finds a duplicate; the rest
/// is for half-open predecessors. A newcomer above it is refused: it never displaces an incumbent.
pub const MAX_STREAMS_PER_AGENT: usize = 4;

/// Agent ids known at once: about three times the largest supported cluster (5,000 nodes, an agent on each).
pub const MAX_AGENTS: usize = 16_000;

/// Connections of admitted agents, before the descriptor limit is looked at. An agent has one, for a moment two, so that
/// this is never in the way of [`MAX_AGENTS`].
pub const MAX_AGENT_CONNECTIONS: usize = 2 * MAX_AGENTS;

/// Bytes of a dial's protocol. What agents dial has four.
pub const MAX_PROTOCOL_BYTES: usize = 16;

/// Bytes of a dial's address. A DNS name has at most 253. An address that filled a whole message would, with an id
/// of our own beside it, make one that no agent takes, and cost the agent's whole stream.
pub const MAX_ADDRESS_BYTES: usize = 1024;

/// Dials under way on one agent. Above what an agent's descriptors usually allow; what exceeds waits within its
/// own deadline instead of piling up at the agent.
pub const MAX_PENDING_DIALS_PER_AGENT: usize = 4_096;

/// Dials under way in all: four agents at their limit.
pub const MAX_PENDING_DIALS: usize = 16_384;

/// Connections through one agent. Half of an agent host's ephemeral ports towards one endpoint.
pub const MAX_CONNECTIONS_PER_AGENT: usize = 16_000;

/// Connections in all, before the descriptor limit is looked at. At 2 to 4 KiB each this is below 200 MiB.
pub const MAX_CONNECTIONS: usize = 50_000;

/// Descriptors kept free for listeners, agent streams, files and probes: the smaller of this and a quarter.
pub const RESERVED_DESCRIPTORS: u64 = 512;

/// Connections of unauthenticated peers to each port with TLS, before the descriptor limit is looked at. With 450 new ones
/// a second each has 9 s, which is a slow handshake's time; at 32 KiB each they are below 128 MiB.
pub const MAX_UNAUTHENTICATED: usize = 4_096;

/// [`MAX_UNAUTHENTICATED`], or less where the process may not open so many descriptors: an eighth of them.
pub fn unauthenticated_within(descriptors: Option<u64>) -> usize {
    within(MAX_UNAUTHENTICATED, descriptors, |all| all - all / 8)
}

/// [`MAX_CONNECTIONS`], or less where the process may not open so many descriptors (one per connection). `None`
/// means that there is no descriptor limit.
pub fn connections_within(descriptors: Option<u64>) -> usize {
    within(MAX_CONNECTIONS, descriptors, |all| RESERVED_DESCRIPTORS.min(all / 4))
}

/// [`MAX_AGENT_CONNECTIONS`], or less where the process may not open so many descriptors: a quarter is left for frontends,
/// probes and files, and an eighth for the port's unauthenticated peers.
pub fn agent_connections_within(descriptors: Option<u64>) -> usize {
    within(MAX_AGENT_CONNECTIONS, descriptors, |all| all / 4 + all / 8)
}

/// `most`, or what `reserved` leaves of all descriptors if that is less.
fn within(most: usize, descriptors: Option<u64>, reserved: impl FnOnce(u64) -> u64) -> usize {
    let usable = descriptors.map_or(u64::MAX, |all| all - reserved(all));
    usize::try_from(usable).map_or(most, |usable| usable.min(most))
}

/// The soft limit of open descriptors of this process, `None` if it has none.
pub fn descriptor_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// What all streams of one agent id may carry together. Cheap to clone; clones count as one.
#[derive(Debug, Clone)]
pub struct AgentBudget {
    pending: Arc<Semaphore>,
    connections: Arc<Semaphore>,
}

impl AgentBudget {
    /// A budget of so many dials under way and so many connections.
    pub fn new(pending: usize, connections: usize) -> Self {
        Self {
            pending: Arc::new(Semaphore::new(pending)),
            connections: Arc::new(Semaphore::new(connections)),
        }
    }
}

impl Default for AgentBudget {
    fn default() -> Self {
        Self::new(MAX_PENDING_DIALS_PER_AGENT, MAX_CONNECTIONS_PER_AGENT)
    }
}

/// What the whole server may carry. Cheap to clone; clones count as one.
#[derive(Debug, Clone)]
pub struct ServerBudget {
    pending: Arc<Semaphore>,
    connections: Arc<Semaphore>,
}

impl ServerBudget {
    /// A budget of so many dials under way and so many connections.
    pub fn new(pending: usize, connections: usize) -> Self {
        Self {
            pending: Arc::new(Semaphore::new(pending)),
            connections: Arc::new(Semaphore::new(connections)),
        }
    }

    /// The limits of this process.
    pub fn of_process() -> Self {
        Self::new(MAX_PENDING_DIALS, connections_within(descriptor_limit()))
    }

    /// Room for one more connection, or `None`: connections do not end soon enough to wait for.
    pub fn connection(&self, agent: &AgentBudget) -> Option<ConnectionSlot> {
        Some(ConnectionSlot {
            _agent: Arc::clone(&agent.connections).try_acquire_owned().ok()?,
            _server: Arc::clone(&self.connections).try_acquire_owned().ok()?,
        })
    }

    /// Waits for room for one more dial, first come first served. Cancel-safe; the caller bounds the wait.
    ///
    /// The agent's room comes first: dials that wait for one silent agent must not use up everybody's.
    pub async fn dial(&self, agent: &AgentBudget) -> DialSlot {
        const OPEN: &str = "a budget's semaphores are never closed";
        DialSlot {
            _agent: Arc::clone(&agent.pending).acquire_owned().await.expect(OPEN),
            _server: Arc::clone(&self.pending).acquire_owned().await.expect(OPEN),
        }
    }
}

/// Room taken by one connection, from before its dial until this is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    _agent: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

/// Room taken by one dial under way, until this is dropped.
#[derive(Debug)]
pub struct DialSlot {
    _agent: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_clamp_connections() {
        assert_eq!(connections_within(None), MAX_CONNECTIONS);
        assert_eq!(connections_within(Some(u64::MAX)), MAX_CONNECTIONS);
        assert_eq!(connections_within(Some(1_048_576)), MAX_CONNECTIONS);
        assert_eq!(connections_within(Some(65_536)), MAX_CONNECTIONS);
        assert_eq!(connections_within(Some(50_100)), 49_588);
        assert_eq!(connections_within(Some(1_024)), 768);
        assert_eq!(connections_within(Some(64)), 48);
        assert_eq!(connections_within(Some(0)), 0);
    }

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
        let (server, one, two) = (ServerBudget::new(9, 3), AgentBudget::new(9, 2), AgentBudget::new(9, 2));
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
        let (server, silent, other) =
            (ServerBudget::new(2, 9), AgentBudget::new(1, 9), AgentBudget::new(1, 9));
        let _pending = server.dial(&silent).await;
        let mut waiting = Box::pin(server.dial(&silent));
        tokio::select! {
            biased; // the waiter must have queued up before the other agent's dial asks
            _ = &mut waiting => panic!("granted above the agent's limit"),
            _ = server.dial(&other) => {}
        }
    }
}
