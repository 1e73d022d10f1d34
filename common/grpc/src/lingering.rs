//! The frames that finished streams of a server's connection still have to send.
//!
//! Frames queued before a stream's end wait for window that the client may never grant, and h2 resets a stream without
//! a handle only after they were sent. So the connection keeps the handle until all frames were sent, for at most
//! [`LINGER_TIMEOUT`]: this limits how long a client that has stopped reading holds a stream and its bytes. (Such a stream also
//! stays among those that h2 counts when its connection ends, and h2 asserts that none is left.)

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Context;
use std::time::Duration;

use h2::{Reason, SendStream};
use tokio::time::{Instant, Sleep, sleep_until};

use super::frame::{OutFrame, Queued};
use super::mailbox::Mailbox;

/// How long a finished stream may take to send its queued frames: as long as a connection's flush may take.
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a server's stream leaves its queued frames.
#[derive(Clone, Debug, Default)]
pub(super) struct LingeringHandle(Weak<Mailbox<LingeringStream>>);

impl LingeringHandle {
    /// Keeps a finished stream whose frames `queued` counts.
    pub(super) fn keep(&self, send: SendStream<OutFrame>, queued: Queued) {
        // The connection has ended.
        let Some(mailbox) = self.0.upgrade() else { return };
        if !queued.is_empty() {
            mailbox.push(LingeringStream { send, queued, until: Instant::now() + LINGER_TIMEOUT });
        }
    }
}

#[derive(Debug)]
struct LingeringStream {
    send: SendStream<OutFrame>,
    queued: Queued,
    until: Instant,
}

/// The connection's part. Must be dropped after the connection.
#[derive(Debug, Default)]
pub(super) struct LingeringStreams {
    mailbox: Arc<Mailbox<LingeringStream>>,
    /// In the order of their deadlines.
    streams: VecDeque<LingeringStream>,
    /// The deadline of the first one.
    overdue: Option<Pin<Box<Sleep>>>,
}

impl LingeringStreams {
    /// The handle for streams of this connection.
    pub(super) fn handle(&self) -> LingeringHandle {
        LingeringHandle(Arc::downgrade(&self.mailbox))
    }

    /// Drops the streams that have sent everything, and resets those past their deadline. Called after h2 has sent what
    /// it can in this turn.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        self.streams.extend(self.mailbox.take(cx));
        self.streams.retain(|stream| !stream.queued.is_empty());
        while let Some(until) = self.streams.front().map(|stream| stream.until) {
            let overdue = self.overdue.get_or_insert_with(|| Box::pin(sleep_until(until)));
            if overdue.deadline() != until {
                overdue.as_mut().reset(until);
            }
            if overdue.as_mut().poll(cx).is_pending() {
                return;
            }
            if let Some(mut stream) = self.streams.pop_front() {
                stream.send.send_reset(Reason::CANCEL);
            }
        }
        self.overdue = None;
    }
}
