//! The route tables under their lock, and the registrations that keep them up to date.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use flags::GoDuration;
use parking_lot::{RwLock, RwLockWriteGuard};
use rand::Rng;
use serve::logs::{LogLimit, Peer};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::lane::LaneTraffic;
use super::outlier::Change;
use super::table::{Comparison, Health, Table};
use super::{
    AgentStats, Backend, Choice, Identifiers, LinkId, ReadinessPolicy, RegisterError, RouteMetrics,
    Selection, Strategy,
};
use crate::limits::{MAX_AGENTS, MAX_LANES_PER_AGENT, MAX_STREAMS_PER_AGENT};

/// Ejections that are kept although the agent has gone. Agents choose their ids.
const MOST_DEPARTED: usize = 1_000;

/// Agents that a choice passes over because another dial tries them.
const MOST_BUSY: usize = 8;

/// The pause of a waiting dial after a change that brought no better stream. After a failure of a load balancer there are
/// thousands of changes in a second.
const BREATH: Duration = Duration::from_millis(50);

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
    logs: LogLimit,
}

struct State<L> {
    last_id: u64,
    links: HashMap<LinkId, Link<L>>,
    agents: HashMap<Arc<str>, Agent>,
    /// Agents without a stream that were ejected when they left: reconnecting ends no ejection.
    departed: HashMap<Arc<str>, AgentStats>,
    tables: Vec<Table>,
    /// The number of unresponsive streams.
    unresponsive: usize,
}

struct Link<L> {
    backend: Backend<L>,
    stats: AgentStats,
    lane: LaneTraffic,
    draining: bool,
    /// Does not answer pings.
    silent: bool,
    /// Answers pings, and no packets.
    stuck: bool,
    /// The agent is ejected.
    ejected: bool,
    /// The stream has become (un)responsive.
    turned: Arc<Notify>,
}

/// The streams of one agent id, and the state that they share.
struct Agent {
    streams: Vec<LinkId>,
    stats: AgentStats,
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
    pub(crate) stuck: bool,
    pub(crate) handles: Vec<L>,
}

/// One agent, as the outliers are determined from it.
#[derive(Debug)]
pub struct AgentView {
    pub(super) id: Arc<str>,
    pub(super) stats: AgentStats,
    /// None of its streams answers.
    pub(super) unresponsive: bool,
    /// It has a stream for new dials.
    pub(super) ready: bool,
}

