//! A connection to the agent port, from its handshake to the stream that makes it an agent's.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::metrics::CloseReason;
use crate::unauthenticated::Place;

/// Which place a connection has: one of the unauthenticated peers, then one of the agents.
#[derive(Debug)]
pub(super) struct Door {
    /// Places of admitted agents.
    agents: Arc<Semaphore>,
    evicted: CancellationToken,
    holds: Mutex<Holds>,
}

#[derive(Debug)]
enum Holds {
    Unauthenticated(Place),
    Admitted { _place: OwnedSemaphorePermit },
}

impl Door {
    pub(super) fn new(place: Place, agents: Arc<Semaphore>) -> Self {
        let evicted = place.evicted();
        Door { agents, evicted, holds: Mutex::new(Holds::Unauthenticated(place)) }
    }

    /// The connection is an agent's from now on; false if there is no place for another one.
    pub(super) fn admit(&self) -> bool {
        let mut holds = self.holds.lock();
        let Holds::Unauthenticated(place) = &*holds else { return true };
        let Ok(permit) = Arc::clone(&self.agents).try_acquire_owned() else {
            place.closed(CloseReason::AgentLimit, &"no place for another agent (limit of open files)");
            return false;
        };
        *holds = Holds::Admitted { _place: permit };
        true
    }

    /// Returns when the connection is to be closed for a new one, which is never so for an agent's.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Counts that the connection is closed, unless it is an agent's.
    pub(super) fn closed(&self, reason: CloseReason, error: &dyn std::fmt::Display) {
        if let Holds::Unauthenticated(place) = &*self.holds.lock() {
            place.closed(reason, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use serve::metrics::Registry;

    use super::*;
    use crate::metrics::{Metrics, Port};
    use crate::unauthenticated::Unauthenticated;

    #[tokio::test]
    async fn an_admitted_agent_is_not_evicted_and_leaves_its_place_to_others() {
        let places = Unauthenticated::new(Port::Agent, 1, Metrics::new(&mut Registry::default()));
        let agents = Arc::new(Semaphore::new(1));
        let door = |last| Door::new(places.enter(([10, 0, 0, last], 1).into()), Arc::clone(&agents));
        let agent = door(1);
        assert!(agent.admit() && agent.admit(), "its further streams need no place");
        let second = door(2);
        assert!(!agent.evicted.is_cancelled(), "it has no place that could be taken");
        assert!(!second.admit(), "the agents' places are taken");
        let third = door(3);
        second.evicted().await;
        drop(agent);
        assert!(third.admit());
    }
}
