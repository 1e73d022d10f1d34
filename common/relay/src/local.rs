//! The local end of a connection, as the link's task sees it: an endpoint's socket at the agent, a frontend's
//! socket or gRPC stream at the server.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use tunnel::Cause;

use crate::queue::Queue;

/// What a read brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// Bytes, never empty.
    Data(Bytes),
    /// The source sends no more, but may still listen (a FIN).
    Eof,
    /// The source is gone for good: it neither sends nor listens (a gRPC frontend's CLOSE_REQ).
    Closed,
}

/// How a connection ended, told to its local end exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Everything that was accepted has been written: an orderly end.
    Flushed,
    /// The connection broke off, bytes may be missing: the local end is not to take it for an orderly end.
    Broken(Cause),
}

impl Ending {
    /// The error of the CLOSE_RSP that tells a gRPC frontend: empty for an orderly end, and, as the Go server
    /// has it, when the agent was lost.
    pub fn wire_text(&self) -> String {
        match self {
            Ending::Flushed | Ending::Broken(Cause::LinkLost) => String::new(),
            Ending::Broken(cause) => cause.to_string(),
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Flushed => f.write_str("closed"),
            Ending::Broken(cause) => cause.fmt(f),
        }
    }
}

/// The local end of a connection. Owned and polled by the link's task alone; dropped once `poll_end` is ready.
pub trait Local: Send {
    /// Reads at most `max` bytes (a hint where messages come whole).
    fn poll_read(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Read>>;

    /// While the link has no room for what this end sends: ready once this end is known to have gone for good, but
    /// for what is still to be read. May take what has arrived into a bounded buffer to find out.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Bytes that this end itself holds of what was sent to it, for want of room in the link. Asked after
    /// [`Local::poll_gone`], and after reads until it is zero.
    fn held(&mut self) -> usize {
        0
    }

    /// Takes from the front of `queue`, which is not empty, without waiting. `Ready(Ok(()))` after progress, which need
    /// not be all. Pending registers the waker and leaves the queue as it was.
    fn poll_write(&mut self, cx: &mut Context<'_>, queue: &mut Queue) -> Poll<io::Result<()>>;

    /// Pushes what an own buffer holds (a TLS session's) towards the socket. Called once per turn after writes,
    /// and again when it woke the connection.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The other side sends no more: passes that on, behind everything written, while this side may still send.
    /// `Ready(Ok(false))` where nothing of the kind can be told: then it is the end of the connection. Called again
    /// until ready.
    fn poll_shut_down(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>>;

    /// Ends the local side: pushes out what own buffers hold, then closes. Called again until ready, which must
    /// be within seconds; after that it is dropped. Of what is still sent to it, it may throw away `allowance` bytes, which it
    /// counts off; once they are used up it is called again when there are more.
    fn poll_end(&mut self, cx: &mut Context<'_>, ending: &Ending, allowance: &mut usize) -> Poll<()>;
}
