//! Holds payload back from a client that has just been told of its connection, until it can take it.
//!
//! Only what endpoints say first is held: a client that sends has heard of its connection. Reading from the client
//! is never held.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Sleep, sleep};

/// Where nothing but time tells that a client is ready.
pub(super) const BY_TIME: Duration = Duration::from_millis(5);
/// The longest wait for a client to read what it was told.
const AT_MOST: Duration = Duration::from_secs(10);

/// Why payload waits, and until when.
#[derive(Debug)]
pub struct Hold {
    until: Pin<Box<Sleep>>,
    /// At its end of file once the client has read what it was told.
    read: Option<Receiver>,
}

impl Hold {
    /// Until the client has very likely read what it was told.
    pub fn by_time() -> Self {
        Hold { until: Box::pin(sleep(BY_TIME)), read: None }
    }

    /// Until the other end of this pipe, which was passed to the client together with what it was told, is closed:
    /// its kernel does so when the client reads, or leaves.
    pub fn until_read(pipe: Receiver) -> Self {
        Hold { until: Box::pin(sleep(AT_MOST)), read: Some(pipe) }
    }

    /// Ready when payload may go to the client.
    pub fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pipe) = &mut self.read
            && Pin::new(pipe).poll_read(cx, &mut ReadBuf::new(&mut [0])).is_ready()
        {
            return Poll::Ready(());
        }
        self.until.as_mut().poll(cx)
    }

    /// Whether a client that has sent something thereby shows that it has read what it was told. It may send without
    /// reading, and where that can be known it is waited for.
    pub fn ends_with_data(&self) -> bool {
        self.read.is_none()
    }
}
