//! A connection to the agent port, from its handshake to the stream that makes it an agent's.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::metrics::CloseReason;
use crate::unauthenticated::Slot;

/// Which slot a connection has: one of the unauthenticated peers, then one of the agents.
#[derive(Debug)]
pub(super) struct AgentSlot {
    /// Places of admitted agents.
    agents: Arc<Semaphore>,
    evicted: CancellationToken,
    holds: Mutex<Holds>,
}

#[derive(Debug)]
enum Holds {
    Unauthenticated(Slot),
    Admitted { _permit: OwnedSemaphorePermit },
}

impl AgentSlot {
    pub(super) fn new(slot: Slot, agents: Arc<Semaphore>) -> Self {
        let evicted = slot.evicted();
        AgentSlot { agents, evicted, holds: Mutex::new(Holds::Unauthenticated(slot)) }
    }

    /// The connection is an agent's from now on; false if the connection limit for agents is reached, or if it was closed for
    /// a new one.
    pub(super) fn admit(&self) -> bool {
        let mut holds = self.holds.lock();
        let Holds::Unauthenticated(slot) = &*holds else { return true };
        let Ok(permit) = Arc::clone(&self.agents).try_acquire_owned() else {
            slot.closed(CloseReason::AgentLimit, &"the connection limit for agents is reached");
            return false;
        };
        let admitted = slot.leave();
        if admitted {
            *holds = Holds::Admitted { _permit: permit };
        }
        admitted
    }

    /// Returns when the connection is to be closed for a new one, which is never so for an agent's.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Counts that the connection is closed, unless it is an agent's.
    pub(super) fn closed(&self, reason: CloseReason, error: &dyn std::fmt::Display) {
        if let Holds::Unauthenticated(slot) = &*self.holds.lock() {
            slot.closed(reason, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use serve::metrics::Registry;

    use super::*;
    use crate::metrics::{Metrics, Port};
    use crate::unauthenticated::ConnectionSet;

    #[tokio::test]
    async fn an_admitted_agent_is_not_evicted_and_leaves_its_slot_to_others() {
        let unauthenticated = ConnectionSet::new(Port::Agent, 1, Metrics::new(&mut Registry::default()));
        let agents = Arc::new(Semaphore::new(1));
        let slot =
            |last| AgentSlot::new(unauthenticated.enter(([10, 0, 0, last], 1).into()), Arc::clone(&agents));
        let agent = slot(1);
        assert!(agent.admit() && agent.admit(), "its further streams need no slot");
        let second = slot(2);
        assert!(!agent.evicted.is_cancelled(), "it has no slot that could be taken");
        assert!(!second.admit(), "the agents' slots are taken");
        let third = slot(3);
        second.evicted().await;
        drop(agent);
        assert!(third.admit());
    }
}
