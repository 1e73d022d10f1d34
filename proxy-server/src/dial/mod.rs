//! Turns a target into an open connection: chooses an agent, dials through it, and moves to other agents within the deadline.
//!
//! The [`Dialer`] asks the [`BackendManager`] for an agent stream, waits for room in the limits, sends the dial and keeps its
//! one deadline. Both frontends dial through it, and render its failures by [`DialFailure`]. It never touches payload, and
//! keeps no state about a connection.

pub mod failure;

mod stages;
mod target;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use driver::MemoryLimiter;
use serve::logs::LogLimit;
use serve::metrics::{CountBy, Histogram, Lazy, Live};
use serve::statusz::Journal;
use serve::traces::Tracer;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

pub use self::failure::{DialFailure, FailureReason};
pub use self::stages::DialStages;
pub use self::target::Target;
use crate::agent_stream::{LinkHandle, OpenConnection};
use crate::backends::{AgentStats, BackendManager, Choice, LaneGuard, LinkId, Strategy};
use crate::limits::{Budget, Slot};
use crate::metrics::latency;

/// The deadline of a dial, retry included, when `--backend-dial-timeout` is 0. Below the 30 s of Go's client and of
/// kube-apiserver, so that both get an answer.
pub const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(25);

/// Agents, Go's too, answer a dial within this time: they give up on an endpoint after 5 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);

/// The second agent's try, after the first one's answer, ends when both have taken this time: below the 10 s of kube-apiserver's calls to
/// webhooks.
const BOTH_TRIES_TIMEOUT: Duration = Duration::from_secs(8);

/// The second agent's least time. A reachable endpoint acknowledges the first SYN or the second one, after 1 s.
const SECOND_TRY_MIN: Duration = Duration::from_secs(3);

/// Dials wait for the first agent until this long after the server's start. After a restart kube-apiserver returns at once, and the
/// agents a moment later.
const FIRST_AGENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long such a dial waits for a suitable stream once an agent has registered: the first stream may be lost at once.
const NEXT_AGENT_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval at which a dial looks for its first agent.
const FIRST_AGENT_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The interval at which a dial looks for an agent that is better than the one that it waits for.
const BETTER_AGENT_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The pause of a dial that cannot move, because the other agent is full.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// Only in debug builds: a dial of this target panics, so that tests see what a panic ends.
const PANIC_TARGET: &str = "panic-server.invalid:1";

serve::families! {
    /// The metrics of dials.
    pub struct DialMetrics {
        /// Successful dials only.
        pub(crate) duration: Lazy<Histogram> = "dial_duration_seconds",
            "Latency of dial to the remote endpoint in seconds", Lazy::new(latency);
        /// A dial that succeeds on its retry has not failed.
        pub failures: CountBy<FailureReason> = "dial_failure_count",
            "Number of dial failures observed. Multiple failures can occur for a single dial request.";
        pub(crate) pending: Live = "pending_backend_dials", "Current number of pending backend dial requests";
        /// Ours. A retried dial counts twice.
        pub(crate) attempts: CountBy<Attempt> = "dial_attempts_total", "Dials that an agent answered or lost, by outcome";
        /// That of the server.
        pub(crate) journal: Journal => |_r| Journal::default();
    }
}

serve::label! {
    /// How an agent answered one dial.
    pub enum Attempt in "outcome" {
        /// The connection is open.
        Opened => "opened",
        /// The agent answered with an error: the endpoint refused, or a policy of the agent denies the target.
        Refused => "refused",
        /// The agent failed for a reason that may be its own: no route, no such name, no answer, no descriptor.
        AgentFailed => "agent_failed",
        /// The agent gave no answer in time.
        TimedOut => "timed_out",
        /// The agent's stream ended first, or had no room.
        Lost => "lost",
    }
}

