//! The route tables under their lock, and the registrations that keep them up to date.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockWriteGuard};
use rand::Rng;
use serve::logs::Peer;
use tokio::sync::Notify;

use super::table::{Health, Table};
use super::{Backend, Choice, LinkId, ReadinessPolicy, RegisterError, RouteMetrics, Strategy};
use crate::limits::{Budget, MAX_AGENTS, MAX_STREAMS_PER_AGENT};

/// The agent streams, and the strategies over them. Cheap to clone; clones share the tables.
///
/// `L` is the handle of an agent stream; the manager hands out clones of it and never uses it.
#[derive(Clone)]
pub struct BackendManager<L> {
    shared: Arc<Shared<L>>,
}

struct Shared<L> {
    state: RwLock<State<L>>,
    /// While a stream is unresponsive: a stream was registered, or one has become (un)responsive.
    changed: Notify,
    metrics: RouteMetrics,
}

struct State<L> {
    last_id: u64,
    links: HashMap<LinkId, Link<L>>,
    agents: HashMap<Arc<str>, Agent>,
    tables: Vec<Table>,
    /// The number of unresponsive streams.
    unresponsive: usize,
}

struct Link<L> {
    backend: Backend<L>,
    draining: bool,
    unresponsive: bool,
}

/// The state that the streams of one agent id share.
struct Agent {
    streams: Vec<LinkId>,
    budget: Budget,
}

impl<L: Clone> BackendManager<L> {
    /// An empty manager for these strategies, in this order; repeated strategies count once.
    pub fn new(strategies: &[Strategy], metrics: RouteMetrics) -> Self {
        let mut tables: Vec<Table> = Vec::new();
        for strategy in strategies {
            if tables.iter().all(|table| table.strategy != *strategy) {
                tables.push(Table::new(*strategy));
                metrics.set(*strategy, 0);
            }
        }
        let (links, agents) = (HashMap::new(), HashMap::new());
        let state = RwLock::new(State { last_id: 0, links, agents, tables, unresponsive: 0 });
        Self { shared: Arc::new(Shared { state, changed: Notify::new(), metrics }) }
    }

    /// Adds a stream to the tables until the registration is dropped.
    ///
    /// # Errors
    /// The agent id has too many streams, or there are too many agents. No stream is displaced.
    pub fn register(&self, backend: Backend<L>) -> Result<Registration<L>, RegisterError> {
        let mut state = self.shared.state.write();
        match state.agents.get(&backend.agent_id) {
            Some(known) if known.streams.len() >= MAX_STREAMS_PER_AGENT => {
                return Err(RegisterError::TooManyStreams);
            }
            None if state.agents.len() >= MAX_AGENTS => return Err(RegisterError::TooManyAgents),
            _ => {}
        }
        tracing::info!(target: "v2", agentID = %Peer(&backend.agent_id), "Register backend for agent");
        state.last_id += 1;
        let id = LinkId(state.last_id);
        let new = || Agent { streams: Vec::new(), budget: Budget::of_agent() };
        state.agents.entry(Arc::clone(&backend.agent_id)).or_insert_with(new).streams.push(id);
        self.shared.update(&mut state.tables, &backend, id, Some(Health::Ready));
        state.links.insert(id, Link { backend, draining: false, unresponsive: false });
        self.shared.wake_dials(state);
        Ok(Registration { manager: self.clone(), id })
    }

    /// The agent asked for no new dials (DRAIN). A stream never stops draining.
    pub fn set_draining(&self, id: LinkId) {
        self.change(id, |link| link.draining = true);
    }

    /// Marks a stream that does not answer pings, or unmarks it when it answers.
    pub fn set_unresponsive(&self, id: LinkId, unresponsive: bool) {
        self.change(id, |link| link.unresponsive = unresponsive);
    }

    /// The strategies without a backend that `policy` requires, for `/readyz`. Draining and unresponsive streams count as
    /// backends. An empty list means ready.
    pub fn lacking(&self, policy: ReadinessPolicy) -> Vec<Strategy> {
        let state = self.shared.state.read();
        let required = if policy == ReadinessPolicy::FirstStrategy { 1 } else { state.tables.len() };
        let empty = state.tables.iter().take(required).filter(|table| table.len() == 0);
        let lacking: Vec<Strategy> = empty.map(|table| table.strategy).collect();
        if policy == ReadinessPolicy::Any && lacking.len() < required { Vec::new() } else { lacking }
    }

    /// The number of identifiers known to each strategy, in the order of the flag.
    #[cfg(test)]
    pub fn counts(&self) -> Vec<(Strategy, usize)> {
        self.shared.state.read().tables.iter().map(|table| (table.strategy, table.len())).collect()
    }

    /// The number of registered streams.
    #[cfg(test)]
    pub fn links(&self) -> usize {
        self.shared.state.read().links.len()
    }

    /// The handles of the other streams of the same agent id.
    pub fn siblings(&self, id: LinkId) -> Vec<L> {
        let state = self.shared.state.read();
        let agent = state.links.get(&id).and_then(|link| state.agents.get(&link.backend.agent_id));
        let others = agent.into_iter().flat_map(|agent| &agent.streams).filter(|other| **other != id);
        others.filter_map(|other| Some(state.links.get(other)?.backend.handle.clone())).collect()
    }

