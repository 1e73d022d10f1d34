//! The local end of a connection, as the link's task sees it: an endpoint's socket at the agent, a frontend's
//! socket or gRPC stream at the server.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;

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
    /// Everything that was accepted has been written. The text is the peer's, empty for an orderly end.
    Flushed(String),
    /// The connection broke off, bytes may be missing: a socket is to be reset, not shut down.
    Broken(String),
}

/// The local end of a connection. Owned and polled by the link's task alone; dropped after `poll_end` is ready.
pub trait Local: Send {
    /// Reads at most `max` bytes (a hint where messages come whole).
    fn poll_read(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Read>>;

    /// Takes a prefix of `data` (advances it) without waiting. `Ready(Ok(()))` after progress, which need not be all.
    /// Pending registers the waker and leaves `data` as it was.
    fn poll_write(&mut self, cx: &mut Context<'_>, data: &mut Bytes) -> Poll<io::Result<()>>;

    /// Pushes what an own buffer holds (a TLS session's) towards the socket. Called once per turn after writes.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The peer sends no more, the connection goes on in the other direction (shutdown of the write side).
    fn poll_shutdown_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ends the local side. Called again until ready; after that it is dropped.
    fn poll_end(&mut self, cx: &mut Context<'_>, ending: &Ending) -> Poll<()>;
}
