//! The route tables under their lock, and the registrations that keep them up to date.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use flags::GoDuration;
use parking_lot::{RwLock, RwLockWriteGuard};
use rand::Rng;
use serve::logs::Peer;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::outlier::Change;
use super::table::{Health, Table};
use super::{
    AgentStats, Backend, Choice, LinkId, ReadinessPolicy, RegisterError, RouteMetrics, Selection, Strategy,
};
use crate::limits::{MAX_AGENTS, MAX_STREAMS_PER_AGENT};

/// The agent streams, and the strategies over them. Cheap to clone; clones share the tables.
///
/// `L` is the handle of an agent stream; the manager hands out clones of it and never uses it.
#[derive(Clone)]
pub struct BackendManager<L> {
    shared: Arc<Shared<L>>,
}

struct Shared<L> {
    selection: Selection,
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
    stats: AgentStats,
    draining: bool,
    /// Does not answer pings.
    silent: bool,
    /// Answers pings, and no packets.
    stuck: bool,
    /// The agent is ejected.
    ejected: bool,
}

/// The streams of one agent id, and the state that they share.
struct Agent {
    streams: Vec<LinkId>,
    stats: AgentStats,
}

#[cfg(test)]
impl AgentView {
    /// An agent that does not answer.
    pub(crate) fn unresponsive(id: &str) -> Self {
        Self { id: id.into(), stats: AgentStats::new(Instant::now()), unresponsive: true }
    }
}

/// One agent, as the outliers are determined from it.
#[derive(Debug)]
pub struct AgentView {
    pub(super) id: Arc<str>,
    pub(super) stats: AgentStats,
    /// None of its streams answers.
    pub(super) unresponsive: bool,
}

impl<L: Clone> BackendManager<L> {
    /// An empty manager for these strategies, in this order; repeated strategies count once.
    pub fn new(strategies: &[Strategy], metrics: RouteMetrics) -> Self {
        Self::with_selection(strategies, Selection::default(), None, metrics)
    }

    /// The same with a rule to choose among suitable agents, and a zone whose agents `default` and `defaultRoute` prefer.
    pub fn with_selection(
        strategies: &[Strategy],
        selection: Selection,
        prefer_zone: Option<&Arc<str>>,
        metrics: RouteMetrics,
    ) -> Self {
        let mut tables: Vec<Table> = Vec::new();
        for strategy in strategies {
            if tables.iter().all(|table| table.strategy != *strategy) {
                // destHost keeps its order: an exact host or a longer prefix counts more than a zone.
                if let Some(zone) = prefer_zone.filter(|_| *strategy != Strategy::DestHost) {
                    tables.push(Table::new(*strategy, Some(Arc::clone(zone))));
                }
                tables.push(Table::new(*strategy, None));
                metrics.set(*strategy, 0);
            }
        }
        let (links, agents) = (HashMap::new(), HashMap::new());
        let state = RwLock::new(State { last_id: 0, links, agents, tables, unresponsive: 0 });
        Self { shared: Arc::new(Shared { selection, state, changed: Notify::new(), metrics }) }
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
        let now = Instant::now();
        let new = || Agent { streams: Vec::new(), stats: AgentStats::new(now) };
        let agent = state.agents.entry(Arc::clone(&backend.agent_id)).or_insert_with(new);
        agent.streams.push(id);
        let stats = agent.stats.clone();
        let ejected = stats.ejected_for(now).is_some();
        let link =
            Link { backend, stats: stats.clone(), draining: false, silent: false, stuck: false, ejected };
        self.shared.update(&mut state.tables, &link.backend, id, Some(link.health()));
        state.links.insert(id, link);
        self.shared.wake_dials(state);
        Ok(Registration { manager: self.clone(), id, stats })
    }

    /// The agent asked for no new dials (DRAIN). A stream never stops draining.
    pub fn set_draining(&self, id: LinkId) {
        self.change(id, |link| link.draining = true);
    }

    /// Marks a stream that does not answer pings, or unmarks it when it answers.
    pub fn set_unresponsive(&self, id: LinkId, unresponsive: bool) {
        self.change(id, |link| link.silent = unresponsive);
    }

