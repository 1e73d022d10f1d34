//! The route tables under their lock, and the registrations that keep them up to date.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::RwLock;
use rand::Rng;
use serve::logs::Peer;
use tokio::sync::Notify;

use super::hosts::HostTable;
use super::identifiers::Identifiers;
use super::members::Health;
use super::pool::{Excluded, Pool};
use super::{Backend, Choice, LinkId, ReadinessPolicy, RegisterError, RouteObserver, Strategy};
use crate::limits::{AgentBudget, MAX_AGENTS, MAX_STREAMS_PER_AGENT};

/// The agent streams, and the strategies over them. Cheap to clone; clones share the tables.
///
/// `L` is the handle of an agent stream; the manager hands out clones of it and never uses it.
pub struct BackendManager<L> {
    shared: Arc<Shared<L>>,
}

struct Shared<L> {
    state: RwLock<State<L>>,
    /// A stream was registered, or its health changed.
    changed: Notify,
    observer: Arc<dyn RouteObserver>,
}

struct State<L> {
    last_id: u64,
    links: HashMap<LinkId, Link<L>>,
    agents: HashMap<Arc<str>, Agent>,
    tables: Vec<(Strategy, Table)>,
}

struct Link<L> {
    backend: Backend<L>,
    draining: bool,
    unresponsive: bool,
}

/// The state that the streams of one agent id share.
#[derive(Default)]
struct Agent {
    streams: usize,
    budget: AgentBudget,
}

enum Table {
    /// All agents.
    Agents(Pool),
    /// Agents by host.
    Hosts(HostTable),
    /// Agents with a default route.
    Routes(Pool),
}

impl<L> BackendManager<L> {
    /// An empty manager for these strategies, in this order; repeated strategies count once.
    pub fn new(strategies: &[Strategy], observer: Arc<dyn RouteObserver>) -> Self {
        let mut tables: Vec<(Strategy, Table)> = Vec::new();
        for strategy in strategies {
            if tables.iter().all(|(known, _)| known != strategy) {
                tables.push((*strategy, Table::new(*strategy)));
                observer.ready_backends(*strategy, 0);
                observer.ready_backend_connections(0);
            }
        }
        let state = State { last_id: 0, links: HashMap::new(), agents: HashMap::new(), tables };
        let (state, changed) = (RwLock::new(state), Notify::new());
        Self { shared: Arc::new(Shared { state, changed, observer }) }
    }

    /// Adds a stream to the tables until the registration is dropped.
    ///
    /// # Errors
    /// The agent id has too many streams, or there are too many agents. No stream is displaced.
    pub fn register(&self, backend: Backend<L>) -> Result<Registration<L>, RegisterError> {
        let mut state = self.shared.state.write();
        let known = state.agents.get(&backend.agent_id).map(|agent| agent.streams);
        if known.is_some_and(|streams| streams >= MAX_STREAMS_PER_AGENT) {
            return Err(RegisterError::TooManyStreams);
        }
        if known.is_none() && state.agents.len() >= MAX_AGENTS {
            return Err(RegisterError::TooManyAgents);
        }
        tracing::info!(target: "v2", agentID = %Peer(&backend.agent_id), "Register backend for agent");
        state.last_id += 1;
        let id = LinkId(state.last_id);
        state.agents.entry(Arc::clone(&backend.agent_id)).or_default().streams += 1;
        self.shared.update(&mut state.tables, &backend.identifiers, |table| {
            table.set(&backend.agent_id, &backend.identifiers, id, Health::Ready);
        });
        state.links.insert(id, Link { backend, draining: false, unresponsive: false });
        drop(state);
        self.shared.changed.notify_waiters();
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
        let empty = |(strategy, table): &(Strategy, Table)| (table.len() == 0).then_some(*strategy);
        let lacking: Vec<Strategy> = match policy {
            ReadinessPolicy::FirstStrategy => state.tables.iter().take(1).filter_map(empty).collect(),
            ReadinessPolicy::Any | ReadinessPolicy::All => state.tables.iter().filter_map(empty).collect(),
        };
        if policy == ReadinessPolicy::Any && lacking.len() < state.tables.len() {
            return Vec::new();
        }
        lacking
    }

    /// The number of identifiers known to each strategy, in the order of the flag.
    #[cfg(test)]
    pub fn counts(&self) -> Vec<(Strategy, usize)> {
        self.shared.state.read().tables.iter().map(|(strategy, table)| (*strategy, table.len())).collect()
    }

    /// The number of registered streams.
    #[cfg(test)]
    pub fn links(&self) -> usize {
        self.shared.state.read().links.len()
    }

    /// The handles of the other streams of the same agent id.
    pub fn siblings(&self, id: LinkId) -> Vec<L>
    where
        L: Clone,
    {
        let state = self.shared.state.read();
        let agent_of = |link: &Link<L>| Arc::clone(&link.backend.agent_id);
        let Some(agent) = state.links.get(&id).map(agent_of) else { return Vec::new() };
        // All links are searched only if the agent id has several streams.
        if state.agents.get(&agent).is_none_or(|agent| agent.streams < 2) {
            return Vec::new();
        }
        let others =
            state.links.iter().filter(|(other, link)| **other != id && link.backend.agent_id == agent);
        others.map(|(_, link)| link.backend.handle.clone()).collect()
    }

    fn change(&self, id: LinkId, change: impl FnOnce(&mut Link<L>)) {
        let mut state = self.shared.state.write();
        let State { links, tables, .. } = &mut *state;
        let Some(link) = links.get_mut(&id) else { return };
        let before = link.health();
        change(link);
        if link.health() != before {
            for (_, table) in tables {
                table.set(&link.backend.agent_id, &link.backend.identifiers, id, link.health());
            }
            drop(state);
            self.shared.changed.notify_waiters();
        }
    }

