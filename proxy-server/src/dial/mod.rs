//! Turns a target into an open connection: chooses an agent, dials through it, and fails over once.
//!
//! The [`Dialer`] asks the [`BackendManager`] for an agent stream, waits for room in the limits, sends the dial and keeps its
//! one deadline. Both frontends dial through it, and render its failures by [`DialFailure`]. It never touches payload, and
//! keeps no state about a connection.

pub mod reason;

mod target;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use driver::MemoryLimiter;
use serve::metrics::{CountBy, Gauge, Histogram, Lazy, LiveGuard, Registry};
use tokio::time::{Instant, timeout_at};

pub use self::reason::{DialFailure, FailureReason};
pub use self::target::Target;
use crate::agent_stream::{LinkHandle, OpenConnection};
use crate::backends::{AgentStats, BackendManager, Choice, LinkId, Strategy};
use crate::limits::{Budget, Slot};

/// The deadline of a dial, retry included, when `--backend-dial-timeout` is 0. Below the 30 s of Go's client and of
/// kube-apiserver, so that both get an answer.
pub const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(25);

/// Every agent answers a dial within this time, Go's too: they give up an endpoint after 5 s.
const ANSWERS_WITHIN: Duration = Duration::from_secs(6);

/// The metrics of dials.
#[derive(Debug, Clone)]
pub struct DialMetrics {
    /// `dial_duration_seconds`: from the dial to the agent's answer; successful dials only.
    pub(crate) duration: Lazy<Histogram>,
    /// `dial_failure_count`. A dial that succeeds on its retry has not failed.
    pub failures: CountBy<FailureReason>,
    /// `pending_backend_dials`.
    pub(crate) pending: Lazy<Gauge>,
    /// `dial_attempts_total` (ours): dials that were sent to an agent, so a retried dial counts twice.
    pub(crate) attempts: CountBy<Attempt>,
}