    /// Marks a stream whose agent does not answer packets, or unmarks it when it answers.
    pub fn set_stuck(&self, id: LinkId, stuck: bool) {
        self.change(id, |link| link.stuck = stuck);
    }

    /// Ejects agents whose own failures stand out, at most half of all, and lets others return. Returns the number of ejections.
    pub(super) fn sweep(&self, agents: &[AgentView], now: Instant) -> u64 {
        let mut ejections = 0;
        let is_ejected = |agent: &&AgentView| agent.stats.ejected_for(now).is_some();
        let mut left = (agents.len() / 2).saturating_sub(agents.iter().filter(is_ejected).count());
        for AgentView { id, stats, .. } in agents {
            let Some(change) = stats.sweep(now, left > 0) else { continue };
            let ejected = matches!(change, Change::Ejected { .. });
            left -= usize::from(ejected);
            ejections += u64::from(ejected);
            log_change(id, change);
            let streams = self.streams_of(id);
            // Not those of an agent that has registered again under this id meanwhile.
            let eject =
                |link: &mut Link<L>| link.ejected = if link.stats.is(stats) { ejected } else { link.ejected };
            streams.into_iter().for_each(|stream| self.change(stream, eject));
        }
        ejections
    }

    /// The ejected agents, each with the rest of its time, by name.
    pub fn ejected(&self, now: Instant) -> Vec<(Arc<str>, Duration)> {
        let state = self.shared.state.read();
        let agents = state.agents.iter();
        let mut ejected: Vec<_> =
            agents.filter_map(|(id, agent)| Some((Arc::clone(id), agent.stats.ejected_for(now)?))).collect();
        ejected.sort_unstable();
        ejected
    }

    /// All agents.
    pub(super) fn agents(&self) -> Vec<AgentView> {
        let state = self.shared.state.read();
        let unresponsive = |id: &LinkId| state.links.get(id).is_some_and(Link::is_unresponsive);
        let view = |(id, agent): (&Arc<str>, &Agent)| AgentView {
            id: Arc::clone(id),
            stats: agent.stats.clone(),
            unresponsive: agent.streams.iter().all(unresponsive),
        };
        state.agents.iter().map(view).collect()
    }

    /// The streams of an agent.
    pub fn streams_of(&self, agent_id: &str) -> Vec<LinkId> {
        self.shared.state.read().agents.get(agent_id).map(|agent| agent.streams.clone()).unwrap_or_default()
    }

    /// The strategies without a backend that `policy` requires, for `/readyz`. Draining and unresponsive streams count as
    /// backends. An empty list means ready.
    pub fn lacking(&self, policy: ReadinessPolicy) -> Vec<Strategy> {
        let state = self.shared.state.read();
        let tables: Vec<&Table> = state.tables.iter().filter(|table| table.zone.is_none()).collect();
        let required = if policy == ReadinessPolicy::FirstStrategy { 1 } else { tables.len() };
        let empty = tables.into_iter().take(required).filter(|table| table.len() == 0);
        let lacking: Vec<Strategy> = empty.map(|table| table.strategy).collect();
        if policy == ReadinessPolicy::Any && lacking.len() < required { Vec::new() } else { lacking }
    }

    /// The number of agents.
    pub fn agent_count(&self) -> usize {
        self.shared.state.read().agents.len()
    }

    /// The number of identifiers known to each strategy, in the order of the flag.
    #[cfg(test)]
    pub fn counts(&self) -> Vec<(Strategy, usize)> {
        let state = self.shared.state.read();
        let tables = state.tables.iter().filter(|table| table.zone.is_none());
        tables.map(|table| (table.strategy, table.len())).collect()
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
        let before = (link.health(), link.is_unresponsive());
        change(link);
        let Backend { agent_id, identifiers, .. } = &link.backend;
        if link.health() != before.0 {
            for table in tables {
                table.set(agent_id, identifiers, id, Some(link.health()));
            }
        }
        if link.is_unresponsive() != before.1 {
            *unresponsive = if link.is_unresponsive() { *unresponsive + 1 } else { *unresponsive - 1 };
            self.shared.wake_dials(state);
        }
    }

