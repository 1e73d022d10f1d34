//! From a target to an open connection: choose an agent, try it, fail over once.
//!
//! The [`Dialer`] asks the [`BackendManager`], waits for room, sends, and keeps the one deadline. Both frontends dial
//! through it, and render what it returns by [`DialFailure`]. It never touches payload, and keeps nothing about a
//! connection.

pub mod reason;

mod report;
mod target;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use relay::Ceiling;
use tokio::time::{Instant, timeout_at};

pub use self::reason::{DialFailure, FailureReason};
pub use self::target::Target;
use crate::limits::{ConnectionSlot, ServerBudget};
use crate::link::{LinkHandle, OpenConnection, PendingDial};
use crate::route::{BackendManager, Choice, LinkId};

/// The deadline of a dial, retry included, when `--backend-dial-timeout` is 0: below the 30 s of Go's client and of
/// kube-apiserver, so that they get an answer.
pub const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(25);

/// A stream to dial through. [`LinkHandle`] in production; tests bring their own.
pub trait DialLink: Clone + Send + Sync + 'static {
    /// What a successful dial brings. Dropping it closes it.
    type Connection: Send;
    /// A dial under way. Dropping it cancels it.
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

/// Told about dials, for metrics. Each `started` is followed by exactly one of the other two.
pub trait DialObserver: Send + Sync {
    /// One more in gauge `pending_backend_dials`.
    fn started(&self);

    /// One less there, and an observation for `dial_duration_seconds`.
    fn succeeded(&self, elapsed: Duration);

    /// One less there, and one more in `dial_failure_count`. A dial that another agent saved is no failure.
    fn failed(&self, reason: FailureReason);
}

/// Dials targets through agents. Cheap to clone; clones share their limits.
#[derive(Clone)]
pub struct Dialer<L = LinkHandle> {
    backends: BackendManager<L>,
    budget: ServerBudget,
    memory: Ceiling,
    timeout: Duration,
    observer: Arc<dyn DialObserver>,
}

/// A dial that succeeded.
#[derive(Debug)]
pub struct Dialed<C = OpenConnection> {
    /// The connection, to attach the frontend's end to.
    pub connection: C,
    /// Through which agent.
    pub agent_id: Arc<str>,
    /// The connection's room within the limits: the owner of the frontend's end keeps it until the end.
    pub slot: ConnectionSlot,
}

impl<L: DialLink> Dialer<L> {
    /// A dialer over these backends, which takes on nothing while memory is short. A timeout of zero means [`DEFAULT_DIAL_TIMEOUT`].
    pub fn new(
        backends: BackendManager<L>,
        budget: ServerBudget,
        memory: Ceiling,
        timeout: Duration,
        observer: Arc<dyn DialObserver>,
    ) -> Self {
        let timeout = if timeout.is_zero() { DEFAULT_DIAL_TIMEOUT } else { timeout };
        Self { backends, budget, memory, timeout, observer }
    }

    /// Dials a target. Ends within the timeout; dropping the future cancels the dial at the agent.
    ///
    /// # Errors
    /// The one reason for which there is no connection.
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

    /// Asks an agent; and one other where the first one's stream was lost before it answered, does not answer pings while
    /// another agent does, or is full. An agent's answer is final: an endpoint that refused has been asked. `agent`
    /// becomes the one that was asked last.
    async fn try_twice(
        &self,
        target: &Target,
        deadline: Instant,
        agent: &mut Option<Arc<str>>,
    ) -> Result<Dialed<L::Connection>, DialFailure> {
        if self.memory.turn_away() {
            return Err(DialFailure::NoMemory);
        }
        let first = self.backends.choose(&target.host, &[]).ok_or(DialFailure::NoAgent)?;
        let tried = first.link;
        *agent = Some(Arc::clone(&first.agent_id));
        // Within the block: what is not chosen is dropped with it, which cancels the first dial before the second.
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
                // One retry for a full agent, too: a server whose agents are all full must say so soon.
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

    /// Another agent with room, once this one does not answer pings while the other does.
    async fn better(&self, tried: LinkId, host: &str) -> (Choice<L>, ConnectionSlot) {
        self.backends.until_another_is_better(tried, host).await;
        let second = self.backends.choose(host, &[tried]);
        let second = second.and_then(|second| Some((self.budget.connection(&second.budget)?, second)));
        match second {
            Some((slot, second)) => (second, slot),
            // A full agent is not better: the first one may answer yet.
            None => std::future::pending().await,
        }
    }

    /// Waits for room for one more dial, then for the agent's answer.
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

/// What came of the first try.
enum Tried<L: DialLink> {
    Dialed(Dialed<L::Connection>),
    /// Nothing yet, and another agent is better.
    Better(Choice<L>, ConnectionSlot),
}

/// Tells the observer the end of a dial exactly once. A dial that is dropped was canceled by its frontend.
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