serve::label! {
    /// How an agent answered one dial.
    pub enum Attempt in "outcome" {
        /// The connection is open.
        Opened => "opened",
        /// The endpoint refused.
        Refused => "refused",
        /// The agent failed for a reason that may be its own: no route, no such name, no answer, no descriptor.
        AgentFailed => "agent_failed",
        /// The agent gave no answer in time.
        TimedOut => "timed_out",
        /// The agent's stream ended first, or had no room.
        Lost => "lost",
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

impl DialMetrics {
    /// Registers the metrics; `histogram` builds the histogram of durations.
    pub(crate) fn register(registry: &mut Registry, histogram: fn() -> Histogram) -> Self {
        let (duration, pending) = (Lazy::new(histogram), Lazy::<Gauge>::default());
        let help = "Seconds from a dial to the agent's answer, for successful dials";
        registry.register("dial_duration_seconds", help, duration.clone());
        let failures = CountBy::register(registry, "dial_failure_count", "Failed dials, by reason");
        registry.register("pending_backend_dials", "Dials that wait for an agent's answer", pending.clone());
        let help = "Dials that an agent answered or lost, by outcome";
        let attempts = CountBy::register(registry, "dial_attempts_total", help);
        Self { duration, failures, pending, attempts }
    }
}

/// Dials targets through agents. Cheap to clone; clones share their limits.
#[derive(Clone)]
pub struct Dialer {
    backends: BackendManager<LinkHandle>,
    budget: Budget,
    memory: MemoryLimiter,
    timeout: Duration,
    metrics: DialMetrics,
}

/// A dial that succeeded.
#[derive(Debug)]
pub struct Dialed {
    /// The connection, to which the frontend attaches its socket. Dropping it closes it.
    pub connection: OpenConnection,
    /// The agent that carries it.
    pub agent_id: Arc<str>,
    /// The connection's slot within the limits; the owner of the frontend's socket keeps it until the end.
    pub slot: Slot,
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
        Self { backends, budget, memory, timeout, metrics }
    }

    /// Dials a target. Resolves within the timeout; dropping the future cancels the dial at the agent.
    ///
    /// # Errors
    /// The one reason why there is no connection.
    pub async fn dial(&self, target: &Target) -> Result<Dialed, DialFailure> {
        let started = Instant::now();
        let mut pending = Pending::start(&self.metrics);
        let mut agent = None;
        let outcome = self.try_twice(target, started + self.timeout, &mut agent).await;
        pending.outcome = outcome.as_ref().map(|_| started.elapsed()).map_err(DialFailure::metric);
        outcome.inspect_err(|failure| failure.log(target, agent.as_deref()))
    }

    /// Dials through one agent, and then through a second one if the first agent's stream is lost before it answers, if the
    /// first agent does not answer pings while the second does, if the first agent is full, or if it failed for a reason of its
    /// own. A refusal of the endpoint is final. `agent` is set to the agent that was asked last.
    async fn try_twice(
        &self,
        target: &Target,
        deadline: Instant,
        agent: &mut Option<Arc<str>>,
    ) -> Result<Dialed, DialFailure> {
        if self.memory.should_reject() {
            return Err(DialFailure::NoMemory);
        }
        let first = self.backends.choose(&target.host, &[]).ok_or(DialFailure::NoAgent)?;
        let (tried, stats, strategy) = (first.link, first.stats.clone(), first.strategy);
        *agent = Some(Arc::clone(&first.agent_id));
        let mut better = None;
        // A block, so that the branch of `select!` that loses is dropped with it: this cancels the first dial before the second
        // begins.
        let first_try = async {
            let slot = self.budget.connection(first.stats.budget()).ok_or(DialFailure::Full)?;
            tokio::select! {
                outcome = self.try_link(first, slot, target, deadline) => outcome,
                found = self.better(tried, &target.host) => {
                    better = Some(found);
                    Err(DialFailure::LinkLost)
                }
            }
        };
        let failure = match first_try.await {
            Err(failure @ (DialFailure::LinkLost | DialFailure::Full)) => failure,
            Err(failure) if failure.may_be_the_agents() => {
                return self.try_another_agent(target, deadline, (agent, &stats, strategy), failure).await;
            }
            outcome => return outcome,
        };
        let (second, slot) = match better {
            Some((second, slot)) => (second, Ok(slot)),
            None if Instant::now() >= deadline => return Err(DialFailure::TimedOut),
            None => {
                // One retry for a full agent, too: if all agents are full, the server must answer soon.
                let second = self.backends.choose(&target.host, &[tried]).ok_or(failure)?;
                let slot = self.budget.connection(second.stats.budget()).ok_or(DialFailure::Full);
                (second, slot)
            }
        };
        self.try_links(second, slot?, target, deadline, agent).await
    }

    /// Dials through another agent of the same strategy after the first one has answered with a failure that may be its own. If the
    /// other agent opens the connection, the first one is blamed. If it does not reach the endpoint, the first answer stands.
    async fn try_another_agent(
        &self,
        target: &Target,
        deadline: Instant,
        (agent, stats, strategy): (&mut Option<Arc<str>>, &AgentStats, Strategy),
        failure: DialFailure,
    ) -> Result<Dialed, DialFailure> {
        let tried = self.backends.streams_of(agent.as_deref().unwrap_or_default());
        let Some(second) = self.backends.choose_ready(&target.host, strategy, &tried) else {
            return Err(failure);
        };
        let Some(slot) = self.budget.connection(second.stats.budget()) else { return Err(failure) };
        let second_id = Arc::clone(&second.agent_id);
        let (began, now) = (deadline - self.timeout, Instant::now());
        let outcome = self.try_link(second, slot, target, deadline.min(now + ANSWERS_WITHIN)).await;
        if outcome.is_ok() {
            // A refusal that the second agent reports is no proof: it may be a lie.
            stats.blame(Instant::now(), began);
        }
        if !reached_endpoint(&outcome) {
            return Err(failure);
        }
        *agent = Some(second_id);
        outcome
    }

    /// Resolves with another agent that has room, once the first one does not answer pings and the other does.
    async fn better(&self, tried: LinkId, host: &str) -> (Choice<LinkHandle>, Slot) {
        self.backends.until_another_is_better(tried, host).await;
        let second = self.backends.choose(host, &[tried]);
        match second.and_then(|second| Some((self.budget.connection(second.stats.budget())?, second))) {
            Some((slot, second)) => (second, slot),
            // A full agent is no better: the first one may still answer.
            None => std::future::pending().await,
        }
    }

    /// Dials through an agent, and moves to another one each time the present one stops answering pings and another answers: if
    /// a load balancer resets all streams, the second choice may be half-open as well.
    async fn try_links(
        &self,
        mut choice: Choice<LinkHandle>,
        mut slot: Slot,
        target: &Target,
        deadline: Instant,
        agent: &mut Option<Arc<str>>,
    ) -> Result<Dialed, DialFailure> {
        loop {
            *agent = Some(Arc::clone(&choice.agent_id));
            let link = choice.link;
            (choice, slot) = tokio::select! {
                outcome = self.try_link(choice, slot, target, deadline) => return outcome,
                better = self.better(link, &target.host) => better,
            };
        }
    }

    /// Waits for a free dial slot, then for the agent's answer.
    async fn try_link(
        &self,
        choice: Choice<LinkHandle>,
        slot: Slot,
        target: &Target,
        deadline: Instant,
    ) -> Result<Dialed, DialFailure> {
        let turn = timeout_at(deadline, self.budget.dial(choice.stats.budget())).await;
        let _turn = turn.map_err(|_| DialFailure::SendFailed)?;
        let began = Instant::now();
        let flight = choice.stats.begin(began);
        let dial = choice.handle.dial(target.protocol.clone(), target.address.clone());
        let outcome = timeout_at(deadline, dial).await.map_err(|_| DialFailure::TimedOut).flatten();
        self.metrics.attempts.count(Attempt::of(&outcome));
        let now = Instant::now();
        if reached_endpoint(&outcome) {
            flight.reached(now);
        } else if outcome.as_ref().is_err_and(|error| *error == DialFailure::TimedOut)
            && now >= began + ANSWERS_WITHIN
        {
            choice.stats.blame(now, began);
        }
        Ok(Dialed { connection: outcome?, agent_id: choice.agent_id, slot })
    }
}

/// Whether the agent has reached the endpoint, which accepted or refused.
fn reached_endpoint(outcome: &Result<impl Sized, DialFailure>) -> bool {
    outcome.as_ref().map_or_else(DialFailure::is_the_endpoints, |_| true)
}

/// Counts a pending dial, and its outcome when this is dropped. A dial that is dropped was canceled by its frontend.
struct Pending<'a> {
    metrics: &'a DialMetrics,
    outcome: Result<Duration, FailureReason>,
    _live: LiveGuard,
}

impl<'a> Pending<'a> {
    fn start(metrics: &'a DialMetrics) -> Self {
        let live = LiveGuard::enter(&metrics.pending);
        Self { metrics, outcome: Err(FailureReason::FrontendClose), _live: live }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        match self.outcome {
            Ok(elapsed) => self.metrics.duration.observe(elapsed),
            Err(reason) => self.metrics.failures.count(reason),
        }
    }
}
