//! Accepts connections until the process stops.
//!
//! An accept can fail in two ways. If the connection died before it was accepted, nothing is wrong. If the process
//! lacks descriptors or memory, the listening socket stays readable, and a loop that simply retries would occupy a
//! core. This loop waits, and doubles its pause.
//!
//! Never here: an end because of an error. The loop ends only when it is told to.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The first pause after a failed accept: long enough to cost next to nothing, short enough to be unnoticed if a
/// descriptor was freed at once.
const ACCEPT_BACKOFF_FIRST: Duration = Duration::from_millis(5);

/// The longest pause between accepts. A listener resumes within this time after descriptors are available.
const ACCEPT_BACKOFF_MOST: Duration = Duration::from_secs(1);

/// A source of connections.
pub trait Source {
    /// The type of a connection.
    type Conn;

    /// The next connection, or the error of the accept.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Conn>>;
}

impl Source for TcpListener {
    type Conn = (TcpStream, SocketAddr);

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Conn>> {
        TcpListener::poll_accept(self, cx)
    }
}

/// Accepts from a [`Source`], with back-off.
#[derive(Debug)]
pub struct AcceptLoop<S> {
    source: S,
    /// The listener's name in logs.
    name: String,
    episode: Option<Episode>,
}

/// A period in which accepts fail for lack of a resource.
#[derive(Debug)]
struct Episode {
    pause: Duration,
    /// The time of the next attempt.
    until: Instant,
    failures: u64,
}

impl<S: Source> AcceptLoop<S> {
    /// `name` is the listener's address, for logs.
    pub fn new(source: S, name: impl Into<String>) -> Self {
        Self { source, name: name.into(), episode: None }
    }

    /// The source, for its address.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The next connection. Cancel safe: no connection is lost, and a pause continues.
    pub async fn accept(&mut self) -> S::Conn {
        loop {
            if let Some(episode) = &self.episode {
                tokio::time::sleep_until(episode.until).await;
            }
            match poll_fn(|cx| self.source.poll_accept(cx)).await {
                Ok(conn) => {
                    self.recovered();
                    return conn;
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => self.failed(&error),
            }
        }
    }

    /// Passes every connection to `on_connection`, which must not block, until `stop`; then closes the listener at
    /// once.
    pub async fn run(mut self, stop: CancellationToken, mut on_connection: impl FnMut(S::Conn)) {
        while let Some(conn) = stop.run_until_cancelled(self.accept()).await {
            on_connection(conn);
        }
    }

    fn failed(&mut self, error: &io::Error) {
        let (pause, failures) = match &self.episode {
            Some(episode) => ((episode.pause * 2).min(ACCEPT_BACKOFF_MOST), episode.failures + 1),
            None => {
                tracing::warn!(listener = %self.name, %error, "cannot accept connections; trying again until it works");
                (ACCEPT_BACKOFF_FIRST, 1)
            }
        };
        self.episode = Some(Episode { pause, until: Instant::now() + pause, failures });
    }

    fn recovered(&mut self) {
        if let Some(episode) = self.episode.take() {
            tracing::info!(listener = %self.name, failures = episode.failures, "accepting connections again");
        }
    }
}

/// Errors of the connection that would have been accepted: accept(2) returns its network errors. Any other error counts
/// as a lack of resources, because a pause is harmless.
fn is_of_one_connection(error: &io::Error) -> bool {
    let Some(errno) = Errno::from_io_error(error) else {
        return false;
    };
    matches!(
        errno,
        Errno::CONNABORTED
            | Errno::CONNRESET
            | Errno::INTR
            | Errno::PROTO
            | Errno::PERM
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NOPROTOOPT
            | Errno::TIMEDOUT
    )
}
