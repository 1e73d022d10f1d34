//! When an agent is pinged because dials wait, and the probes of its packet loop: an HTTP/2 ping is answered by a program whose
//! packet loop no longer runs.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use driver::Conns;
use grpc::UNRESPONSIVE_AFTER;
use mux::Server;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::server_count::ServerCount;

/// How long dials wait before the agent is pinged, and the interval of further pings.
const PING_AFTER: Duration = Duration::from_millis(250);

/// When a link's dials have waited so long that the agent is pinged. Without dials it needs no timer of its own, but keeps an
/// armed one: arming it for each dial costs a wake-up.
#[derive(Debug, Default)]
pub(super) struct WaitTimer {
    /// When the next ping is due; `None` while no dial waits.
    due: Option<Instant>,
    /// Fires at that time or earlier.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WaitTimer {
    /// Whether a ping is due. `waiting`: dials wait now. Wakes the task when the next one is due.
    pub(super) fn poll_due(&mut self, cx: &mut Context<'_>, waiting: bool) -> bool {
        if !waiting {
            self.due = None;
            self.timer.take_if(|timer| timer.is_elapsed());
            return false;
        }
        let due = self.due.get_or_insert_with(|| Instant::now() + PING_AFTER);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(*due)));
        let mut is_due = false;
        while timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now >= *due {
                is_due = true;
                *due = now + PING_AFTER;
            }
            timer.as_mut().reset(*due);
        }
        is_due
    }
}

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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::{advance, timeout};

    use super::*;

    async fn due_within(timer: &mut WaitTimer, limit: Duration) -> bool {
        let due = poll_fn(|cx| if timer.poll_due(cx, true) { Poll::Ready(()) } else { Poll::Pending });
        timeout(limit, due).await.is_ok()
    }

    async fn nothing_waits(timer: &mut WaitTimer) {
        assert!(!poll_fn(|cx| Poll::Ready(timer.poll_due(cx, false))).await);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_dials_cause_a_ping_every_quarter_of_a_second() {
        let mut timer = WaitTimer::default();
        let began = Instant::now();
        for count in 1..=4 {
            assert!(due_within(&mut timer, PING_AFTER * 2).await);
            assert_eq!(began.elapsed().as_millis(), (PING_AFTER * count).as_millis());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_wait_is_counted_from_its_own_begin() {
        let mut timer = WaitTimer::default();
        for _ in 0..5 {
            assert!(!due_within(&mut timer, PING_AFTER * 3 / 4).await);
            nothing_waits(&mut timer).await;
        }
        // Also after the timer has fired while nothing waited.
        advance(PING_AFTER * 2).await;
        nothing_waits(&mut timer).await;
        assert!(!due_within(&mut timer, PING_AFTER * 3 / 4).await);
        assert!(due_within(&mut timer, PING_AFTER).await);
    }
}