    fn unregister(&self, id: LinkId) {
        let mut state = self.shared.state.write();
        let Some(link) = state.links.remove(&id) else { return };
        state.unresponsive -= usize::from(link.is_unresponsive());
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
        self.choose_with(host, &[Health::Ready, Health::Leaving], exclude, &mut rand::rng())
    }

    /// The same, but only a ready stream of this strategy: agents of another one may reach another host by the same address.
    pub fn choose_ready(&self, host: &str, strategy: Strategy, exclude: &[LinkId]) -> Option<Choice<L>> {
        self.choose_of(host, (&[Health::Ready], Some(strategy)), exclude, &mut rand::rng())
    }

    pub(super) fn choose_with(
        &self,
        host: &str,
        healths: &[Health],
        exclude: &[LinkId],
        rng: &mut impl Rng,
    ) -> Option<Choice<L>> {
        self.choose_of(host, (healths, None), exclude, rng)
    }

    fn choose_of(
        &self,
        host: &str,
        (healths, only): (&[Health], Option<Strategy>),
        exclude: &[LinkId],
        rng: &mut impl Rng,
    ) -> Option<Choice<L>> {
        let state = self.shared.state.read();
        let now = Instant::now();
        let better = |one, two| state.better(one, two, now);
        let better = (self.shared.selection == Selection::LeastLoaded)
            .then_some(&better as &dyn Fn(LinkId, LinkId) -> LinkId);
        for health in healths {
            for table in state.tables.iter().filter(|table| only.is_none_or(|only| table.strategy == only)) {
                let found = table.find(host, *health, exclude, better, rng);
                if let Some(choice) = found.and_then(|id| state.choice(id, table.strategy)) {
                    choice.log_choice(*health);
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
        let find = |table: &Table| table.find(host, Health::Ready, &[link], None, &mut rand::rng());
        state.links.get(&link).is_some_and(Link::is_unresponsive)
            && state.tables.iter().any(|table| find(table).is_some())
    }
}

impl<L: Clone> State<L> {
    fn choice(&self, id: LinkId, strategy: Strategy) -> Option<Choice<L>> {
        let Link { backend: Backend { agent_id, handle, .. }, stats, .. } = self.links.get(&id)?;
        let (agent_id, stats) = (Arc::clone(agent_id), stats.clone());
        Some(Choice { link: id, agent_id, stats, handle: handle.clone(), strategy })
    }

    /// Which of two suitable streams gets the dial. Of two streams of one agent it is the older one.
    fn better(&self, one: LinkId, two: LinkId, now: Instant) -> LinkId {
        match (self.links.get(&one), self.links.get(&two)) {
            (Some(a), Some(b)) if a.stats.is(&b.stats) => one.min(two),
            (Some(a), Some(b)) if a.stats.loses_to(&b.stats, now) => two,
            _ => one,
        }
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
            if table.set(&backend.agent_id, &backend.identifiers, id, health) && table.zone.is_none() {
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
        if self.draining || self.ejected || self.is_unresponsive() { Health::Leaving } else { Health::Ready }
    }

    fn is_unresponsive(&self) -> bool {
        self.silent || self.stuck
    }
}

fn log_change(agent_id: &str, change: Change) {
    let agent_id = Peer(agent_id);
    match change {
        Change::Ejected { time, failures, dials } => tracing::warn!(
            agentID = %agent_id, failures, dials, time = %GoDuration::from(time),
            "dials fail at this agent that succeed at others: it gets no dials for a time"
        ),
        Change::Trial => tracing::info!(agentID = %agent_id, "trying an agent again that was ejected"),
    }
}

/// A stream's entry in the tables. Dropping it removes exactly this stream, even if others share its agent id or hosts.
#[must_use = "dropping the registration removes the stream"]
pub struct Registration<L: Clone> {
    manager: BackendManager<L>,
    id: LinkId,
    stats: AgentStats,
}

impl<L: Clone> Registration<L> {
    /// The stream's id.
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// The state that the streams of the agent share.
    pub fn stats(&self) -> &AgentStats {
        &self.stats
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
