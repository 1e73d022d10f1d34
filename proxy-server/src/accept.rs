//! Accepts the connections of one listener, of agents or of frontends, and spawns a task for each. Never reads from a connection.

use std::future::Future;

use net::listen::{AcceptLoop, Source};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Accepts until `stop`, then closes the listener and waits for the tasks of the accepted connections; no task outlives this
/// future. The panic hook has reported a task that panicked.
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
