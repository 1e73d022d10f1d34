//! The route tables under their lock, and the registrations that keep them up to date.

mod choice;
mod ejections;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use serve::logs::{LogLimit, Peer};
use serve::metrics::LiveGuard;
use tokio::time::Instant;

pub use self::ejections::{AgentView, OutlierMetrics, keep_sweeping};
use super::lane::LaneTraffic;
use super::table::{Health, Table};
use super::{
    AgentStats, Backend, Identifiers, LinkId, ReadinessPolicy, RegisterError, RouteMetrics, Selection,
    Strategy,
};
use crate::auth::Party;
use crate::limits::MAX_AGENTS;

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
    metrics: RouteMetrics,
    logs: LogLimit,
}

struct State<L> {
    last_id: u64,
    links: HashMap<LinkId, Link<L>>,
    agents: HashMap<Arc<str>, Agent>,
    /// Agents without a stream that were ejected when they left: reconnecting ends no ejection.
    departed: HashMap<Arc<str>, AgentStats>,
    tables: Vec<Table>,
}

struct Link<L> {
    backend: Backend<L>,
    stats: AgentStats,
    lane: LaneTraffic,
    /// Counts the lanes of the agent process as one stream.
    counted: Arc<LiveGuard>,
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
    /// The party of its first stream.
    owner: Option<Party>,
}

/// One agent, as an operator sees it. A state is that of the agent if all of its streams have it.
#[derive(Debug)]
pub(crate) struct AgentDescription<L> {
    pub(crate) identifiers: Identifiers,
    pub(crate) stats: AgentStats,
    pub(crate) draining: bool,
    /// Pings are unanswered.
    pub(crate) silent: bool,
    /// Pings or packets are unanswered.
    pub(crate) unresponsive: bool,
    pub(crate) handles: Vec<L>,
}

impl<L: Clone> BackendManager<L> {
    /// With the default selection, and without a zone.
    #[cfg(test)]
    pub fn new(strategies: &[Strategy], metrics: RouteMetrics) -> Self {
        Self::with_selection(strategies, Selection::default(), None, metrics)
    }

