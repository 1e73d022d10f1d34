//! The state that all streams of one agent id share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serve::logs::shown_error;
use serve::statusz;
use tokio::time::Instant;

use super::load::Load;
use super::outlier::{Change, Outlier};
use crate::limits::{Budget, MAX_CONNECTIONS_PER_AGENT, MAX_PENDING_DIALS_PER_AGENT};

/// The limits of an agent, its expected dial time and its ejections. Cheap to clone; clones share the state.
#[derive(Debug, Clone)]
pub struct AgentStats(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    budget: Budget,
    since: Instant,
    state: Mutex<(Load, Outlier)>,
    /// Bytes that wait for the agent's clients. Apart from the lock, because it changes with each turn of a stream.
    waiting: AtomicUsize,
    /// Dials that the agent has answered with a connection, and others that were sent to it.
    dials: [AtomicU64; 2],
    /// When the last one of the others failed, and its error.
    last_failure: Mutex<Option<(SystemTime, String)>>,
}

impl AgentStats {
    pub(super) fn new(now: Instant) -> Self {
        let state = Mutex::new((Load::new(now), Outlier::new(now)));
        Self(Arc::new(Inner {
            budget: Budget::new(MAX_PENDING_DIALS_PER_AGENT, MAX_CONNECTIONS_PER_AGENT),
            since: now,
            state,
            waiting: AtomicUsize::new(0),
            dials: Default::default(),
            last_failure: Mutex::default(),
        }))
    }

    /// The limits that all streams of the agent share.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Since when the agent has been connected.
    pub(super) fn since(&self) -> Instant {
        self.0.since
    }

    /// A dial has chosen the agent. `None` while the agent admits no dial, unless it is the last resort.
    pub(super) fn begin(&self, now: Instant, last_resort: bool) -> Option<PendingDial> {
        let (load, outlier) = &mut *self.0.state.lock();
        if !last_resort && !outlier.admits(load.in_flight()) {
            return None;
        }
        load.begin();
        Some(PendingDial { stats: self.clone(), began: now })
    }

    /// A dial that began then has failed by the agent's fault: another agent has opened the connection, or this one gave no
    /// answer.
    pub fn blame(&self, now: Instant, began: Instant) {
        self.0.state.lock().1.blame(now, began);
    }

    /// The agent answered a probe after this time.
    pub fn sample(&self, now: Instant, took: Duration) {
        self.0.state.lock().0.sample(now, took);
    }

    /// The bytes of one stream that wait for the agent's clients have changed.
    pub fn waiting_changed(&self, before: usize, after: usize) {
        // Wraps around, as the sum of all changes is never negative.
        self.0.waiting.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// A dial that was sent to the agent is over, with this error if it has failed.
    pub fn dialed(&self, failure: Option<String>) {
        self.0.dials[usize::from(failure.is_some())].fetch_add(1, Ordering::Relaxed);
        if let Some(failure) = failure {
            *self.0.last_failure.lock() = Some((statusz::now(), shown_error(&failure)));
        }
    }

    /// When the last dial failed, and its error; `None` if none has.
    pub(crate) fn last_failure(&self) -> Option<(SystemTime, String)> {
        self.0.last_failure.lock().clone()
    }

    /// The dials that opened a connection, and those that did not.
    pub(crate) fn dials(&self) -> (u64, u64) {
        let [opened, failed] = [0, 1].map(|which| self.0.dials[which].load(Ordering::Relaxed));
        (opened, failed)
    }

    /// The expected time of a dial.
    pub(crate) fn expected(&self, now: Instant) -> Duration {
        self.0.state.lock().0.expected(now)
    }

    /// How long the agent is still ejected; `None` if it is not.
    pub(crate) fn ejected_for(&self, now: Instant) -> Option<Duration> {
        self.0.state.lock().1.ejected_for(now)
    }

    pub(super) fn sweep(&self, now: Instant, may_eject: bool) -> Option<Change> {
        self.0.state.lock().1.sweep(now, may_eject)
    }

    /// Whether these are the same agent's.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the other agent should get the dial. Of two agents that are alike the first one gets it.
    pub(super) fn loses_to(&self, other: &Self, now: Instant) -> bool {
        // One lock at a time: another dial may compare the same two in the other order.
        let ((admitted, load), (other_admitted, other_load)) = (self.snapshot(), other.snapshot());
        match (admitted, other_admitted) {
            (true, false) => false,
            (false, true) => true,
            _ => other_load.is_less_than(&load, now) == Some(true),
        }
    }

    /// Whether a dial may use the agent, and its load.
    fn snapshot(&self) -> (bool, Load) {
        let (mut load, admits) = {
            let (load, outlier) = &*self.0.state.lock();
            (*load, outlier.admits(load.in_flight()))
        };
        load.waiting = self.0.waiting.load(Ordering::Relaxed);
        (admits, load)
    }
}

/// A dial that has chosen an agent, and has no answer yet. Dropping it ends it without a verdict about the agent: it was canceled, or failed
/// for a reason that may be the endpoint's.
#[derive(Debug)]
pub struct PendingDial {
    /// The state of the agent.
    pub stats: AgentStats,
    began: Instant,
}

impl PendingDial {
    /// The dial is sent to the agent only now.
    pub fn sent(&mut self, now: Instant) {
        self.began = now;
    }

    /// The agent has reached the endpoint, which accepted or refused.
    pub fn reached(self, now: Instant) {
        let (load, outlier) = &mut *self.stats.0.state.lock();
        load.sample(now, now.saturating_duration_since(self.began));
        outlier.reached(now, self.began);
    }
}

impl Drop for PendingDial {
    fn drop(&mut self) {
        self.stats.0.state.lock().0.end();
    }
}
