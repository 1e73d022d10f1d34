//! Accepts connections, whatever errors an accept has.
//!
//! An accept can fail in two ways. If the connection died before it was accepted, nothing is wrong. If the process
//! lacks descriptors or memory, the listening socket stays readable, and a loop that simply retries would occupy a
//! core. This loop pauses. It does the same while only descriptors are left that are reserved for others ([`Priority`]).

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

use super::Priority;

/// The pause after a failed accept: it costs next to nothing, and a listener resumes soon after descriptors are available.
const PAUSE: Duration = Duration::from_millis(100);

/// The shortest interval between lines about failed accepts: a burst of clients causes one shortage after another.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// A source of connections.
pub trait Source {
    /// The type of a connection.
    type Conn;

    /// The next connection, or the error of the accept.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Conn>>;

    /// The number of a connection's descriptor.
    fn number(conn: &Self::Conn) -> RawFd;
}

impl Source for TcpListener {
    type Conn = (TcpStream, SocketAddr);

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Conn>> {
        TcpListener::poll_accept(self, cx)
    }

    fn number((stream, _): &Self::Conn) -> RawFd {
        stream.as_raw_fd()
    }
}

/// Accepts from a [`Source`], with pauses.
#[derive(Debug)]
pub struct AcceptLoop<S: Source> {
    pub(super) source: S,
    /// The listener's name in logs.
    name: String,
    /// The end of the pause, while accepts fail for lack of a resource.
    resumes: Option<Instant>,
    /// The time of the last line about failed accepts, and whether their end is still to be logged.
    warned: Option<Instant>,
    is_warned: bool,
    priority: Priority,
    /// An accepted connection whose descriptor is reserved for others.
    waits: Option<S::Conn>,
}

impl<S: Source> AcceptLoop<S> {
    /// `name` is the listener's address, for logs.
    pub fn new(source: S, name: impl Into<String>) -> Self {
        let (resumes, warned, is_warned, priority, waits) = (None, None, false, Priority::Program, None);
        Self { source, name: name.into(), resumes, warned, is_warned, priority, waits }
    }

    /// A connection waits while only descriptors are left that this priority may not have.
    #[must_use]
    pub fn of(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// The next connection. Cancel safe: no connection is lost, and a pause continues.
    pub async fn accept(&mut self) -> S::Conn {
        loop {
            if let Some(resumes) = self.resumes {
                sleep_until(resumes).await;
            }
            match self.next().await {
                Ok(conn) => {
                    self.resumes = None;
                    if std::mem::take(&mut self.is_warned) {
                        tracing::info!(listener = %self.name, "accepting connections again");
                    }
                    return conn;
                }
                // Errors of the connection that would have been accepted.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    let now = Instant::now();
                    self.resumes = Some(now + PAUSE);
                    if self.warned.is_none_or(|at| now >= at + LOG_EVERY) && !self.is_warned {
                        (self.warned, self.is_warned) = (Some(now), true);
                        tracing::warn!(listener = %self.name, %error, "cannot accept connections; trying again until it works");
                    }
                }
            }
        }
    }

    /// The next connection that may have its descriptor.
    async fn next(&mut self) -> io::Result<S::Conn> {
        let waited = self.waits.take();
        let has_room = waited.is_some() && self.priority.has_room();
        let conn = match waited {
            Some(conn) => conn,
            None => poll_fn(|cx| self.source.poll_accept(cx)).await?,
        };
        if has_room || self.priority.may_have(S::number(&conn)) {
            return Ok(conn);
        }
        self.waits = Some(conn);
        Err(Errno::MFILE.into())
    }
}
