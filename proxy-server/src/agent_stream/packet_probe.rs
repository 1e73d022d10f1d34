//! Probes of the agent's packet loop: an HTTP/2 ping is answered by a program whose packet loop no longer runs.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use driver::Conns;
use mux::Server;
use tokio::time::{Instant, Sleep, sleep_until};
use transport::wire::UNRESPONSIVE_AFTER;

/// The pause between an answer and the next probe of a native agent. Go agents log each probe at `-v=4`, so they are probed
/// only while dials wait.
const EVERY: Duration = Duration::from_secs(10);

/// What a probe showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// The agent answered after this time.
    Answered(Duration),
    /// The agent has not answered for [`UNRESPONSIVE_AFTER`].
    Stuck,
}

/// The probes of one agent stream, one at a time.
#[derive(Debug)]
pub(super) struct PacketProbe {
    regular: bool,
    sent: Option<Instant>,
    /// When to probe or, with a probe under way, when the agent is stuck; `None`: never.
    due: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl PacketProbe {
    /// `regular`: also while no dial waits.
    pub(super) fn new(regular: bool) -> Self {
        let first = Instant::now() + EVERY;
        let due = regular.then_some(first);
        Self { regular, sent: None, due, timer: Box::pin(sleep_until(first)) }
    }

    /// Probes now, unless an answer is outstanding.
    pub(super) fn ask(&mut self, conns: &mut Conns<Server>) {
        if self.sent.is_none() && conns.link().probe() {
            let now = Instant::now();
            (self.sent, self.due) = (Some(now), Some(now + UNRESPONSIVE_AFTER));
        }
    }

    /// The agent has answered.
    pub(super) fn answered(&mut self) -> Option<Finding> {
        let now = Instant::now();
        self.due = self.regular.then_some(now + EVERY);
        Some(Finding::Answered(now - self.sent.take()?))
    }

    /// Probes when it is time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, conns: &mut Conns<Server>) -> Option<Finding> {
        while let Some(due) = self.due {
            if self.timer.deadline() != due {
                self.timer.as_mut().reset(due);
            }
            if self.timer.as_mut().poll(cx) == Poll::Pending {
                return None;
            }
            self.due = None;
            if self.sent.is_some() {
                // The timer must run on: an answer arrives in a turn that does not poll it.
                self.due = Some(Instant::now() + EVERY);
                return Some(Finding::Stuck);
            }
            self.ask(conns);
            if self.sent.is_none() {
                // The outbox is full.
                self.due = Some(Instant::now() + EVERY);
            }
        }
        None
    }
}