#[cfg(test)]
impl AgentView {
    /// An agent that does not answer.
    pub(crate) fn unresponsive(id: &str) -> Self {
        Self { id: id.into(), stats: AgentStats::new(Instant::now()), unresponsive: true, ready: false }
    }
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
        let (links, agents, departed) = (HashMap::new(), HashMap::new(), HashMap::new());
        let state = RwLock::new(State { last_id: 0, links, agents, departed, tables, unresponsive: 0 });
        let (changed, logs) = (Notify::new(), LogLimit::default());
        Self { shared: Arc::new(Shared { selection, state, changed, metrics, logs }) }
    }

    /// Adds a stream to the tables until the registration is dropped.
    ///
    /// # Errors
    /// The agent id has too many streams, or there are too many agents. No stream is displaced.
    pub fn register(&self, backend: Backend<L>) -> Result<Registration<L>, RegisterError> {
        let mut state = self.shared.state.write();
        match state.agents.get(&backend.agent_id) {
            Some(known) if !state.has_room(known, &backend) => return Err(RegisterError::TooManyStreams),
            None if state.agents.len() >= MAX_AGENTS => return Err(RegisterError::TooManyAgents),
            _ => {}
        }
        tracing::info!(target: "v2", agentID = %Peer(&backend.agent_id), "Register backend for agent");
        state.last_id += 1;
        let id = LinkId(state.last_id);
        let now = Instant::now();
        let departed = state.departed.remove(&backend.agent_id);
        let ejected = departed.filter(|stats| stats.ejected_for(now).is_some());
        let new = || Agent { streams: Vec::new(), stats: ejected.unwrap_or_else(|| AgentStats::new(now)) };
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
            draining: false,
            silent: false,
            stuck: false,
            ejected,
            turned: Arc::default(),
        };
        self.shared.update(&mut state.tables, &link.backend, id, Some(link.health()));
        state.links.insert(id, link);
        self.shared.wake_dials(state);
        Ok(Registration { manager: self.clone(), id, stats, lane })
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
            self.shared.log_change(id, change);
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
        let ready = |id: &LinkId| state.links.get(id).is_some_and(|link| link.health() == Health::Ready);
        let view = |(id, agent): (&Arc<str>, &Agent)| AgentView {
            id: Arc::clone(id),
            stats: agent.stats.clone(),
            unresponsive: agent.streams.iter().all(unresponsive),
            ready: agent.streams.iter().any(ready),
        };
        state.agents.iter().map(view).collect()
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
            stuck: links.iter().all(|link| link.is_unresponsive()),
            handles: links.iter().map(|link| link.backend.handle.clone()).collect(),
        })
    }

    /// The number of agents without a ready stream.
    pub(crate) fn leaving_agents(&self) -> usize {
        let state = self.shared.state.read();
        let is_leaving =
            |id: &LinkId| state.links.get(id).is_some_and(|link| link.health() == Health::Leaving);
        state.agents.values().filter(|agent| agent.streams.iter().all(is_leaving)).count()
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

    /// The handles of the lanes of an agent process that opens another one.
    pub fn lanes_beside(&self, backend: &Backend<L>) -> Vec<L> {
        let state = self.shared.state.read();
        let streams = state.agents.get(&backend.agent_id).into_iter().flat_map(|agent| &agent.streams);
        let lanes = streams.filter_map(|id| Some(&state.links.get(id)?.backend));
        lanes.filter(|lane| lane.is_lane_of(backend)).map(|lane| lane.handle.clone()).collect()
    }

    /// The handles of the other streams of the same agent id.
    pub fn siblings(&self, id: LinkId) -> Vec<L> {
        let state = self.shared.state.read();
        let others = state.streams_beside(id).filter(|(other, _)| *other != id);
        others.map(|(_, link)| link.backend.handle.clone()).collect()
    }

    /// The handles of the other lanes of the same agent process.
    pub fn lanes(&self, id: LinkId) -> Vec<L> {
        let state = self.shared.state.read();
        let others = state.lanes_of(id).filter(|(lane, _)| *lane != id);
        others.map(|(_, link)| link.backend.handle.clone()).collect()
    }

    /// The handles of the streams of the same agent id that are no lanes of its process, and neither draining nor unresponsive.
    pub fn rivals(&self, id: LinkId) -> Vec<L> {
        let state = self.shared.state.read();
        let lanes: Vec<LinkId> = state.lanes_of(id).map(|(lane, _)| lane).collect();
        let serves = |link: &Link<L>| !link.draining && !link.is_unresponsive();
        let others = state.streams_beside(id).filter(|(other, link)| !lanes.contains(other) && serves(link));
        others.map(|(_, link)| link.backend.handle.clone()).collect()
    }

    /// Whether another lane of the same agent process does not answer pings.
    pub fn is_lane_silent_beside(&self, id: LinkId) -> bool {
        let state = self.shared.state.read();
        state.lanes_of(id).any(|(lane, link)| lane != id && link.silent)
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
            link.turned.notify_waiters();
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
                state.depart(agent_id, Instant::now());
                self.shared.metrics.connected_agents.set(state.agents.len() as i64);
            }
        }
        drop(state);
        tracing::info!(target: "v2", agentID = %Peer(agent_id), "Remove connection for agent");
        drop(link); // the handle's own Drop must not run under the lock
    }

    /// Chooses a stream for a target's host by the rules of [`crate::backends`]. `exclude` is short: the streams that this dial
    /// has tried.
    pub fn choose(&self, host: &str, exclude: &[LinkId]) -> Option<Choice<L>> {
        self.choose_of(host, (&[Health::Ready, Health::Leaving], None), exclude, &mut rand::rng())
    }

    /// Chooses again after a stream has failed: a ready stream of another agent, then any other.
    pub fn choose_another(&self, host: &str, tried: LinkId, agent_id: &str) -> Option<Choice<L>> {
        let others =
            self.choose_of(host, (&[Health::Ready], None), &self.streams_of(agent_id), &mut rand::rng());
        others.or_else(|| self.choose(host, &[tried]))
    }

    /// The same, but only a ready stream of this strategy: agents of another one may reach another host by the same address.
    pub fn choose_ready(&self, host: &str, strategy: Strategy, exclude: &[LinkId]) -> Option<Choice<L>> {
        self.choose_of(host, (&[Health::Ready], Some(strategy)), exclude, &mut rand::rng())
    }

    /// A stream of this agent, a ready one if it has one.
    pub fn choose_agent(&self, agent_id: &str) -> Option<Choice<L>> {
        let state = self.shared.state.read();
        let streams = &state.agents.get(agent_id)?.streams;
        let health = |id: &&LinkId| state.links.get(id).map(Link::health);
        let ready = streams.iter().find(|id| health(id) == Some(Health::Ready));
        state.choice(*ready.or(streams.first())?, state.tables.first()?.strategy, Instant::now(), true)
    }

    /// Why a dial of a target's host goes to which agents, in words.
    pub fn explain(&self, host: &str) -> String {
        let state = self.shared.state.read();
        for health in [Health::Ready, Health::Leaving] {
            for table in &state.tables {
                let suitable = table.suitable(host, health);
                if suitable == 0 {
                    continue;
                }
                let (strategy, agents) = (table.strategy.name(), state.agents.len());
                let zone = table.zone.as_ref().map(|zone| format!(" of zone {zone}")).unwrap_or_default();
                let health = if health == Health::Ready { "ready" } else { "left, none is ready" };
                let choice = match (suitable, self.shared.selection) {
                    (1, _) => "",
                    (_, Selection::LeastLoaded) => ", of two random ones the less loaded",
                    (_, Selection::Random) => ", a random one",
                };
                return format!(
                    "strategy {strategy}: {suitable} of {agents} agents{zone} suit and are {health}{choice}"
                );
            }
        }
        let strategies: Vec<&str> = state.tables.iter().map(|table| table.strategy.name()).collect();
        format!("none of {} agents suits the strategies {}", state.agents.len(), strategies.join(", "))
    }

    /// The same among streams of these healths, in this order, and of one strategy or all.
    pub(super) fn choose_of(
        &self,
        host: &str,
        (healths, only): (&[Health], Option<Strategy>),
        exclude: &[LinkId],
        rng: &mut impl Rng,
    ) -> Option<Choice<L>> {
        let state = self.shared.state.read();
        let now = Instant::now();
        let better = |one, two| state.better(one, two, now);
        for health in healths {
            // Agents that another dial tries: used only if no other agent of this health can be.
            let (mut skipped, mut busy, mut passed) = (exclude.to_vec(), None, 0);
            let is_first_lane =
                |id| state.suitable_lanes(id, *health, exclude).next().is_some_and(|(first, _)| first == id);
            let compare = Comparison { better: &better, is_first_lane: &is_first_lane };
            let better = (self.shared.selection == Selection::LeastLoaded).then_some(compare);
            for table in state.tables.iter().filter(|table| only.is_none_or(|only| table.strategy == only)) {
                while let Some(found) = table.find(host, *health, &skipped, better, rng) {
                    let id = state.choose_lane(found, *health, exclude, now).unwrap_or(found);
                    let last_resort = *health == Health::Leaving || passed >= MOST_BUSY;
                    if let Some(choice) = state.choice(id, table.strategy, now, last_resort) {
                        choice.log_choice(*health);
                        return Some(choice);
                    }
                    busy = busy.or(Some((id, table.strategy)));
                    passed += 1;
                    skipped.extend(state.lanes_of(id).map(|(lane, _)| lane));
                }
            }
            if let Some((id, strategy)) = busy {
                return state.choice(id, strategy, now, true);
            }
        }
        None
    }

    /// Waits until this stream does not answer pings and another stream for the target's host does.
    pub async fn until_another_is_better(&self, link: LinkId, host: &str) {
        self.until_unresponsive(link).await;
        let mut changed = pin!(self.shared.changed.notified());
        loop {
            // From here on no change is missed.
            changed.as_mut().enable();
            if self.is_another_better(link, host) {
                return;
            }
            changed.as_mut().await;
            if self.is_another_better(link, host) {
                return;
            }
            sleep(BREATH).await;
            changed.set(self.shared.changed.notified());
        }
    }

    /// Waits until this stream does not answer. Until then the changes of other streams are of no interest: after a balancer's
    /// restart there are thousands, and as many waiting dials.
    async fn until_unresponsive(&self, link: LinkId) {
        let turned = self.shared.state.read().links.get(&link).map(|link| Arc::clone(&link.turned));
        // A dial on a stream that has ended is told so.
        let Some(turned) = turned else { return std::future::pending().await };
        loop {
            let mut turn = pin!(turned.notified());
            // From here on no change is missed.
            turn.as_mut().enable();
            if self.shared.state.read().links.get(&link).is_some_and(Link::is_unresponsive) {
                return;
            }
            turn.await;
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
    /// The choice of this stream, which the agent counts from now on. `None` while another dial tries the agent, unless it is
    /// the last resort.
    fn choice(&self, id: LinkId, strategy: Strategy, now: Instant, last_resort: bool) -> Option<Choice<L>> {
        let Link { backend: Backend { agent_id, handle, .. }, stats, lane, .. } = self.links.get(&id)?;
        let flight = stats.begin(now, last_resort)?;
        let (agent_id, lane) = (Arc::clone(agent_id), lane.clone());
        Some(Choice { link: id, agent_id, flight, lane, handle: handle.clone(), strategy })
    }

    /// The last stream of an agent has ended.
    fn depart(&mut self, agent_id: &Arc<str>, now: Instant) {
        let Some(Agent { stats, .. }) = self.agents.remove(agent_id) else { return };
        if stats.ejected_for(now).is_some() {
            self.departed.retain(|_, stats| stats.ejected_for(now).is_some());
            if self.departed.len() < MOST_DEPARTED {
                self.departed.insert(Arc::clone(agent_id), stats);
            }
        }
    }

    /// Whether an agent id may have this stream, too.
    fn has_room(&self, known: &Agent, backend: &Backend<L>) -> bool {
        let streams: Vec<&Backend<L>> =
            known.streams.iter().filter_map(|id| Some(&self.links.get(id)?.backend)).collect();
        let is_lane_of =
            |others: &[&Backend<L>], one: &Backend<L>| others.iter().any(|other| one.is_lane_of(other));
        let processes =
            streams.iter().enumerate().filter(|(place, one)| !is_lane_of(&streams[..*place], one)).count();
        streams.len() < MAX_LANES_PER_AGENT
            && (processes < MAX_STREAMS_PER_AGENT || is_lane_of(&streams, backend))
    }

    /// All streams of a stream's agent id, itself included, the oldest first.
    fn streams_beside(&self, id: LinkId) -> impl Iterator<Item = (LinkId, &Link<L>)> {
        let agent = self.links.get(&id).and_then(|link| self.agents.get(&link.backend.agent_id));
        let streams = agent.into_iter().flat_map(|agent| &agent.streams);
        streams.filter_map(|other| Some((*other, self.links.get(other)?)))
    }

    /// The lanes of a stream's agent process, itself included, the oldest first.
    fn lanes_of(&self, id: LinkId) -> impl Iterator<Item = (LinkId, &Link<L>)> {
        let this = self.links.get(&id);
        let is_lane = move |other: &Link<L>| this.is_some_and(|this| this.backend.is_lane_of(&other.backend));
        self.streams_beside(id).filter(move |(other, link)| *other == id || is_lane(link))
    }

    /// Those that a dial may use.
    fn suitable_lanes(
        &self,
        id: LinkId,
        health: Health,
        exclude: &[LinkId],
    ) -> impl Iterator<Item = (LinkId, &Link<L>)> {
        self.lanes_of(id).filter(move |(lane, link)| link.health() == health && !exclude.contains(lane))
    }

    /// The lane for a dial that found this stream.
    fn choose_lane(&self, id: LinkId, health: Health, exclude: &[LinkId], now: Instant) -> Option<LinkId> {
        let chosen =
            mux::choose_lane(self.suitable_lanes(id, health, exclude).map(|(_, link)| link.lane.load(now)));
        self.suitable_lanes(id, health, exclude).nth(chosen?).map(|(lane, _)| lane)
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

    fn log_change(&self, agent_id: &str, change: Change) {
        let cause = if change == Change::Trial { "trial" } else { "ejection" };
        let Some(suppressed) = self.logs.due_for(cause, agent_id) else { return };
        let agent_id = Peer(agent_id);
        match change {
            Change::Ejected { time, failures, dials } => tracing::warn!(
                agentID = %agent_id, failures, dials, time = %GoDuration::from(time), suppressed,
                "dials fail at this agent that succeed at others: it gets no dials for a time"
            ),
            Change::Trial => {
                tracing::info!(agentID = %agent_id, suppressed, "trying an agent again that was ejected")
            }
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

/// A stream's entry in the tables. Dropping it removes exactly this stream, even if others share its agent id or hosts.
#[must_use = "dropping the registration removes the stream"]
pub struct Registration<L: Clone> {
    manager: BackendManager<L>,
    id: LinkId,
    stats: AgentStats,
    lane: LaneTraffic,
}

impl<L: Clone> Registration<L> {
    /// The stream's id.
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// The traffic of the stream.
    pub fn lane(&self) -> &LaneTraffic {
        &self.lane
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