impl DialMetrics {
    /// Counts a dial whose client has its connection. Each dial is counted once, here or as failed.
    pub(crate) fn opened(&self, stages: &DialStages) {
        self.journal.dialed();
        self.duration.observe(stages.total());
    }

    /// Counts a dial whose client has no connection.
    pub(crate) fn failed(&self, target: &Target, stages: &DialStages, reason: FailureReason, error: &str) {
        self.failures.count(reason);
        let agent = stages.agent.as_deref().unwrap_or_default();
        let why = stages.no_agent.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        self.journal.failed(&target.address, agent, reason.name(), &format!("{error}{why}"), stages.total());
    }
}

impl Attempt {
    fn of(outcome: &Result<OpenConnection, DialFailure>) -> Self {
        match outcome {
            Ok(_) => Attempt::Opened,
            Err(failure) if failure.may_be_the_agents() => Attempt::AgentFailed,
            Err(DialFailure::Refused(_)) => Attempt::Refused,
            Err(DialFailure::TimedOut) => Attempt::TimedOut,
            Err(_) => Attempt::Lost,
        }
    }
}

/// Dials targets through agents. Cheap to clone; clones share their limits.
#[derive(Clone)]
pub struct Dialer {
    backends: BackendManager<LinkHandle>,
    budget: Budget,
    memory: MemoryLimiter,
    timeout: Duration,
    started: Instant,
    metrics: DialMetrics,
    /// Traces the dials.
    pub(crate) tracer: Tracer,
    /// Limits the lines about dials that a limit refused.
    logs: LogLimit,
    /// The only agent that gets dials, without a retry and whatever the strategies say, if one was chosen.
    pub(crate) only: Option<Arc<str>>,
    /// The failure of every dial, if its client is refused.
    pub(crate) refusal: Option<DialFailure>,
}

/// The choice of an agent, and a slot for a connection through it.
type Reserved = (Choice<LinkHandle>, Slot);

/// A dial that succeeded.
#[derive(Debug)]
pub struct Dialed {
    /// The connection, to which the frontend attaches its socket. Dropping it closes it.
    pub connection: OpenConnection,
    /// Its slot within the limits, and its place on its lane; the owner of the frontend's socket keeps both.
    pub place: (Slot, LaneGuard),
}

impl Dialer {
    /// A dialer over these backends, which refuses dials while memory is short. A `timeout` of zero means
    /// [`DEFAULT_DIAL_TIMEOUT`].
    pub fn new(
        backends: BackendManager<LinkHandle>,
        budget: Budget,
        memory: MemoryLimiter,
        timeout: Duration,
        metrics: DialMetrics,
    ) -> Self {
        let timeout = if timeout.is_zero() { DEFAULT_DIAL_TIMEOUT } else { timeout };
        let (started, tracer, logs) = (Instant::now(), Tracer::default(), LogLimit::default());
        Self { backends, budget, memory, timeout, started, metrics, tracer, logs, only: None, refusal: None }
    }

    /// Dials a target. Resolves within the timeout; dropping the future cancels the dial at the agent. `stages` is new. The caller
    /// counts the outcome.
    ///
    /// # Errors
    /// The one reason why there is no connection.
    pub async fn dial(&self, target: &Target, stages: &mut DialStages) -> Result<Dialed, DialFailure> {
        debug_assert_ne!(target.address, PANIC_TARGET, "injected by a test");
        let _pending = self.metrics.pending.enter();
        stages.span = self.tracer.span("dial", None);
        stages.span.set("server.address", &target.address);
        let outcome = self.try_twice(target, Instant::now() + self.timeout, stages).await;
        stages.span.set("konnectivity.agent.id", stages.agent.as_deref().unwrap_or_default());
        stages.span.end(outcome.as_ref().map(drop).map_err(|failure| failure as &dyn std::fmt::Display));
        outcome.inspect_err(|failure| failure.log(target, stages, &self.logs))
    }

