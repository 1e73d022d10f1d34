//! The streams under one key of a route table, in the order of their registration, in one list for each health.

use super::LinkId;

/// Whether a stream should get new dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// New dials may use the stream.
    Ready,
    /// New dials use the stream only if there is no other: it drains, or it has not answered a ping.
    Leaving,
}

/// Streams by [`Health`]. Ids increase with each registration, so a sorted list is in the order of registration.
///
/// Invariant: an id is in at most one of the two lists.
#[derive(Debug, Default)]
pub(super) struct Members {
    lists: [Vec<LinkId>; 2],
}

impl Members {
    /// Adds a stream, or moves it to the list of its new health.
    pub(super) fn set(&mut self, id: LinkId, health: Health) {
        self.remove(id);
        let list = &mut self.lists[health as usize];
        if let Err(at) = list.binary_search(&id) {
            list.insert(at, id);
        }
    }

    /// Removes a stream, if it is there.
    pub(super) fn remove(&mut self, id: LinkId) {
        for list in &mut self.lists {
            if let Ok(at) = list.binary_search(&id) {
                list.remove(at);
            }
        }
    }

    /// The first registered stream of this health that is not excluded.
    pub(super) fn first(&self, health: Health, exclude: &[LinkId]) -> Option<LinkId> {
        self.lists[health as usize].iter().find(|id| !exclude.contains(id)).copied()
    }

    /// Ready if at least one stream is ready.
    pub(super) fn health(&self) -> Health {
        if self.lists[Health::Ready as usize].is_empty() { Health::Leaving } else { Health::Ready }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.iter().all(Vec::is_empty)
    }
}