    fn change(&self, id: LinkId, change: impl FnOnce(&mut Link<L>)) {
        let mut state = self.shared.state.write();
        let State { links, tables, unresponsive, .. } = &mut *state;
        let Some(link) = links.get_mut(&id) else { return };
        let before = (link.health(), link.unresponsive);
        change(link);
        let Backend { agent_id, identifiers, .. } = &link.backend;
        if link.health() != before.0 {
            for table in tables {
                table.set(agent_id, identifiers, id, Some(link.health()));
            }
        }
        if link.unresponsive != before.1 {
            *unresponsive = if link.unresponsive { *unresponsive + 1 } else { *unresponsive - 1 };
            self.shared.wake_dials(state);
        }
    }

    fn unregister(&self, id: LinkId) {
        let mut state = self.shared.state.write();
        let Some(link) = state.links.remove(&id) else { return };
        state.unresponsive -= usize::from(link.unresponsive);
        let agent_id = &link.backend.agent_id;
        self.shared.update(&mut state.tables, &link.backend, id, None);
        if let Some(agent) = state.agents.get_mut(agent_id) {
            agent.streams.retain(|stream| *stream != id);
            if agent.streams.is_empty() {
                state.agents.remove(agent_id);
            }
        }
        drop(state);
        tracing::info!(target: "v2", agentID = %Peer(agent_id), "Remove connection for agent");
        drop(link); // the handle's own Drop must not run under the lock
    }

    /// Chooses a stream for a target's host by the rules of [`crate::backends`]. `exclude` is short: the streams that this dial
    /// has tried.
    pub fn choose(&self, host: &str, exclude: &[LinkId]) -> Option<Choice<L>> {
        self.choose_with(host, exclude, &mut rand::rng())
    }

    pub(super) fn choose_with(
        &self,
        host: &str,
        exclude: &[LinkId],
        rng: &mut impl Rng,
    ) -> Option<Choice<L>> {
        let state = self.shared.state.read();
        for health in [Health::Ready, Health::Leaving] {
            for table in &state.tables {
                let found = table.find(host, health, exclude, rng);
                if let Some(choice) = found.and_then(|id| state.choice(id, table.strategy)) {
                    choice.log_choice(health);
                    return Some(choice);
                }
            }
        }
        None
    }

    /// Waits until this stream does not answer pings and another stream for the target's host does.
    pub async fn until_another_is_better(&self, link: LinkId, host: &str) {
        let mut changed = pin!(self.shared.changed.notified());
        loop {
            // From here on no change is missed.
            changed.as_mut().enable();
            if self.is_another_better(link, host) {
                return;
            }
            changed.as_mut().await;
            changed.set(self.shared.changed.notified());
        }
    }

    fn is_another_better(&self, link: LinkId, host: &str) -> bool {
        let state = self.shared.state.read();
        let find = |table: &Table| table.find(host, Health::Ready, &[link], &mut rand::rng());
        state.links.get(&link).is_some_and(|link| link.unresponsive)
            && state.tables.iter().any(|table| find(table).is_some())
    }
}

impl<L: Clone> State<L> {
    fn choice(&self, id: LinkId, strategy: Strategy) -> Option<Choice<L>> {
        let Backend { agent_id, handle, .. } = &self.links.get(&id)?.backend;
        let budget = self.agents.get(agent_id)?.budget.clone();
        Some(Choice { link: id, agent_id: Arc::clone(agent_id), budget, handle: handle.clone(), strategy })
    }
}

impl<L> Choice<L> {
    /// Logs the choice in Go's words.
    fn log_choice(&self, health: Health) {
        let (agent_id, strategy) = (Peer(&self.agent_id), self.strategy.name());
        match health {
            Health::Ready => tracing::debug!(agentID = %agent_id, strategy, "Pick agent as backend"),
            Health::Leaving => tracing::debug!(
                agentID = %agent_id, strategy, "No non-draining backends available, using draining backend as fallback"
            ),
        }
    }
}

impl<L> Shared<L> {
    /// Changes the tables that contain a backend, and reports each of them. Go sets `ready_backend_connections` after each
    /// table, so the last table's number remains.
    fn update(&self, tables: &mut [Table], backend: &Backend<L>, id: LinkId, health: Option<Health>) {
        for table in tables {
            if table.set(&backend.agent_id, &backend.identifiers, id, health) {
                self.metrics.set(table.strategy, table.len());
            }
        }
    }

    /// Wakes the dials that may have a better stream now: only a dial on an unresponsive stream looks for one.
    fn wake_dials(&self, state: RwLockWriteGuard<'_, State<L>>) {
        let unresponsive = state.unresponsive;
        // The dials read the tables.
        drop(state);
        if unresponsive > 0 {
            self.changed.notify_waiters();
        }
    }
}

impl<L> Link<L> {
    fn health(&self) -> Health {
        if self.draining || self.unresponsive { Health::Leaving } else { Health::Ready }
    }
}

/// A stream's entry in the tables. Dropping it removes exactly this stream, even if others share its agent id or hosts.
#[must_use = "dropping the registration removes the stream"]
pub struct Registration<L: Clone> {
    manager: BackendManager<L>,
    id: LinkId,
}

impl<L: Clone> Registration<L> {
    /// The stream's id.
    pub fn id(&self) -> LinkId {
        self.id
    }
}

impl<L: Clone> Drop for Registration<L> {
    fn drop(&mut self) {
        self.manager.unregister(self.id);
    }
}

impl<L: Clone> fmt::Debug for Registration<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("id", &self.id).finish_non_exhaustive()
    }
}
