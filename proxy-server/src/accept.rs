//! Accepts the connections of one listener, of agents or of frontends, and spawns a task for each, until the server stops. Never
//! reads from a connection.

use std::future::Future;

use net::listen::{AcceptLoop, Source};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks that a shutdown waits for, and the tokens of its phases.
#[derive(Debug, Clone, Default)]
pub struct Lifetimes {
    /// Counts dials and connections, each from before its dial until its client's socket or stream is closed.
    pub connections: TaskTracker,
    /// Canceled when a shutdown begins: readiness fails, a Unix socket leaves its address to a successor, and HTTP/2 clients get
    /// GOAWAY, so that they open new connections, to a successor if one listens, or to this server.
    pub draining: CancellationToken,
    /// Canceled after that: listeners close, and agent streams end with status OK, without GOAWAY.
    pub stop: CancellationToken,
}

/// Accepts until `stop`, then closes the listener and waits for the tasks of the accepted connections; none of them outlives this
/// future. If it is dropped, dials of HTTP/2 connections end with their streams. The panic hook has reported a task that panicked.
pub(crate) async fn each<S: Source, F>(
    mut listener: AcceptLoop<S>,
    stop: &CancellationToken,
    serve: impl Fn(S::Conn) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            connection = listener.accept() => {
                connections.spawn(serve(connection));
            }
            Some(_) = connections.join_next() => {}
            () = stop.cancelled() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}
