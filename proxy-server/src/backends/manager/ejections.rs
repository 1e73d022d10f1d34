//! The ejections of agents whose dials fail, and what remains of an agent that has left.

use std::sync::Arc;
use std::time::Duration;

use flags::GoDuration;
use serve::logs::Peer;
use tokio::time::Instant;

use super::{Agent, BackendManager, Link, Shared, State};
use crate::backends::outlier::Change;
use crate::backends::table::Health;
use crate::backends::{AgentStats, LinkId};

/// Ejections that are kept although the agent has gone. Agents choose their ids.
const MOST_DEPARTED: usize = 1_000;

/// One agent, as the outliers are determined from it.
#[derive(Debug)]
pub struct AgentView {
    pub(in crate::backends) id: Arc<str>,
    pub(in crate::backends) stats: AgentStats,
    /// None of its streams answers.
    pub(in crate::backends) unresponsive: bool,
    /// It has a stream for new dials.
    pub(in crate::backends) ready: bool,
}

#[cfg(test)]
impl AgentView {
    /// An agent that does not answer.
    pub(crate) fn unresponsive(id: &str) -> Self {
        Self { id: id.into(), stats: AgentStats::new(Instant::now()), unresponsive: true, ready: false }
    }
}

impl<L: Clone> BackendManager<L> {
    /// Ejects agents whose own failures stand out, at most half of all, and lets others return. Returns the number of ejections.
    pub(in crate::backends) fn sweep(&self, agents: &[AgentView], now: Instant) -> u64 {
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
    pub(in crate::backends) fn agents(&self) -> Vec<AgentView> {
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
}

impl<L: Clone> State<L> {
    /// The last stream of an agent has ended.
    pub(super) fn depart(&mut self, agent_id: &Arc<str>, now: Instant) {
        let Some(Agent { stats, .. }) = self.agents.remove(agent_id) else { return };
        if stats.ejected_for(now).is_some() {
            self.departed.retain(|_, stats| stats.ejected_for(now).is_some());
            if self.departed.len() < MOST_DEPARTED {
                self.departed.insert(Arc::clone(agent_id), stats);
            }
        }
    }
}

impl<L> Shared<L> {
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
