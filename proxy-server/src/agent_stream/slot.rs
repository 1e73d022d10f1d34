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
    agents: Arc<AgentSlots>,
    /// Canceled when the connection is evicted for a new one; never for an admitted agent.
    pub(super) evicted: CancellationToken,
    holds: Mutex<Holds>,
}

/// The slots of admitted agents' connections.
#[derive(Debug)]
pub(super) struct AgentSlots {
    free: Arc<Semaphore>,
    most: usize,
}

impl AgentSlots {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(AgentSlots { free: Arc::new(Semaphore::new(most)), most })
    }
}

#[derive(Debug)]
enum Holds {
    Unauthenticated(Slot),
    Admitted { _permit: OwnedSemaphorePermit },
}

impl AgentSlot {
    pub(super) fn new(slot: Slot, agents: Arc<AgentSlots>) -> Self {
        let evicted = slot.evicted.clone();
        AgentSlot { agents, evicted, holds: Mutex::new(Holds::Unauthenticated(slot)) }
    }

    /// Exchanges the slot for one of admitted agents; false if their connection limit is reached, or if this connection was
    /// evicted.
    pub(super) fn admit(&self) -> bool {
        let mut holds = self.holds.lock();
        let Holds::Unauthenticated(slot) = &*holds else { return true };
        let Ok(permit) = Arc::clone(&self.agents.free).try_acquire_owned() else {
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

    /// Whether agents may open lanes: half of the slots are free. Otherwise lanes could take the slots of agents without any.
    pub(super) fn has_room_for_lanes(&self) -> bool {
        self.agents.free.available_permits() >= self.agents.most.div_ceil(2)
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
    use crate::metrics::{Port, register};
    use crate::unauthenticated::ConnectionSet;

    #[tokio::test]
    async fn an_admitted_agent_is_not_evicted_and_leaves_its_slot_to_others() {
        let unauthenticated = ConnectionSet::new(Port::Agent, 1, register(&mut Registry::default()));
        let agents = AgentSlots::new(1);
        let slot =
            |last| AgentSlot::new(unauthenticated.enter(([10, 0, 0, last], 1).into()), Arc::clone(&agents));
        let agent = slot(1);
        assert!(agent.admit() && agent.admit(), "its further streams need no slot");
        let second = slot(2);
        assert!(!agent.evicted.is_cancelled(), "it has no slot that could be taken");
        assert!(!second.admit(), "the agents' slots are taken");
        let third = slot(3);
        second.evicted.cancelled().await;
        drop(agent);
        assert!(third.admit());
    }

    #[tokio::test]
    async fn lanes_leave_half_of_the_slots_to_other_agents() {
        let unauthenticated = ConnectionSet::new(Port::Agent, 9, register(&mut Registry::default()));
        let agents = AgentSlots::new(4);
        let slot = || AgentSlot::new(unauthenticated.enter(([10, 0, 0, 1], 1).into()), Arc::clone(&agents));
        let (one, two, three) = (slot(), slot(), slot());
        assert!(one.admit() && two.admit() && one.has_room_for_lanes());
        assert!(three.admit() && !one.has_room_for_lanes());
        drop(two);
        assert!(one.has_room_for_lanes());
    }
}