    /// An empty manager for these strategies, in this order; repeated strategies count once. `default` and `defaultRoute` prefer
    /// agents of the zone.
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
        let (links, agents, departed) = (HashMap::new(), HashMap::new(), HashMap::new());
        let state = RwLock::new(State { last_id: 0, links, agents, departed, tables });
        Self { shared: Arc::new(Shared { selection, state, metrics, logs: LogLimit::default() }) }
    }

    /// [`Self::register_counted`] without a gauge.
    #[cfg(test)]
    pub fn register(&self, backend: Backend<L>) -> Result<Registration<L>, RegisterError> {
        self.register_counted(backend, serve::metrics::Live::default().enter())
    }

    /// Adds a stream to the tables until the registration is dropped. `open` counts the stream until then, unless another lane of
    /// its agent process is counted already.
    ///
    /// # Errors
    /// The agent id belongs to another party or has too many streams, or there are too many agents. No stream is displaced.
    pub fn register_counted(
        &self,
        backend: Backend<L>,
        open: LiveGuard,
    ) -> Result<Registration<L>, RegisterError> {
        let mut state = self.shared.state.write();
        match state.agents.get(&backend.agent_id) {
            Some(known) if known.is_foreign_to(backend.owner.as_ref()) => {
                return Err(RegisterError::ForeignId);
            }
            Some(known) if !state.has_room(known, &backend) => return Err(RegisterError::TooManyStreams),
            None if state.agents.len() >= MAX_AGENTS => return Err(RegisterError::TooManyAgents),
            _ => {}
        }
        tracing::info!(target: "v2", agentID = %Peer(&backend.agent_id), "Register backend for agent");
        let counted = state.lane_of_process(&backend).map(|lane| Arc::clone(&lane.counted));
        state.last_id += 1;
        let id = LinkId(state.last_id);
        let now = Instant::now();
        let departed = state.departed.remove(&backend.agent_id);
        let ejected = departed.filter(|stats| stats.ejected_for(now).is_some());
        let new = || Agent {
            streams: Vec::new(),
            stats: ejected.unwrap_or_else(|| AgentStats::new(now)),
            owner: backend.owner.clone(),
        };
        let agent = state.agents.entry(Arc::clone(&backend.agent_id)).or_insert_with(new);
        agent.streams.push(id);
        let stats = agent.stats.clone();
        self.shared.metrics.connected_agents.set(state.agents.len() as i64);
        let ejected = stats.ejected_for(now).is_some();
        let lane = LaneTraffic::new(now);
        let link = Link {
            backend,
            stats: stats.clone(),
            lane: lane.clone(),
            counted: counted.unwrap_or_else(|| Arc::new(open)),
            draining: false,
            silent: false,
            stuck: false,
            ejected,
        };
        self.shared.update(&mut state.tables, &link.backend, id, Some(link.health()));
        state.links.insert(id, link);
        Ok(Registration { manager: self.clone(), id, stats, lane })
    }

    /// Whether an agent id belongs to another party.
    pub(crate) fn belongs_to_another(&self, agent_id: &str, party: &Party) -> bool {
        self.shared.state.read().agents.get(agent_id).is_some_and(|agent| agent.is_foreign_to(Some(party)))
    }

    /// The agent asked for no new dials (DRAIN). A stream never stops draining.
    pub fn set_draining(&self, id: LinkId) {
        self.change(id, |link| link.draining = true);
    }

    /// Marks a stream that does not answer pings, or unmarks it when it answers. Returns whether it is the first marked
    /// lane of its agent process.
    pub fn set_unresponsive(&self, id: LinkId, unresponsive: bool) -> bool {
        let mut state = self.shared.state.write();
        state.change(id, |link| link.silent = unresponsive);
        unresponsive && !state.lanes_of(id).any(|(lane, link)| lane != id && link.silent)
    }

    /// Marks a stream whose agent does not answer packets, or unmarks it when it answers.
    pub fn set_stuck(&self, id: LinkId, stuck: bool) {
        self.change(id, |link| link.stuck = stuck);
    }

    /// The ids of all agents, in the order of their bytes.
    pub(crate) fn agent_ids(&self) -> Vec<Arc<str>> {
        let mut ids: Vec<_> = self.shared.state.read().agents.keys().map(Arc::clone).collect();
        ids.sort_unstable();
        ids
    }

    /// An agent and its streams; `None` if it has left.
    pub(crate) fn describe(&self, agent_id: &str) -> Option<AgentDescription<L>> {
        let state = self.shared.state.read();
        let agent = state.agents.get(agent_id)?;
        let links: Vec<&Link<L>> = agent.streams.iter().filter_map(|id| state.links.get(id)).collect();
        Some(AgentDescription {
            identifiers: links.first()?.backend.identifiers.clone(),
            stats: agent.stats.clone(),
            draining: links.iter().all(|link| link.draining),
            silent: links.iter().all(|link| link.silent),
            unresponsive: links.iter().all(|link| link.is_unresponsive()),
            handles: links.iter().map(|link| link.backend.handle.clone()).collect(),
        })
    }

    /// The streams whose handle is `wanted`, in the order of their agents' ids.
    pub(crate) fn streams(&self, wanted: impl Fn(&L) -> bool) -> Vec<(Arc<str>, LinkId, L)> {
        let of = |(id, link): (&LinkId, &Link<L>)| {
            let Backend { agent_id, handle, .. } = &link.backend;
            wanted(handle).then(|| (Arc::clone(agent_id), *id, handle.clone()))
        };
        let mut streams: Vec<_> = self.shared.state.read().links.iter().filter_map(of).collect();
        streams.sort_unstable_by(|one, two| (&one.0, one.1).cmp(&(&two.0, two.1)));
        streams
    }

    /// The streams of an agent.
    pub fn streams_of_agent(&self, agent_id: &str) -> Vec<LinkId> {
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

    /// The zone of `--prefer-zone` if no agent has it: dials then go to agents of any zone.
    pub(crate) fn empty_zone(&self) -> Option<Arc<str>> {
        let state = self.shared.state.read();
        let mut zones = state.tables.iter().filter(|table| table.len() == 0);
        zones.find_map(|table| table.zone.clone()).filter(|_| !state.agents.is_empty())
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

    fn change(&self, id: LinkId, change: impl FnOnce(&mut Link<L>)) {
        self.shared.state.write().change(id, change);
    }

    fn unregister(&self, id: LinkId) {
        let mut state = self.shared.state.write();
        let Some(link) = state.links.remove(&id) else { return };
        let agent_id = &link.backend.agent_id;
        self.shared.update(&mut state.tables, &link.backend, id, None);
        if let Some(agent) = state.agents.get_mut(agent_id) {
            agent.streams.retain(|stream| *stream != id);
            if agent.streams.is_empty() {
                state.depart(agent_id, Instant::now());
                self.shared.metrics.connected_agents.set(state.agents.len() as i64);
            }
        }
        drop(state);
        tracing::info!(target: "v2", agentID = %Peer(agent_id), "Remove connection for agent");
        drop(link); // the handle's own Drop must not run under the lock
    }
}

#[cfg(test)]
impl BackendManager<()> {
    /// Registers an agent's only stream.
    pub(crate) fn join(&self, agent: &str, identifiers: &str) -> Registration<()> {
        let identifiers = Identifiers::parse(identifiers).unwrap();
        let backend = Backend { agent_id: agent.into(), identifiers, process: None, owner: None, handle: () };
        self.register(backend).unwrap()
    }
}

impl Agent {
    fn is_foreign_to(&self, party: Option<&Party>) -> bool {
        self.owner.as_ref().zip(party).is_some_and(|(owner, party)| !owner.is_same(party))
    }
}

impl<L> State<L> {
    fn change(&mut self, id: LinkId, change: impl FnOnce(&mut Link<L>)) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let before = link.health();
        change(link);
        if link.health() == before {
            return;
        }
        for table in &mut self.tables {
            table.set(&link.backend.agent_id, &link.backend.identifiers, id, Some(link.health()));
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
}

impl<L> Link<L> {
    fn health(&self) -> Health {
        match (self.is_unresponsive(), self.draining || self.ejected) {
            (true, _) => Health::Unresponsive,
            (false, true) => Health::Fallback,
            (false, false) => Health::Ready,
        }
    }

    fn is_unresponsive(&self) -> bool {
        self.silent || self.stuck
    }
}

/// A stream's entry in the tables. Dropping it removes exactly this stream, even if others share its agent id or hosts.
#[must_use = "dropping the registration removes the stream"]
pub struct Registration<L: Clone> {
    /// The tables that have the entry.
    pub manager: BackendManager<L>,
    /// The stream's id.
    pub id: LinkId,
    /// The state that the streams of the agent share.
    pub stats: AgentStats,
    /// The traffic of the stream.
    pub lane: LaneTraffic,
}

impl<L: Clone> Drop for Registration<L> {
    fn drop(&mut self) {
        self.manager.unregister(self.id);
    }
}
