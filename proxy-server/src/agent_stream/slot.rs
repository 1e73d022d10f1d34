//! The slot of a connection to the agent port, from its handshake until a stream is admitted.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::metrics::UnauthenticatedCloseReason;
use crate::unauthenticated::Slot;

/// The slot of a connection: first one for unauthenticated peers, then one for admitted agents.
#[derive(Debug)]
pub(super) struct AgentSlot {
    /// Slots of admitted agents.
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

    /// Exchanges the slot for one of admitted agents; false if their connection limit is reached, or if this connection was
    /// evicted.
    pub(super) fn admit(&self) -> bool {
        let mut holds = self.holds.lock();
        let Holds::Unauthenticated(slot) = &*holds else { return true };
        let Ok(permit) = Arc::clone(&self.agents).try_acquire_owned() else {
            slot.closed(
                UnauthenticatedCloseReason::AgentLimit,
                &"the connection limit for agents is reached",
            );
            return false;
        };
        let admitted = slot.leave();
        if admitted {
            *holds = Holds::Admitted { _permit: permit };
        }
        admitted
    }

    /// Returns when the connection is evicted for a new one; never for an admitted agent.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Counts the close of the connection, unless it belongs to an admitted agent.
    pub(super) fn closed(&self, reason: UnauthenticatedCloseReason, error: &dyn std::fmt::Display) {
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