    fn unregister(&self, id: LinkId) {
        let mut state = self.shared.state.write();
        let Some(link) = state.links.remove(&id) else { return };
        let Backend { agent_id, identifiers, .. } = &link.backend;
        self.shared.update(&mut state.tables, identifiers, |table| table.remove(agent_id, identifiers, id));
        if let Some(agent) = state.agents.get_mut(agent_id) {
            agent.streams -= 1;
            if agent.streams == 0 {
                state.agents.remove(agent_id);
            }
        }
        drop(state);
        tracing::info!(target: "v2", agentID = %Peer(&link.backend.agent_id), "Remove connection for agent");
        drop(link); // the handle's own Drop must not run under the lock
    }
}

impl<L: Clone> BackendManager<L> {
    /// Chooses a stream for a target's host by the rules of [`crate::route`]. `exclude` is short: the streams that this dial
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
        let agent_of = |id: &LinkId| Some(Arc::clone(&state.links.get(id)?.backend.agent_id));
        let excluded: Vec<Excluded> =
            exclude.iter().filter_map(|id| Some(Excluded { id: *id, agent: agent_of(id)? })).collect();
        for health in [Health::Ready, Health::Leaving] {
            for (strategy, table) in &state.tables {
                let found = table.find(host, health, &excluded, rng);
                if let Some(choice) = found.and_then(|id| state.choice(id, *strategy)) {
                    choice.log_choice(health);
                    return Some(choice);
                }
            }
        }
        None
    }
}

impl<L: Clone> State<L> {
    fn choice(&self, id: LinkId, strategy: Strategy) -> Option<Choice<L>> {
        let Backend { agent_id, handle, .. } = &self.links.get(&id)?.backend;
        Some(Choice {
            link: id,
            agent_id: Arc::clone(agent_id),
            budget: self.agents.get(agent_id)?.budget.clone(),
            handle: handle.clone(),
            strategy,
        })
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

impl<L> BackendManager<L> {
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
        let Some(unresponsive) = state.links.get(&link).filter(|link| link.unresponsive) else {
            return false;
        };
        let excluded = [Excluded { id: link, agent: Arc::clone(&unresponsive.backend.agent_id) }];
        let has_other =
            |(_, table): &(Strategy, Table)| table.find(host, Health::Ready, &excluded, &mut rand::rng());
        state.tables.iter().find_map(has_other).is_some()
    }
}

impl<L> Shared<L> {
    /// Changes the tables that contain a backend, and reports each of them. Go sets `ready_backend_connections` after each
    /// table, so the last table's number remains.
    fn update(
        &self,
        tables: &mut [(Strategy, Table)],
        identifiers: &Identifiers,
        mut change: impl FnMut(&mut Table),
    ) {
        for (strategy, table) in tables.iter_mut().filter(|(_, table)| table.holds(identifiers)) {
            change(table);
            self.observer.ready_backends(*strategy, table.len());
            self.observer.ready_backend_connections(table.len());
        }
    }
}

impl<L> Link<L> {
    fn health(&self) -> Health {
        if self.draining || self.unresponsive { Health::Leaving } else { Health::Ready }
    }
}

impl Table {
    fn new(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Default => Table::Agents(Pool::default()),
            Strategy::DestHost => Table::Hosts(HostTable::default()),
            Strategy::DefaultRoute => Table::Routes(Pool::default()),
        }
    }

    fn holds(&self, identifiers: &Identifiers) -> bool {
        match self {
            Table::Agents(_) => true,
            Table::Hosts(_) => !identifiers.hosts.is_empty() || !identifiers.networks.is_empty(),
            Table::Routes(_) => identifiers.default_route,
        }
    }

    /// A stream of this health for a target's host.
    fn find(&self, host: &str, health: Health, exclude: &[Excluded], rng: &mut impl Rng) -> Option<LinkId> {
        match self {
            Table::Agents(pool) | Table::Routes(pool) => pool.pick(health, exclude, rng),
            Table::Hosts(hosts) => {
                let ids: Vec<LinkId> = exclude.iter().map(|excluded| excluded.id).collect();
                hosts.find(host, health, &ids)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Table::Agents(pool) | Table::Routes(pool) => pool.len(),
            Table::Hosts(hosts) => hosts.len(),
        }
    }

    fn set(&mut self, agent: &Arc<str>, identifiers: &Identifiers, id: LinkId, health: Health) {
        match self {
            Table::Routes(_) if !identifiers.default_route => {}
            Table::Agents(pool) | Table::Routes(pool) => pool.set(agent, id, health),
            Table::Hosts(hosts) => hosts.set(identifiers, id, health),
        }
    }

    fn remove(&mut self, agent: &Arc<str>, identifiers: &Identifiers, id: LinkId) {
        match self {
            Table::Agents(pool) | Table::Routes(pool) => pool.remove(agent, id),
            Table::Hosts(hosts) => hosts.remove(identifiers, id),
        }
    }
}

/// A stream's entry in the tables. Dropping it removes exactly this stream, even if others share its agent id or hosts.
#[must_use = "dropping the registration removes the stream"]
pub struct Registration<L> {
    manager: BackendManager<L>,
    id: LinkId,
}

impl<L> Registration<L> {
    /// The stream's id.
    pub fn id(&self) -> LinkId {
        self.id
    }
}

impl<L> Drop for Registration<L> {
    fn drop(&mut self) {
        self.manager.unregister(self.id);
    }
}

impl<L> Clone for BackendManager<L> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<L> fmt::Debug for BackendManager<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendManager").finish_non_exhaustive()
    }
}

impl<L> fmt::Debug for Registration<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("id", &self.id).finish_non_exhaustive()
    }
}
