//! The choice of a stream for a dial, and whether another one is better.

use std::sync::Arc;

use rand::Rng;
use serve::logs::Peer;
use status::words::count;
use tokio::time::Instant;

use super::{BackendManager, Link, State};
use crate::backends::table::{Comparison, Health, Table};
use crate::backends::{Backend, Choice, LinkId, Selection, Strategy};

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
