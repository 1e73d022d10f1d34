//! Probes of the agent's packet loop: an HTTP/2 ping is answered by a program whose packet loop no longer runs.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use driver::Conns;
use grpc::UNRESPONSIVE_AFTER;
use mux::Server;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::server_count::ServerCount;

/// The pause between an answer and the next probe of a native agent. Go agents log each probe at `-v=4`, so they are probed
/// only while dials wait.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

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
    /// A native agent is probed also while no dial waits, and each probe announces this number.
    pub(super) servers: Option<ServerCount>,
    sent: Option<Instant>,
    /// When to probe or, with a probe under way, when the agent is stuck; `None`: never.
    due: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl PacketProbe {
    /// `servers`: given for a native agent, whose first probe is due at once.
    pub(super) fn new(servers: Option<ServerCount>) -> Self {
        let now = Instant::now();
        let due = servers.is_some().then_some(now);
        Self { servers, sent: None, due, timer: Box::pin(sleep_until(now)) }
    }

    /// Probes now, unless an answer is outstanding.
    pub(super) fn ask(&mut self, conns: &mut Conns<Server>) {
        let servers = self.servers.as_ref().map_or(0, ServerCount::get);
        if self.sent.is_none() && conns.link().probe(servers) {
            let now = Instant::now();
            (self.sent, self.due) = (Some(now), Some(now + UNRESPONSIVE_AFTER));
        }
    }

    /// The agent has answered.
    pub(super) fn answered(&mut self) -> Option<Finding> {
        let now = Instant::now();
        self.due = self.servers.is_some().then_some(now + PROBE_INTERVAL);
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
                self.due = Some(Instant::now() + PROBE_INTERVAL);
                return Some(Finding::Stuck);
            }
            self.ask(conns);
            if self.sent.is_none() {
                // The outbox is full.
                self.due = Some(Instant::now() + PROBE_INTERVAL);
            }
        }
        None
    }
}
