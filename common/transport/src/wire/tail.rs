//! What the finished streams of a server's connection still have to send.
//!
//! What was queued before a stream's end waits for window that its client may never give, and h2 resets a stream of
//! which nobody has a handle only behind that. So the connection has the handle until all has gone, [`WITHIN`] at most:
//! a client that has stopped reading holds a stream and its bytes for no longer. (A stream in that state also stays
//! among those that h2 counts when its connection ends, and h2 asserts that none is left.)

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use h2::{Reason, SendStream};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

use super::frame::{OutFrame, Queued};

/// How long a finished stream may take to send what it holds: as long as a connection's flush may.
pub(super) const WITHIN: Duration = Duration::from_secs(60);

/// Where a server's stream leaves what it has still to send.
#[derive(Clone, Debug, Default)]
pub(super) struct Tails(Weak<Mutex<Waiting>>);

impl Tails {
    /// Takes a finished stream of which `queued` counts the frames.
    pub(super) fn keep(&self, send: SendStream<OutFrame>, queued: Queued) {
        // A connection that is over has nobody to send to.
        let Some(waiting) = self.0.upgrade() else { return };
        if queued.is_empty() {
            return;
        }
        let driver = {
            let mut waiting = waiting.lock();
            waiting.tails.push(Tail { send, queued, until: Instant::now() + WITHIN });
            waiting.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    /// In the order of their ends.
    tails: Vec<Tail>,
    driver: Option<Waker>,
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
    waiting: Arc<Mutex<Waiting>>,
    overdue: Option<Pin<Box<Sleep>>>,
}

impl Tailing {
    /// For streams of this connection.
    pub(super) fn tails(&self) -> Tails {
        Tails(Arc::downgrade(&self.waiting))
    }

    /// Lets go of the streams that have sent all, and resets those whose time is over. To be called when h2 has sent what
    /// it can in this turn.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        loop {
            // h2 wakes tasks: not under the lock.
            let (over, next) = self.take(cx);
            for mut tail in over {
                if !tail.queued.is_empty() {
                    tail.send.send_reset(Reason::CANCEL);
                }
            }
            let Some(next) = next else {
                self.overdue = None;
                return;
            };
            let overdue = self.overdue.get_or_insert_with(|| Box::pin(sleep_until(next)));
            if overdue.deadline() != next {
                overdue.as_mut().reset(next);
            }
            if overdue.as_mut().poll(cx) == Poll::Pending {
                return;
            }
        }
    }

    /// Those that are over, and when the next one will be.
    fn take(&self, cx: &Context<'_>) -> (Vec<Tail>, Option<Instant>) {
        let mut waiting = self.waiting.lock();
        match &mut waiting.driver {
            Some(driver) => driver.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        if waiting.tails.is_empty() {
            return (Vec::new(), None);
        }
        let now = Instant::now();
        let over = waiting.tails.extract_if(.., |tail| tail.queued.is_empty() || tail.until <= now).collect();
        (over, waiting.tails.first().map(|tail| tail.until))
    }
}
