//! What the finished streams of a server's connection still have to send.
//!
//! What was queued before a stream's end waits for window that its client may never give, and h2 resets a stream of
//! which nobody has a handle only behind that. So the connection has the handle until all has gone, [`WITHIN`] at most:
//! a client that has stopped reading holds a stream and its bytes for no longer. (A stream in that state also stays
//! among those that h2 counts when its connection ends, and h2 asserts that none is left.)

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Context;
use std::time::Duration;

use h2::{Reason, SendStream};
use tokio::time::{Instant, Sleep, sleep_until};

use super::frame::{OutFrame, Queued};
use super::handover::Handover;

/// How long a finished stream may take to send what it holds: as long as a connection's flush may.
pub(super) const WITHIN: Duration = Duration::from_secs(60);

/// Where a server's stream leaves what it has still to send.
#[derive(Clone, Debug, Default)]
pub(super) struct Tails(Weak<Handover<Tail>>);

impl Tails {
    /// Takes a finished stream of which `queued` counts the frames.
    pub(super) fn keep(&self, send: SendStream<OutFrame>, queued: Queued) {
        // A connection that is over has nobody to send to.
        let Some(left) = self.0.upgrade() else { return };
        if !queued.is_empty() {
            left.leave(Tail { send, queued, until: Instant::now() + WITHIN });
        }
    }
}

#[derive(Debug)]
struct Tail {
    send: SendStream<OutFrame>,
    queued: Queued,
    until: Instant,
}

/// The end that belongs to the connection. To be dropped behind it.
#[derive(Debug, Default)]
pub(super) struct Tailing {
    left: Arc<Handover<Tail>>,
    /// In the order of their ends.
    tails: VecDeque<Tail>,
    /// When the first one's time is over.
    overdue: Option<Pin<Box<Sleep>>>,
}

impl Tailing {
    /// For streams of this connection.
    pub(super) fn tails(&self) -> Tails {
        Tails(Arc::downgrade(&self.left))
    }

    /// Lets go of the streams that have sent all, and resets those whose time is over. To be called when h2 has sent what
    /// it can in this turn.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        self.tails.extend(self.left.take(cx));
        self.tails.retain(|tail| !tail.queued.is_empty());
        while let Some(until) = self.tails.front().map(|tail| tail.until) {
            let overdue = self.overdue.get_or_insert_with(|| Box::pin(sleep_until(until)));
            if overdue.deadline() != until {
                overdue.as_mut().reset(until);
            }
            if overdue.as_mut().poll(cx).is_pending() {
                return;
            }
            if let Some(mut tail) = self.tails.pop_front() {
                tail.send.send_reset(Reason::CANCEL);
            }
        }
        self.overdue = None;
    }
}
