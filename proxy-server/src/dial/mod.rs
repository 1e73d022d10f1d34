//! From a target to an open connection: choose an agent, try it, fail over once.
//!
//! The decisions are in [`machine`], which has no clock; the [`Dialer`] here is the thin shell around it: it asks
//! the [`BackendManager`], waits for room, sends, and keeps the one deadline. Both frontends dial through it, and
//! render what it returns by [`DialFailure`]. It never touches payload, and keeps nothing about a connection.

pub mod machine;
pub mod reason;

mod target;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use relay::Ceiling;
use tokio::time::{Instant, timeout_at};

use self::machine::{Action, Answer, DialMachine, Event};
pub use self::reason::{DialFailure, FailureReason, HttpHeaders, RemoteError, RemoteErrorKind};
pub use self::target::Target;
use crate::limits::{ConnectionSlot, DialSlot, ServerBudget};
use crate::link::{LinkDialError, LinkHandle, OpenConnection, PendingDial};
use crate::route::{BackendManager, Choice, LinkId};

/// The deadline of a dial, retry included, when `--backend-dial-timeout` is 0: below the 30 s of Go's client and of
/// kube-apiserver, so that they get an answer.
pub const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(25);

/// A stream to dial through. [`LinkHandle`] in production; tests bring their own.
pub trait DialLink: Clone + Send + Sync + 'static {
    /// What a successful dial brings. Dropping it closes it.
    type Connection: Send;
    /// A dial under way. Dropping it cancels it.
    type Pending: Future<Output = Result<Self::Connection, LinkDialError>> + Send;

    /// Sends a DIAL_REQ.
    fn open(&self, target: &Target) -> Self::Pending;
}

impl DialLink for LinkHandle {
    type Connection = OpenConnection;
    type Pending = PendingDial;

    fn open(&self, target: &Target) -> PendingDial {
        self.dial(&target.protocol, &target.address)
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

/// Nobody is told.
impl DialObserver for () {
    fn started(&self) {}

    fn succeeded(&self, _elapsed: Duration) {}

    fn failed(&self, _reason: FailureReason) {}
}

/// Dials targets through agents. Cheap to clone; clones share their limits.
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
    /// From the request to the agent's answer.
    pub elapsed: Duration,
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
        let watch = Watch::start(&*self.observer);
        if self.memory.turn_away() {
            watch.failed(&DialFailure::NoMemory);
            return Err(DialFailure::NoMemory);
        }
        let mut attempt =
            Attempt { dialer: self, target, deadline: started + self.timeout, link: None, retried: false };
        let (mut machine, mut action) = DialMachine::start();
        let outcome = loop {
            match action {
                Action::Finish(outcome) => break outcome,
                action_to_do => action = machine.handle(attempt.act(action_to_do).await),
            }
        };
        let elapsed = started.elapsed();
        // An open connection is there whenever the machine says so: it heard of it from the attempt.
        match outcome.and_then(|_| attempt.into_dialed(elapsed).ok_or(DialFailure::LinkLost)) {
            Ok(dialed) => {
                watch.succeeded(elapsed);
                Ok(dialed)
            }
            Err(failure) => {
                watch.failed(&failure);
                Err(failure)
            }
        }
    }
}

impl<L: DialLink> Dialer<L> {
    /// An agent's answer to a dial. One that `may_move` reads as lost once the agent does not answer pings and another one
    /// does: it has not been answered, and its drop cancels it. Without another it waits on.
    async fn answer(
        &self,
        pending: L::Pending,
        link: LinkId,
        host: &str,
        may_move: bool,
    ) -> Result<L::Connection, LinkDialError> {
        tokio::select! {
            answer = pending => answer,
            () = self.backends.until_another_is_better(link, host), if may_move => Err(LinkDialError::Lost),
        }
    }
}

/// A dial under way: what the machine's actions need, and what they brought.
struct Attempt<'a, L: DialLink> {
    dialer: &'a Dialer<L>,
    target: &'a Target,
    deadline: Instant,
    link: Option<Chosen<L>>,
    /// Another link was tried before.
    retried: bool,
}

