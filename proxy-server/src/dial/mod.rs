//! Turns a target into an open connection: chooses an agent, dials through it, and fails over once.
//!
//! The [`Dialer`] asks the [`BackendManager`] for an agent stream, waits for room in the limits, sends the dial and keeps its
//! one deadline. Both frontends dial through it, and render its failures by [`DialFailure`]. It never touches payload, and
//! keeps no state about a connection.

pub mod reason;

mod report;
mod target;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use driver::MemoryLimiter;
use tokio::time::{Instant, timeout_at};

pub use self::reason::{DialFailure, FailureReason};
pub use self::target::Target;
use crate::limits::{ConnectionSlot, ServerBudget};
use crate::link::{LinkHandle, OpenConnection, PendingDial};
use crate::route::{BackendManager, Choice, LinkId};

/// The deadline of a dial, retry included, when `--backend-dial-timeout` is 0. Below the 30 s of Go's client and of
/// kube-apiserver, so that both get an answer.
pub const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(25);

/// An agent stream to dial through. [`LinkHandle`] in production; tests use a fake.
pub trait DialLink: Clone + Send + Sync + 'static {
    /// A dialed connection. Dropping it closes it.
    type Connection: Send;
    /// A pending dial. Dropping it cancels it.
    type Pending: Future<Output = Result<Self::Connection, DialFailure>> + Send;

    /// Sends a DIAL_REQ.
    fn open(&self, target: &Target) -> Self::Pending;
}

impl DialLink for LinkHandle {
    type Connection = OpenConnection;
    type Pending = PendingDial;

    fn open(&self, target: &Target) -> PendingDial {
        self.dial(target.protocol.clone(), target.address.clone())
    }
}

/// Notified of dials, for metrics. Each `started` is followed by exactly one of the other two.
pub trait DialObserver: Send + Sync {
    /// A dial began: increments the gauge `pending_backend_dials`.
    fn started(&self);

    /// A dial succeeded: decrements that gauge, and observes `dial_duration_seconds`.
    fn succeeded(&self, elapsed: Duration);

    /// A dial failed: decrements that gauge, and increments `dial_failure_count`. A dial that succeeds on its retry has not
    /// failed.
    fn failed(&self, reason: FailureReason);
}

/// Dials targets through agents. Cheap to clone; clones share their limits.
#[derive(Clone)]
pub struct Dialer<L = LinkHandle> {
    backends: BackendManager<L>,
    budget: ServerBudget,
    memory: MemoryLimiter,
    timeout: Duration,
    observer: Arc<dyn DialObserver>,
}

/// A dial that succeeded.
#[derive(Debug)]
pub struct Dialed<C = OpenConnection> {
    /// The connection, to which the frontend attaches its socket.
    pub connection: C,
    /// The agent that carries it.
    pub agent_id: Arc<str>,
    /// The connection's slot within the limits; the owner of the frontend's socket keeps it until the end.
    pub slot: ConnectionSlot,
}

impl<L: DialLink> Dialer<L> {
    /// A dialer over these backends, which refuses dials while memory is short. A `timeout` of zero means
    /// [`DEFAULT_DIAL_TIMEOUT`].
    pub fn new(
        backends: BackendManager<L>,
        budget: ServerBudget,
        memory: MemoryLimiter,
        timeout: Duration,
        observer: Arc<dyn DialObserver>,
    ) -> Self {
        let timeout = if timeout.is_zero() { DEFAULT_DIAL_TIMEOUT } else { timeout };
        Self { backends, budget, memory, timeout, observer }
    }

    /// Dials a target. Resolves within the timeout; dropping the future cancels the dial at the agent.
    ///
    /// # Errors
    /// The one reason why there is no connection.
    pub async fn dial(&self, target: &Target) -> Result<Dialed<L::Connection>, DialFailure> {
        let started = Instant::now();
        let mut watch = Watch::start(&*self.observer);
        let mut agent = None;
        let outcome = self.try_twice(target, started + self.timeout, &mut agent).await;
        watch.outcome = match &outcome {
            Ok(_) => Ok(started.elapsed()),
            Err(failure) => {
                report::failed(target, agent.as_deref(), failure);
                Err(failure.metric())
            }
        };
        outcome
    }

