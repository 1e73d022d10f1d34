//! The choice of a stream for a dial, whether another one is better, and the streams of one agent id: lanes of one process, and
//! other processes.

use std::sync::Arc;

use rand::Rng;
use serve::logs::Peer;
use status::words::count;
use tokio::time::Instant;

use super::{Agent, BackendManager, Link, State};
use crate::backends::table::{Comparison, Health, Table};
use crate::backends::{Backend, Choice, LinkId, Selection, Strategy};
use crate::limits::{MAX_LANES_PER_AGENT, MAX_STREAMS_PER_AGENT};

/// Agents that a choice passes over because another dial tries them.
const MAX_BUSY: usize = 8;

impl<L: Clone> BackendManager<L> {
    /// Chooses a stream for a target's host by the rules of [`crate::backends`]. `exclude` is short: the streams that this dial
    /// has tried.
    pub fn choose(&self, host: &str, exclude: &[LinkId]) -> Option<Choice<L>> {
        self.choose_of(host, (&Health::ALL, None), exclude, &mut rand::rng())
    }

    /// Chooses again after a stream has failed: a ready stream of another agent, then any other.
    pub fn choose_another(&self, host: &str, tried: LinkId, agent_id: &str) -> Option<Choice<L>> {
        let others = self.choose_of(
            host,
            (&[Health::Ready], None),
            &self.streams_of_agent(agent_id),
            &mut rand::rng(),
        );
        others.or_else(|| self.choose(host, &[tried]))
    }

    /// As [`BackendManager::choose`], but only a ready stream of this strategy: agents of another one may reach another host by
    /// the same address.
    pub fn choose_ready(&self, host: &str, strategy: Strategy, exclude: &[LinkId]) -> Option<Choice<L>> {
        self.choose_of(host, (&[Health::Ready], Some(strategy)), exclude, &mut rand::rng())
    }

    /// A stream of this agent, of the best health.
    pub fn choose_agent(&self, agent_id: &str) -> Option<Choice<L>> {
        let state = self.shared.state.read();
        let streams = &state.agents.get(agent_id)?.streams;
        let best = streams.iter().min_by_key(|id| state.links.get(id).map(Link::health))?;
        state.choice(*best, state.tables.first()?.strategy, Instant::now(), true)
    }

    /// Why a dial of a target's host goes to which agents, in words.
    pub fn explain(&self, host: &str) -> String {
        let state = self.shared.state.read();
        for health in Health::ALL {
            for table in &state.tables {
                let suitable = table.suitable(host, health);
                if suitable == 0 {
                    continue;
                }
                let (strategy, agents) = (table.strategy.name(), count(state.agents.len() as u64, "agent"));
                let zone = table.zone.as_ref().map(|zone| format!(" of zone {zone}")).unwrap_or_default();
                let suit = if suitable == 1 { "suits and is" } else { "suit and are" };
                let health = match health {
                    Health::Ready => "ready",
                    Health::Fallback => "not ready, they drain or are ejected",
                    Health::Unresponsive => "unresponsive",
                };
                let choice = match (suitable, self.shared.selection) {
                    (1, _) => "",
                    (_, Selection::LeastLoaded) => ", of two random ones the less loaded",
                    (_, Selection::Random) => ", a random one",
                };
                return format!("strategy {strategy}: {suitable} of {agents}{zone} {suit} {health}{choice}");
            }
        }
        if state.agents.is_empty() {
            return "no agent is connected".to_owned();
        }
        let strategies: Vec<&str> = state.tables.iter().map(|table| table.strategy.name()).collect();
        let agents = count(state.agents.len() as u64, "agent");
        format!("none of {agents} matches the strategies {}", strategies.join(", "))
    }

