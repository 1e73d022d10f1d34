//! Once a second: ejects agents whose dials fail and lets them return, and shows which agents are outliers. Keeps what remains of
//! an ejected agent that has left.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use flags::GoDuration;
use serve::logs::{LogLimit, Peer};
use serve::metrics::{Counter, Family, Gauge};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Agent, BackendManager, Link, Shared, State};
use crate::backends::outlier::{Change, is_slow, median_dial_time};
use crate::backends::table::Health;
use crate::backends::{AgentStats, LinkId};

/// The pause between two looks at all agents.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Agents shown for each reason: agent ids are chosen by agents, and each is a time series.
const MAX_SHOWN: usize = 10;

/// Ejections that are kept although the agent has gone. Agents choose their ids.
const MAX_DEPARTED: usize = 1_000;

serve::label! {
    /// Why an agent is an outlier.
    enum OutlierReason in "reason" {
        /// It is ejected.
        Failing => "failing",
        /// Its dials take much longer than those of the others.
        Slow => "slow",
        /// It does not answer.
        Unresponsive => "unresponsive",
    }
}

serve::label! {
    /// Whose expected dial time.
    enum Rank in "agent" {
        Median => "median",
        Slowest => "slowest",
    }
}

/// The label `agent_id`, and the reason.
type OutlierLabels = ([(&'static str, Arc<str>); 1], OutlierReason);

serve::families! {
    /// The metrics of outliers.
    pub struct OutlierMetrics {
        ejections: Counter = "agent_ejections_total", "Times that an agent got no dials because its own failures stood out";
        ejected: Gauge = "ejected_agents", "Agents that get no dials because their own failures stand out";
        expected: Family<Rank, Gauge<f64, AtomicU64>> = "expected_dial_seconds",
            "Seconds that a dial through the median and the slowest agent is expected to take";
        /// The agents with the most dials.
        outliers: Family<OutlierLabels, Gauge> = "agent_outlier",
            "1 for an agent that is failing, slow or unresponsive; at most 10 agents for each reason";
    }
}

impl OutlierMetrics {
    /// Shows the outliers among these agents.
    pub(crate) fn set(&self, agents: &[AgentView], now: Instant) {
        let ejected = |agent: &&AgentView| agent.stats.ejected_for(now).is_some();
        self.ejected.set(i64::try_from(agents.iter().filter(ejected).count()).unwrap_or(i64::MAX));
        let slowest = agents.iter().map(|agent| agent.stats.expected(now)).max().unwrap_or_default();
        let median = median_dial_time(agents, now);
        self.expected.get_or_create(&Rank::Median).set(median.as_secs_f64());
        self.expected.get_or_create(&Rank::Slowest).set(slowest.as_secs_f64());
        self.outliers.clear();
        self.show(OutlierReason::Failing, agents, |agent| agent.stats.ejected_for(now).is_some());
        self.show(OutlierReason::Slow, agents, |agent| is_slow(agent.stats.expected(now), median));
        self.show(OutlierReason::Unresponsive, agents, |agent| agent.unresponsive);
    }

    fn show(&self, reason: OutlierReason, agents: &[AgentView], is_outlier: impl Fn(&AgentView) -> bool) {
        let mut shown: Vec<&AgentView> = agents.iter().filter(|agent| is_outlier(agent)).collect();
        // Agents can invent ids, but an outlier with a new id gets few dials: it does not displace one that clients depend on.
        shown.sort_by_cached_key(|agent| {
            let (opened, failed) = agent.stats.dials();
            (Reverse(opened + failed), agent.stats.since(), Arc::clone(&agent.id))
        });
        for agent in shown.into_iter().take(MAX_SHOWN) {
            self.outliers.get_or_create(&([("agent_id", Arc::clone(&agent.id))], reason)).set(1);
        }
    }
}

/// Ejects agents and lets them return, for ever.
pub async fn keep_sweeping<L: Clone>(backends: BackendManager<L>, metrics: OutlierMetrics) {
    let (mut looks, logs) = (interval(SWEEP_INTERVAL), LogLimit::default());
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let (agents, now) = (backends.agents(), Instant::now());
        // Only in debug builds: tests see what a panic ends.
        debug_assert!(!agents.iter().any(|agent| &*agent.id == "panic-server.invalid"), "injected by a test");
        metrics.ejections.inc_by(backends.sweep(&agents, now));
        metrics.set(&agents, now);
        let nobody = !agents.is_empty() && agents.iter().all(|agent| !agent.ready);
        if nobody && let Some(suppressed) = logs.due_for("nobody", ()) {
            let agents = agents.len();
            tracing::warn!(agents, suppressed, "no agent is ready: all drain, are ejected or do not answer");
        }
    }
}

/// One agent, as the outliers are determined from it.
#[derive(Debug)]
pub struct AgentView {
    pub(in crate::backends) id: Arc<str>,
    pub(in crate::backends) stats: AgentStats,
    /// None of its streams answers.
    pub(in crate::backends) unresponsive: bool,
    /// It has a stream for new dials.
    pub(crate) ready: bool,
}

impl AgentView {
    /// The ejected ones of these agents, each with the rest of its time, by name.
    pub(crate) fn ejected(agents: &[Self], now: Instant) -> Vec<(&str, Duration)> {
        let ejected = agents.iter().filter_map(|agent| Some((&*agent.id, agent.stats.ejected_for(now)?)));
        let mut ejected: Vec<_> = ejected.collect();
        ejected.sort_unstable();
        ejected
    }

    /// An agent that does not answer.
    #[cfg(test)]
    pub(crate) fn unresponsive(id: &str) -> Self {
        Self { id: id.into(), stats: AgentStats::new(Instant::now()), unresponsive: true, ready: false }
    }
}

impl<L: Clone> BackendManager<L> {
    /// Ejects ready agents whose own failures stand out, at most half of those that are ready or ejected, and lets others return.
    /// Returns the number of ejections.
    pub(in crate::backends) fn sweep(&self, agents: &[AgentView], now: Instant) -> u64 {
        let mut ejections = 0;
        let is_ejected = |agent: &&AgentView| agent.stats.ejected_for(now).is_some();
        let could_serve = agents.iter().filter(|agent| agent.ready || is_ejected(agent)).count();
        let mut left = (could_serve / 2).saturating_sub(agents.iter().filter(is_ejected).count());
        for AgentView { id, stats, ready, .. } in agents {
            let Some(change) = stats.sweep(now, *ready && left > 0) else { continue };
            let ejected = matches!(change, Change::Ejected { .. });
            left -= usize::from(ejected);
            ejections += u64::from(ejected);
            self.shared.log_change(id, change);
            let streams = self.streams_of_agent(id);
            // Not those of an agent that has registered again under this id meanwhile.
            let eject =
                |link: &mut Link<L>| link.ejected = if link.stats.is(stats) { ejected } else { link.ejected };
            streams.into_iter().for_each(|stream| self.change(stream, eject));
        }
        ejections
    }

    /// All agents.
    pub(crate) fn agents(&self) -> Vec<AgentView> {
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
            if self.departed.len() < MAX_DEPARTED {
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
