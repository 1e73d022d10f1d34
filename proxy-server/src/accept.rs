//! A task for each connection of a listener, agents' and frontends'.
//!
//! Never looks at a connection.

use std::future::Future;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use transport::listen::{AcceptLoop, Source};

/// Accepts until `stop`, then closes the listener and waits for the connections that were accepted; none of their
/// tasks survives this future. `failed` hears of those that panicked.
pub(crate) async fn each<S: Source, F>(
    mut listener: AcceptLoop<S>,
    stop: &CancellationToken,
    serve: impl Fn(S::Conn) -> F,
    failed: fn(&JoinError),
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            connection = listener.accept() => {
                connections.spawn(serve(connection));
            }
            Some(ended) = connections.join_next() => ended.unwrap_or_else(|error| failed(&error)),
            () = stop.cancelled() => break,
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        ended.unwrap_or_else(|error| failed(&error));
    }
}