    /// Dials through one agent, and then through a second one if the first agent's stream is lost before it answers, if the
    /// first agent does not answer pings while the second does, if the first agent is full, or if it failed for a reason of its
    /// own. A refusal of the endpoint is final.
    async fn try_twice(
        &self,
        target: &Target,
        deadline: Instant,
        stages: &mut DialStages,
    ) -> Result<Dialed, DialFailure> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        if self.memory.should_reject() {
            return Err(DialFailure::NoMemory);
        }
        if let Some(only) = &self.only {
            stages.agent = Some(Arc::clone(only));
            let choice = self.backends.choose_agent(only).ok_or(DialFailure::NoAgent)?;
            return self.try_link(self.reserve(choice)?, target, deadline, stages).await;
        }
        let Some(first) = self.first_choice(&target.host, deadline).await else {
            stages.no_agent = Some(self.backends.explain(&target.host));
            return Err(DialFailure::NoAgent);
        };
        let (tried, stats, strategy) = (first.link, first.pending.stats.clone(), first.strategy);
        stages.agent = Some(Arc::clone(&first.agent_id));
        let failure = match self.reserve(first) {
            Err(full) => full,
            Ok(first) => match self.try_links(first, target, deadline, stages).await {
                (false, Err(failure @ (DialFailure::LinkLost | DialFailure::Full))) => failure,
                (false, Err(failure)) if failure.may_be_the_agents() => {
                    return self
                        .try_another_agent(target, deadline, (stages, &stats, strategy), failure)
                        .await;
                }
                // A dial that has moved is not tried again.
                (_, outcome) => return outcome,
            },
        };
        if Instant::now() >= deadline {
            return Err(DialFailure::TimedOut);
        }
        // One retry for a full agent, too: if all agents are full, the server must answer soon.
        let asked = stages.agent.clone().unwrap_or_default();
        let second = self.backends.choose_another(&target.host, tried, &asked).ok_or(failure)?;
        self.try_links(self.reserve(second)?, target, deadline, stages).await.1
    }

    /// Chooses a stream. In the server's first seconds, a dial that comes before the first agent waits.
    async fn first_choice(&self, host: &str, deadline: Instant) -> Option<Choice<LinkHandle>> {
        let mut until = deadline.min(self.started + FIRST_AGENT_TIMEOUT);
        // Asked before the choice: an agent that registers in between does not end the wait.
        let mut waits = Instant::now() < until && !self.backends.has_had_agents();
        loop {
            let choice = self.backends.choose(host, &[]);
            if choice.is_some() || !waits {
                return choice;
            }
            sleep_until(until.min(Instant::now() + FIRST_AGENT_POLL_INTERVAL)).await;
            if self.backends.has_had_agents() {
                until = until.min(Instant::now() + NEXT_AGENT_TIMEOUT);
            }
            waits = Instant::now() < until;
        }
    }

    /// Takes a slot for a connection through the chosen agent.
    fn reserve(&self, choice: Choice<LinkHandle>) -> Result<Reserved, DialFailure> {
        let slot = self.budget.connection(choice.pending.stats.budget()).ok_or(DialFailure::Full)?;
        Ok((choice, slot))
    }

    /// Dials through another agent of the same strategy after the first one has answered with a failure that may be its own. If the
    /// other agent opens the connection, the first one is blamed. If it does not reach the endpoint, the first answer stands.
    async fn try_another_agent(
        &self,
        target: &Target,
        deadline: Instant,
        (stages, stats, strategy): (&mut DialStages, &AgentStats, Strategy),
        failure: DialFailure,
    ) -> Result<Dialed, DialFailure> {
        let tried = self.backends.streams_of_agent(stages.agent.as_deref().unwrap_or_default());
        let second = self.backends.choose_ready(&target.host, strategy, &tried);
        let Some(second) = second.and_then(|second| self.reserve(second).ok()) else { return Err(failure) };
        let second_id = Arc::clone(&second.0.agent_id);
        let (began, now) = (deadline - self.timeout, Instant::now());
        let until = deadline.min((began + BOTH_TRIES_TIMEOUT).max(now + SECOND_TRY_MIN));
        let outcome = self.try_link(second, target, until, stages).await;
        if outcome.is_ok() {
            // A refusal that the second agent reports is no proof: it may be a lie.
            stats.blame(Instant::now(), began);
        }
        if !reached_endpoint(&outcome) {
            return Err(failure);
        }
        stages.agent = Some(second_id);
        outcome
    }

    /// Resolves with another agent that has room, once the first one does not answer pings and the other does.
    async fn better(&self, tried: LinkId, agent_id: &str, host: &str) -> Reserved {
        loop {
            sleep(BETTER_AGENT_POLL_INTERVAL).await;
            if !self.backends.is_another_better(tried, host) {
                continue;
            }
            let second = self.backends.choose_another(host, tried, agent_id);
            if let Some(second) = second.and_then(|second| self.reserve(second).ok()) {
                return second;
            }
            // A full agent is no better: the first one may still answer.
            sleep(FULL_PAUSE).await;
        }
    }

    /// Dials through an agent, and moves to another one each time the present one stops answering pings and another answers: if
    /// a load balancer resets all streams, the second choice may be half-open as well. Returns whether the dial has moved.
    async fn try_links(
        &self,
        mut reserved: Reserved,
        target: &Target,
        deadline: Instant,
        stages: &mut DialStages,
    ) -> (bool, Result<Dialed, DialFailure>) {
        let mut moved = false;
        loop {
            let (link, tried) = (reserved.0.link, Arc::clone(&reserved.0.agent_id));
            stages.agent = Some(Arc::clone(&tried));
            // The branch that loses is dropped here: this cancels one dial before the next begins.
            reserved = tokio::select! {
                outcome = self.try_link(reserved, target, deadline, stages) => return (moved, outcome),
                better = self.better(link, &tried, &target.host) => better,
            };
            moved = true;
        }
    }

    /// Waits for a free dial slot, then for the agent's answer.
    async fn try_link(
        &self,
        (choice, slot): Reserved,
        target: &Target,
        deadline: Instant,
        stages: &mut DialStages,
    ) -> Result<Dialed, DialFailure> {
        let Choice { mut pending, handle, agent_id, lane, .. } = choice;
        let turn = timeout_at(deadline, self.budget.dial(pending.stats.budget())).await;
        let _turn = turn.map_err(|_| DialFailure::SendFailed)?;
        let began = Instant::now();
        let mut span = stages.send(began);
        span.set("konnectivity.agent.id", &agent_id);
        pending.sent(began);
        let on_lane = lane.enter();
        let dial = handle.dial(target.protocol.clone(), target.address.clone(), span.context());
        let outcome = timeout_at(deadline, dial).await.map_err(|_| DialFailure::TimedOut).flatten();
        self.metrics.attempts.count(Attempt::of(&outcome));
        pending.stats.dialed(outcome.as_ref().err().map(ToString::to_string));
        let now = Instant::now();
        stages.answered = Some(now);
        span.end(outcome.as_ref().map(drop).map_err(|failure| failure as &dyn std::fmt::Display));
        if reached_endpoint(&outcome) {
            pending.reached(now);
        } else if outcome.as_ref().is_err_and(|error| *error == DialFailure::TimedOut)
            && now >= began + ANSWER_TIMEOUT
        {
            pending.stats.blame(now, began);
        }
        Ok(Dialed { connection: outcome?, place: (slot, on_lane) })
    }
}

/// Whether the agent has reached the endpoint, which accepted or refused.
fn reached_endpoint(outcome: &Result<impl Sized, DialFailure>) -> bool {
    outcome.as_ref().map_or_else(DialFailure::is_the_endpoints, |_| true)
}
