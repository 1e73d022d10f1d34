//! The frames that finished streams of a server's connection still have to send.
//!
//! Frames queued before a stream's end wait for window that the client may never grant, and h2 resets a stream without
//! a handle only after they were sent. So the connection keeps the handle until all frames were sent, for at most
//! [`LINGER_TIMEOUT`]: this limits how long a client that has stopped reading holds a stream and its bytes. (Such a stream also
//! stays among those that h2 counts when its connection ends, and h2 asserts that none is left.)

use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use h2::{Reason, SendStream};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::frame::OutFrame;

/// How long a finished stream may take to send its queued frames: as long as a connection's flush may take.
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(60);

/// A finished stream, and the token that is canceled once its frames were sent.
pub(super) type Lingering = (SendStream<OutFrame>, CancellationToken);

/// Where a server's stream leaves its queued frames while its connection exists.
pub(super) type LingeringHandle = Weak<Mailbox<Lingering>>;

/// The connection's part. Must be dropped after the connection.
#[derive(Debug, Default)]
pub(super) struct LingeringStreams {
    mailbox: Arc<Mailbox<Lingering>>,
    /// A task for each stream, so that the connection's turns do not walk through all of them.
    streams: JoinSet<()>,
}

impl LingeringStreams {
    /// The handle for streams of this connection.
    pub(super) fn handle(&self) -> LingeringHandle {
        Arc::downgrade(&self.mailbox)
    }

    /// Drops the streams that have sent everything, and resets those past their deadline. Called after h2 has sent what
    /// it can in this turn.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        for (mut send, all_sent) in self.mailbox.take(cx) {
            if !all_sent.is_cancelled() {
                self.streams.spawn(async move {
                    if timeout(LINGER_TIMEOUT, all_sent.cancelled()).await.is_err() {
                        send.send_reset(Reason::CANCEL);
                    }
                });
            }
        }
        // A finished task keeps its memory until it is joined.
        while let Poll::Ready(Some(_)) = self.streams.poll_join_next(cx) {}
    }
}

/// Objects that the streams of a connection leave to the task that drives it. The lock is never held during calls of h2, which
/// wakes tasks.
#[derive(Debug)]
pub(super) struct Mailbox<T>(Mutex<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    items: Vec<T>,
    driver: Option<Waker>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Mailbox(Mutex::new(Inner { items: Vec::new(), driver: None }))
    }
}

impl<T> Mailbox<T> {
    /// Adds an object, and wakes the driver if it waits.
    pub(super) fn push(&self, item: T) {
        let driver = {
            let mut inner = self.0.lock();
            inner.items.push(item);
            inner.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// The objects added since the last call, in order. Registers the driver's waker for the next one.
    pub(super) fn take(&self, cx: &Context<'_>) -> Vec<T> {
        let mut inner = self.0.lock();
        match &mut inner.driver {
            Some(driver) => driver.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        std::mem::take(&mut inner.items)
    }
}