    /// Dials through one agent, and then through a second one if the first agent's stream is lost before it answers, if the
    /// first agent does not answer pings while the second does, or if the first agent is full. An agent's answer is final,
    /// because the endpoint has already refused. `agent` is set to the agent that was asked last.
    async fn try_twice(
        &self,
        target: &Target,
        deadline: Instant,
        agent: &mut Option<Arc<str>>,
    ) -> Result<Dialed<L::Connection>, DialFailure> {
        if self.memory.should_reject() {
            return Err(DialFailure::NoMemory);
        }
        let first = self.backends.choose(&target.host, &[]).ok_or(DialFailure::NoAgent)?;
        let tried = first.link;
        *agent = Some(Arc::clone(&first.agent_id));
        // A block, so that the branch of `select!` that loses is dropped with it: this cancels the first dial before the second
        // begins.
        let first_try = async {
            let slot = self.budget.connection(&first.budget).ok_or(DialFailure::Full)?;
            tokio::select! {
                outcome = self.try_link(first, slot, target, deadline) => outcome.map(Tried::Dialed),
                (second, slot) = self.better(tried, &target.host) => Ok(Tried::Better(second, slot)),
            }
        };
        let (second, slot) = match first_try.await {
            Ok(Tried::Dialed(dialed)) => return Ok(dialed),
            Ok(Tried::Better(second, slot)) => (second, slot),
            Err(failure @ (DialFailure::LinkLost | DialFailure::Full)) => {
                if Instant::now() >= deadline {
                    return Err(DialFailure::TimedOut);
                }
                // One retry for a full agent, too: if all agents are full, the server must answer soon.
                let second = self.backends.choose(&target.host, &[tried]).ok_or(failure)?;
                *agent = Some(Arc::clone(&second.agent_id));
                let slot = self.budget.connection(&second.budget).ok_or(DialFailure::Full)?;
                (second, slot)
            }
            Err(failure) => return Err(failure),
        };
        *agent = Some(Arc::clone(&second.agent_id));
        self.try_link(second, slot, target, deadline).await
    }

    /// Resolves with another agent that has room, once the first one does not answer pings and the other does.
    async fn better(&self, tried: LinkId, host: &str) -> (Choice<L>, ConnectionSlot) {
        self.backends.until_another_is_better(tried, host).await;
        let second = self.backends.choose(host, &[tried]);
        let second = second.and_then(|second| Some((self.budget.connection(&second.budget)?, second)));
        match second {
            Some((slot, second)) => (second, slot),
            // A full agent is no better: the first one may still answer.
            None => std::future::pending().await,
        }
    }

    /// Waits for a free dial slot, then for the agent's answer.
    async fn try_link(
        &self,
        choice: Choice<L>,
        slot: ConnectionSlot,
        target: &Target,
        deadline: Instant,
    ) -> Result<Dialed<L::Connection>, DialFailure> {
        let turn = timeout_at(deadline, self.budget.dial(&choice.budget)).await;
        let _turn = turn.map_err(|_| DialFailure::SendFailed)?;
        let answer = timeout_at(deadline, choice.handle.open(target)).await;
        let connection = answer.map_err(|_| DialFailure::TimedOut)??;
        Ok(Dialed { connection, agent_id: choice.agent_id, slot })
    }
}

/// The result of the first try.
enum Tried<L: DialLink> {
    Dialed(Dialed<L::Connection>),
    /// No answer yet, and another agent is better.
    Better(Choice<L>, ConnectionSlot),
}

/// Reports the end of a dial to the observer exactly once. A dial that is dropped was canceled by its frontend.
struct Watch<'a> {
    observer: &'a dyn DialObserver,
    outcome: Result<Duration, FailureReason>,
}

impl<'a> Watch<'a> {
    fn start(observer: &'a dyn DialObserver) -> Self {
        observer.started();
        Self { observer, outcome: Err(FailureReason::FrontendClose) }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        match self.outcome {
            Ok(elapsed) => self.observer.succeeded(elapsed),
            Err(reason) => self.observer.failed(reason),
        }
    }
}

impl<L> fmt::Debug for Dialer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
