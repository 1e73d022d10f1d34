//! Accepts connections, whatever errors an accept has.
//!
//! An accept can fail in two ways. If the connection died before it was accepted, nothing is wrong. If the process
//! lacks descriptors or memory, the listening socket stays readable, and a loop that simply retries would occupy a
//! core. This loop pauses.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

/// The pause after a failed accept: it costs next to nothing, and a listener resumes soon after descriptors are available.
const PAUSE: Duration = Duration::from_millis(100);

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

/// Accepts from a [`Source`], with pauses.
#[derive(Debug)]
pub struct AcceptLoop<S> {
    pub(super) source: S,
    /// The listener's name in logs.
    name: String,
    /// The end of the pause, while accepts fail for lack of a resource.
    resumes: Option<Instant>,
}

impl<S: Source> AcceptLoop<S> {
    /// `name` is the listener's address, for logs.
    pub fn new(source: S, name: impl Into<String>) -> Self {
        Self { source, name: name.into(), resumes: None }
    }

    /// The next connection. Cancel safe: no connection is lost, and a pause continues.
    pub async fn accept(&mut self) -> S::Conn {
        loop {
            if let Some(resumes) = self.resumes {
                sleep_until(resumes).await;
            }
            match poll_fn(|cx| self.source.poll_accept(cx)).await {
                Ok(conn) => {
                    if self.resumes.take().is_some() {
                        tracing::info!(listener = %self.name, "accepting connections again");
                    }
                    return conn;
                }
                // Errors of the connection that would have been accepted.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    if self.resumes.replace(Instant::now() + PAUSE).is_none() {
                        tracing::warn!(listener = %self.name, %error, "cannot accept connections; trying again until it works");
                    }
                }
            }
        }
    }
}
