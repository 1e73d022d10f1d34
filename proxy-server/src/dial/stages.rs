//! The stages of one dial, for the connection log and traces.

use std::sync::Arc;
use std::time::Duration;

use serve::traces::OpenSpan;
use tokio::time::Instant;

/// What a dial has done so far. It outlives a dial that is canceled.
#[derive(Debug)]
pub struct DialStages {
    began: Instant,
    /// The agent that was asked last.
    pub agent: Option<Arc<str>>,
    /// Why no agent could be asked.
    pub(super) no_agent: Option<String>,
    /// How many times an agent was asked.
    pub attempts: u32,
    /// When the last DIAL_REQ was sent.
    sent: Option<Instant>,
    /// When it was answered.
    pub(super) answered: Option<Instant>,
    /// The span of the whole dial.
    pub span: OpenSpan,
}

impl Default for DialStages {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            agent: None,
            no_agent: None,
            attempts: 0,
            sent: None,
            answered: None,
            span: OpenSpan::default(),
        }
    }
}

impl DialStages {
    /// A DIAL_REQ is sent. Returns its span.
    pub(super) fn send(&mut self, now: Instant) -> OpenSpan {
        self.span.stage("select agent", self.answered.or(self.sent).unwrap_or(self.began), now);
        self.attempts += 1;
        (self.sent, self.answered) = (Some(now), None);
        self.span.child("DIAL_REQ")
    }

    /// The time from the request to the last DIAL_REQ: the choice of an agent, the wait for a free slot, and earlier attempts.
    pub fn selection(&self) -> Option<Duration> {
        Some(self.sent?.duration_since(self.began))
    }

    /// The time from the last DIAL_REQ to its answer.
    pub fn dial(&self) -> Option<Duration> {
        Some(self.answered?.duration_since(self.sent?))
    }

    /// The time since the request.
    pub fn total(&self) -> Duration {
        self.began.elapsed()
    }
}