    /// As [`BackendManager::choose`], among streams of these healths, in this order, and of one strategy or all.
    pub(in crate::backends) fn choose_of(
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
                    let last_resort = *health != Health::Ready || passed >= MAX_BUSY;
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

    /// Whether an agent has ever registered.
    pub fn has_had_agents(&self) -> bool {
        self.shared.state.read().last_id > 0
    }

    /// Whether this stream is unresponsive and another one for the target's host is not.
    pub fn is_another_better(&self, link: LinkId, host: &str) -> bool {
        let state = self.shared.state.read();
        let answers = |table: &Table| {
            let find = |health| table.find(host, health, &[link], None, &mut rand::rng());
            find(Health::Ready).or_else(|| find(Health::Fallback)).is_some()
        };
        state.links.get(&link).is_some_and(Link::is_unresponsive) && state.tables.iter().any(answers)
    }

    /// The handles of the other streams of the same agent id.
    pub fn siblings(&self, id: LinkId) -> Vec<L> {
        self.siblings_where(id, |_, _| true)
    }

    /// The handles of the other lanes of the same agent process.
    pub fn lanes(&self, id: LinkId) -> Vec<L> {
        self.siblings_where(id, |_, is_lane| is_lane)
    }

    /// The handles of the streams of the same agent id that are no lanes of its process, and neither draining nor unresponsive.
    pub fn rivals(&self, id: LinkId) -> Vec<L> {
        self.siblings_where(id, |link, is_lane| !is_lane && !link.draining && !link.is_unresponsive())
    }

    /// The handles of the other streams of the same agent id that are `wanted`, by whether they are lanes of the same process.
    fn siblings_where(&self, id: LinkId, wanted: impl Fn(&Link<L>, bool) -> bool) -> Vec<L> {
        let state = self.shared.state.read();
        let lanes: Vec<LinkId> = state.lanes_of(id).map(|(lane, _)| lane).collect();
        let others = state.streams_of_same_agent(id).filter(|(other, _)| *other != id);
        let others = others.filter(|(other, link)| wanted(link, lanes.contains(other)));
        others.map(|(_, link)| link.backend.handle.clone()).collect()
    }
}

impl<L: Clone> State<L> {
    /// The choice of this stream, which the agent counts from now on. `None` while another dial tries the agent, unless it is
    /// the last resort.
    fn choice(&self, id: LinkId, strategy: Strategy, now: Instant, last_resort: bool) -> Option<Choice<L>> {
        let Link { backend: Backend { agent_id, handle, .. }, stats, lane, .. } = self.links.get(&id)?;
        let pending = stats.begin(now, last_resort)?;
        let (agent_id, lane) = (Arc::clone(agent_id), lane.clone());
        Some(Choice { link: id, agent_id, pending, lane, handle: handle.clone(), strategy })
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

    /// The lane for a dial that found this stream: one on which the agent has answered a packet, otherwise the oldest. An agent that
    /// seeks other servers opens streams that it closes as soon as it learns which server they reach.
    fn choose_lane(&self, id: LinkId, health: Health, exclude: &[LinkId], now: Instant) -> Option<LinkId> {
        let lanes = || self.suitable_lanes(id, health, exclude);
        let answered = lanes().filter_map(|(lane, link)| Some((lane, link.lane.load(now)?)));
        mux::choose_lane(answered).or_else(|| lanes().next().map(|(lane, _)| lane))
    }

    /// Which of two suitable streams gets the dial. Of two streams of one agent it is the older one.
    fn better(&self, one: LinkId, two: LinkId, now: Instant) -> LinkId {
        match (self.links.get(&one), self.links.get(&two)) {
            (Some(a), Some(b)) if a.stats.is(&b.stats) => one.min(two),
            (Some(a), Some(b)) if a.stats.loses_to(&b.stats, now) => two,
            _ => one,
        }
    }

    /// Whether an agent id may have this stream, too.
    pub(super) fn has_room(&self, known: &Agent, backend: &Backend<L>) -> bool {
        let streams: Vec<&Backend<L>> =
            known.streams.iter().filter_map(|id| Some(&self.links.get(id)?.backend)).collect();
        let is_lane_of =
            |others: &[&Backend<L>], one: &Backend<L>| others.iter().any(|other| one.is_lane_of(other));
        let processes =
            streams.iter().enumerate().filter(|(place, one)| !is_lane_of(&streams[..*place], one)).count();
        streams.len() < MAX_LANES_PER_AGENT
            && (processes < MAX_STREAMS_PER_AGENT || is_lane_of(&streams, backend))
    }

    /// A lane of an agent process that opens another one.
    pub(super) fn lane_of_process(&self, backend: &Backend<L>) -> Option<&Link<L>> {
        let streams = &self.agents.get(&backend.agent_id)?.streams;
        streams.iter().filter_map(|id| self.links.get(id)).find(|link| link.backend.is_lane_of(backend))
    }

    /// All streams of a stream's agent id, itself included, the oldest first.
    pub(super) fn streams_of_same_agent(&self, id: LinkId) -> impl Iterator<Item = (LinkId, &Link<L>)> {
        let agent = self.links.get(&id).and_then(|link| self.agents.get(&link.backend.agent_id));
        let streams = agent.into_iter().flat_map(|agent| &agent.streams);
        streams.filter_map(|other| Some((*other, self.links.get(other)?)))
    }

    /// The lanes of a stream's agent process, itself included, the oldest first.
    pub(super) fn lanes_of(&self, id: LinkId) -> impl Iterator<Item = (LinkId, &Link<L>)> {
        let this = self.links.get(&id);
        let is_lane = move |other: &Link<L>| this.is_some_and(|this| this.backend.is_lane_of(&other.backend));
        self.streams_of_same_agent(id).filter(move |(other, link)| *other == id || is_lane(link))
    }
}

impl<L> Choice<L> {
    /// Logs the choice in Go's words.
    fn log_choice(&self, health: Health) {
        let (agent_id, strategy) = (Peer(&self.agent_id), self.strategy.name());
        match health {
            Health::Ready => tracing::debug!(agentID = %agent_id, strategy, "Pick agent as backend"),
            Health::Fallback | Health::Unresponsive => tracing::debug!(
                agentID = %agent_id, strategy, "No non-draining backends available, using draining backend as fallback"
            ),
        }
    }
}
