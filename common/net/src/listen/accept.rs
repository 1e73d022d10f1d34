//! Accepts connections, whatever errors an accept has.
//!
//! An accept can fail in two ways. If the connection died before it was accepted, nothing is wrong. If the process
//! lacks descriptors or memory, the listening socket stays readable, and a loop that simply retries would occupy a
//! core. This loop pauses. It does the same while only descriptors are left that are reserved for others ([`Priority`]);
//! clients then wait in the kernel's queue.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

use super::Priority;

/// The pause after a failed accept: it costs next to nothing, and a listener resumes soon after descriptors are available.
const PAUSE: Duration = Duration::from_millis(100);

/// The interval between lines about failed accepts, while they last. No line says that they ended: a burst of clients causes
/// one shortage after another.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// A source of connections.
pub trait Source {
    /// The type of a connection.
    type Conn;

    /// The next connection, or the error of the accept.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Conn>>;

    /// Does checks that are due even while nothing is accepted. Called before each accept, for busy listeners too.
    fn maintain(&mut self, _: &mut Context<'_>) {}
}

impl Source for TcpListener {
    type Conn = (TcpStream, SocketAddr);

    /// The address of an IPv4 peer is IPv4, even if the listener has both families.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Conn>> {
        TcpListener::poll_accept(self, cx)
            .map_ok(|(stream, peer)| (stream, SocketAddr::new(peer.ip().to_canonical(), peer.port())))
    }
}

/// Accepts from a [`Source`], with pauses.
#[derive(Debug)]
pub struct AcceptLoop<S> {
    pub(super) source: S,
    /// The listener's name in logs.
    name: String,
    /// The priority of its sockets; `None` if it may have every descriptor, or makes none.
    priority: Option<Priority>,
    /// There was a descriptor for the next connection when it was last looked for; others may have taken it since.
    has_room: bool,
    /// The end of the pause, while accepts fail for lack of a resource.
    resumes: Option<Instant>,
    /// The time of the last line about failed accepts.
    warned: Option<Instant>,
}

impl<S: Source> AcceptLoop<S> {
    /// `name` is the listener's address, for logs.
    pub fn new(source: S, name: impl Into<String>) -> Self {
        Self { source, name: name.into(), priority: None, has_room: false, resumes: None, warned: None }
    }

    /// Accepts nothing while only descriptors are left that this priority may not have.
    #[must_use]
    pub fn with_priority(self, priority: Priority) -> Self {
        Self { priority: Some(priority), ..self }
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
                    return conn;
                }
                // Errors of the connection that would have been accepted.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    let now = Instant::now();
                    self.resumes = Some(now + PAUSE);
                    if self.warned.is_none_or(|at| now >= at + LOG_EVERY) {
                        self.warned = Some(now);
                        tracing::warn!(listener = %self.name, %error, "cannot accept connections; trying again until it works");
                    }
                }
            }
        }
    }

    async fn next(&mut self) -> io::Result<S::Conn> {
        // Before the accept, because a connection keeps its number: one that is accepted now would be refused later.
        self.has_room = self.has_room || self.priority.is_none_or(Priority::may_open);
        let accepted = poll_fn(|cx| {
            self.source.maintain(cx);
            if self.has_room { self.source.poll_accept(cx) } else { Poll::Ready(Err(Errno::MFILE.into())) }
        })
        .await;
        self.has_room = false;
        accepted
    }
}
