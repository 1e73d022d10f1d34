//! Picks a random agent in constant time, however many agents there are and however many drain.

use std::collections::HashMap;
use std::sync::Arc;

use rand::{Rng, RngExt};

use super::LinkId;
use super::members::{Health, Members};

/// Agent ids with their streams. All agents are equally likely, however many streams they have.
///
/// Invariant: each agent is in the list of its members' health, at the index in its entry.
#[derive(Debug, Default)]
pub(super) struct Pool {
    agents: HashMap<Arc<str>, Entry>,
    /// Agents by [`Health`].
    lists: [Vec<Arc<str>>; 2],
}

#[derive(Debug)]
struct Entry {
    members: Members,
    health: Health,
    at: usize,
}

/// A stream that must not be chosen, with its agent id.
#[derive(Debug)]
pub(super) struct Excluded {
    pub(super) id: LinkId,
    pub(super) agent: Arc<str>,
}

impl Pool {
    /// The number of agents.
    pub(super) fn len(&self) -> usize {
        self.agents.len()
    }

    /// Adds a stream, or changes its health.
    pub(super) fn set(&mut self, agent: &Arc<str>, id: LinkId, health: Health) {
        let mut members = match self.agents.remove(agent) {
            Some(entry) => self.unlist(entry),
            None => Members::default(),
        };
        members.set(id, health);
        self.list(agent, members);
    }

    /// Removes a stream, and its agent with the agent's last stream.
    pub(super) fn remove(&mut self, agent: &Arc<str>, id: LinkId) {
        let Some(entry) = self.agents.remove(agent) else { return };
        let mut members = self.unlist(entry);
        members.remove(id);
        if !members.is_empty() {
            self.list(agent, members);
        }
    }

    /// The first stream of this health of a random agent.
    ///
    /// Before a call with `Leaving` the caller has checked that `Ready` finds nothing with the same exclusions. The exclusions
    /// leave all other agents equally likely.
    pub(super) fn pick(&self, health: Health, exclude: &[Excluded], rng: &mut impl Rng) -> Option<LinkId> {
        let ids: Vec<LinkId> = exclude.iter().map(|e| e.id).collect();
        let mut blocked = Vec::new(); // indices in the list of agents without a remaining stream
        let mut extra = Vec::new(); // agents in the other list with a stream of this health
        for agent in distinct(exclude) {
            let Some(entry) = self.agents.get(agent) else { continue };
            match entry.members.first(health, &ids) {
                None if entry.health == health => blocked.push(entry.at),
                Some(id) if entry.health != health && health == Health::Leaving => extra.push(id),
                _ => {}
            }
        }
        blocked.sort_unstable();
        let list = &self.lists[health as usize];
        let free = list.len() - blocked.len();
        if free + extra.len() == 0 {
            return None;
        }
        let mut at = rng.random_range(0..free + extra.len());
        if at >= free {
            return extra.get(at - free).copied();
        }
        for skipped in blocked {
            at += usize::from(skipped <= at);
        }
        self.agents.get(list.get(at)?)?.members.first(health, &ids)
    }

    fn list(&mut self, agent: &Arc<str>, members: Members) {
        let health = members.health();
        let list = &mut self.lists[health as usize];
        let at = list.len();
        list.push(Arc::clone(agent));
        self.agents.insert(Arc::clone(agent), Entry { members, health, at });
    }

    /// Removes an entry, which is no longer in the map, from its list; the last entry of the list fills the gap.
    fn unlist(&mut self, entry: Entry) -> Members {
        let list = &mut self.lists[entry.health as usize];
        list.swap_remove(entry.at);
        if let Some(moved) = list.get(entry.at).and_then(|agent| self.agents.get_mut(agent)) {
            moved.at = entry.at;
        }
        entry.members
    }
}

/// The agent ids in a short list of exclusions, each once.
fn distinct(exclude: &[Excluded]) -> impl Iterator<Item = &Arc<str>> {
    exclude
        .iter()
        .enumerate()
        .filter(|(at, e)| exclude.iter().take(*at).all(|earlier| earlier.agent != e.agent))
        .map(|(_, e)| &e.agent)
}
