//! The owner of each agent id: the party whose stream announced it first, while a stream of that id is open. An agent whose
//! identity contains the id itself counts as the same party even if the rest of its identity has changed, because its
//! certificate was renewed or its pod moved.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Identity;

/// Agent ids with their owners. Clones share the table.
#[derive(Debug, Clone, Default)]
pub struct Owners(Arc<Mutex<HashMap<Arc<str>, Owner>>>);

#[derive(Debug)]
struct Owner {
    key: Arc<str>,
    /// Whether the owner's identity contains the id itself.
    named: bool,
    streams: usize,
}

/// One stream's share in an agent id.
#[derive(Debug)]
#[must_use = "the agent id is free again when this is dropped"]
pub struct Owned {
    owners: Owners,
    agent_id: Arc<str>,
}

impl Owners {
    /// Takes a share in `agent_id`; `None` if another party owns it.
    pub fn claim(&self, agent_id: &Arc<str>, identity: &Identity) -> Option<Owned> {
        let mut owners = self.0.lock();
        let named = identity.is_called(agent_id);
        let owner = owners.entry(Arc::clone(agent_id)).or_insert_with(|| Owner {
            key: Arc::clone(identity.key()),
            named,
            streams: 0,
        });
        if owner.key != *identity.key() && !(owner.named && named) {
            return None;
        }
        owner.streams += 1;
        Some(Owned { owners: self.clone(), agent_id: Arc::clone(agent_id) })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut owners = self.owners.0.lock();
        if let Some(owner) = owners.get_mut(&self.agent_id) {
            owner.streams -= 1;
            if owner.streams == 0 {
                owners.remove(&self.agent_id);
            }
        }
    }
}