/// The link that is being tried.
struct Chosen<L: DialLink> {
    choice: Choice<L>,
    room: Option<(ConnectionSlot, DialSlot)>,
    connection: Option<L::Connection>,
}

impl<L: DialLink> Attempt<'_, L> {
    /// Does what the machine asks for and tells it what came of it.
    async fn act(&mut self, action: Action) -> Event {
        let deadline = self.deadline;
        match (action, &mut self.link) {
            (Action::Choose { exclude }, _) => self.choose(exclude.as_slice()),
            (Action::Admit(link), Some(chosen)) => {
                let Some(slot) = self.dialer.budget.connection(&chosen.choice.budget) else {
                    return Event::Answered(link, Answer::Full);
                };
                match timeout_at(deadline, self.dialer.budget.dial(&chosen.choice.budget)).await {
                    Ok(turn) => {
                        chosen.room = Some((slot, turn));
                        Event::Admitted(link)
                    }
                    Err(_) => Event::Deadline,
                }
            }
            (Action::Send(link), Some(chosen)) => {
                let pending = chosen.choice.handle.open(self.target);
                let answer = self.dialer.answer(pending, link, &self.target.host, !self.retried);
                match timeout_at(deadline, answer).await {
                    Ok(Ok(connection)) => {
                        chosen.connection = Some(connection);
                        Event::Answered(link, Answer::Opened)
                    }
                    Ok(Err(error)) => Event::Answered(link, Answer::from(error)),
                    Err(_) => Event::Deadline,
                }
            }
            // The machine waits for nobody else, and has no link to ask before one was chosen.
            (Action::Wait | Action::Finish(_) | Action::Admit(_) | Action::Send(_), _) => Event::Deadline,
        }
    }

    fn choose(&mut self, exclude: &[LinkId]) -> Event {
        if Instant::now() >= self.deadline {
            return Event::Deadline;
        }
        self.retried = !exclude.is_empty();
        let choice = self.dialer.backends.choose(&self.target.host, exclude);
        let link = choice.as_ref().map(|choice| choice.link);
        // Gives back the room of the link that was tried.
        self.link = choice.map(|choice| Chosen { choice, room: None, connection: None });
        Event::Chosen(link)
    }

    fn into_dialed(self, elapsed: Duration) -> Option<Dialed<L::Connection>> {
        let Chosen { choice, room, connection } = self.link?;
        let (slot, _turn) = room?;
        Some(Dialed { connection: connection?, agent_id: choice.agent_id, elapsed, slot })
    }
}

impl From<LinkDialError> for Answer {
    fn from(error: LinkDialError) -> Self {
        match error {
            LinkDialError::Refused(text) => Answer::Refused(RemoteError::parse(text)),
            // As final as a refusal, and the agent's doing as well: 502, counted as an error response.
            LinkDialError::BadAnswer => Answer::Refused(RemoteError::parse(error.to_string())),
            LinkDialError::Closed => Answer::Closed,
            LinkDialError::Lost => Answer::Lost,
            LinkDialError::Full => Answer::Full,
        }
    }
}

/// Tells the observer the end of a dial exactly once, a cancelled one's too.
struct Watch<'a> {
    observer: Option<&'a dyn DialObserver>,
}

impl<'a> Watch<'a> {
    fn start(observer: &'a dyn DialObserver) -> Self {
        observer.started();
        Self { observer: Some(observer) }
    }

    fn succeeded(mut self, elapsed: Duration) {
        if let Some(observer) = self.observer.take() {
            observer.succeeded(elapsed);
        }
    }

    fn failed(mut self, failure: &DialFailure) {
        if let Some(observer) = self.observer.take() {
            observer.failed(failure.metric());
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(observer) = self.observer.take() {
            observer.failed(DialFailure::Cancelled.metric());
        }
    }
}

impl<L> Clone for Dialer<L> {
    fn clone(&self) -> Self {
        Self {
            backends: self.backends.clone(),
            budget: self.budget.clone(),
            memory: self.memory.clone(),
            timeout: self.timeout,
            observer: Arc::clone(&self.observer),
        }
    }
}

impl<L> fmt::Debug for Dialer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
