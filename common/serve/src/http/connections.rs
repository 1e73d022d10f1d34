//! The connection limit of a port: tracks each connection's activity, and chooses which one is closed at the limit.
//!
//! A new connection never waits, because a probe gives up after a second. Connections without a request in progress are
//! closed first, the longest idle one first, so that a new connection has time to send its request; then the one whose
//! answer takes longest. They are aborted without notice, because a client that sends half a head would not react.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

/// A connection's activity, and its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionStatus {
    pub(super) phase: Phase,
    since: Instant,
}

/// ```text
///   Waiting ── head received ──▶ Answering ── answer complete ──▶ Sending
///      ▲                                                             │
///      └────────── the kernel has accepted the whole answer ─────────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waiting for a request's head, or for the rest of it.
    Waiting,
    /// The server prepares the answer.
    Answering,
    /// The client reads the answer.
    Sending,
}

impl Phase {
    /// This activity, starting now.
    pub(super) fn now(self) -> ConnectionStatus {
        ConnectionStatus { phase: self, since: Instant::now() }
    }
}

/// The connections of a port.
#[derive(Debug)]
pub(super) struct ConnectionSet {
    most: usize,
    tasks: JoinSet<()>,
    open: Vec<(watch::Receiver<ConnectionStatus>, AbortHandle)>,
}

impl ConnectionSet {
    /// At most `most` connections, above zero.
    pub(super) fn new(most: usize) -> Self {
        Self { most, tasks: JoinSet::new(), open: Vec::new() }
    }

    /// Adds a connection. At the limit another one is closed.
    pub(super) fn insert(
        &mut self,
        status: watch::Receiver<ConnectionStatus>,
        connection: impl Future<Output = ()> + Send + 'static,
    ) {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|(_, connection)| !connection.is_finished());
        if self.open.len() >= self.most {
            let order = |status: ConnectionStatus| (status.phase != Phase::Waiting, status.since);
            let slots = self.open.iter().enumerate();
            let first = slots.min_by_key(|(_, (status, _))| order(*status.borrow())).map(|(slot, _)| slot);
            if let Some(slot) = first {
                self.open.swap_remove(slot).1.abort();
            }
        }
        let connection = self.tasks.spawn(connection);
        self.open.push((status, connection));
    }

    /// Returns true when a connection has ended; false at once if there is none.
    pub(super) async fn next_closed(&mut self) -> bool {
        self.tasks.join_next().await.is_some()
    }
}

/// Returns when a client has not read its answer within this time.
pub(super) async fn not_taken(mut status: watch::Receiver<ConnectionStatus>, within: Duration) {
    loop {
        // The sender lives as long as the connection, and so does this future.
        let began = status.wait_for(|status| status.phase == Phase::Sending).await.map(|status| status.since);
        let Ok(began) = began else { return };
        let taken = status.wait_for(|status| status.phase != Phase::Sending || status.since != began);
        if timeout(within, taken).await.is_err() {
            return;
        }
    }
}

/// A socket that records when the kernel has accepted the whole answer.
#[derive(Debug)]
pub(super) struct StatusStream {
    stream: TcpStream,
    status: watch::Sender<ConnectionStatus>,
}

impl StatusStream {
    pub(super) fn new(stream: TcpStream, status: watch::Sender<ConnectionStatus>) -> Self {
        Self { stream, status }
    }
}

impl AsyncRead for StatusStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for StatusStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    /// hyper flushes the socket when it has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.status.borrow().phase == Phase::Sending {
            self.status.send_replace(Phase::Waiting.now());
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tokio::sync::oneshot;

    use super::*;

    /// A connection with this activity until it is aborted, and a receiver that reports the abort.
    fn connection(
        phase: Phase,
    ) -> (watch::Sender<ConnectionStatus>, oneshot::Receiver<()>, impl Future<Output = ()>) {
        let (alive, news) = oneshot::channel();
        let future = async move {
            std::future::pending::<()>().await;
            drop(alive);
        };
        (watch::Sender::new(phase.now()), news, future)
    }

    /// Idle connections are closed before those with a request, then the oldest; a new connection never waits.
    #[tokio::test]
    async fn each_new_connection_evicts_one() {
        let mut connections = ConnectionSet::new(3);
        let mut news = HashMap::new();
        let mut notes = HashMap::new();
        let mut insert = |name: &'static str, phase| {
            let (note, gone, future) = connection(phase);
            connections.insert(note.subscribe(), future);
            news.insert(name, gone);
            notes.insert(name, note);
            assert!(connections.open.len() <= 3);
        };
        insert("answered first", Phase::Answering);
        insert("waits first", Phase::Waiting);
        insert("waits then", Phase::Waiting);
        insert("stalls", Phase::Sending);
        insert("answered last", Phase::Answering);
        insert("comes last", Phase::Waiting);
        for name in ["waits first", "waits then", "answered first"] {
            let gone = news.remove(name).expect("was seated");
            assert!(gone.await.is_err(), "{name} was cut off");
        }
        for (name, mut stays) in news {
            assert_eq!(stays.try_recv(), Err(oneshot::error::TryRecvError::Empty), "{name} stays");
        }
    }

    #[tokio::test]
    async fn closed_connections_leave_no_memory_while_others_arrive() {
        let mut connections = ConnectionSet::new(2);
        for _ in 0..100 {
            connections.insert(watch::Sender::new(Phase::Waiting.now()).subscribe(), std::future::ready(()));
            tokio::task::yield_now().await;
        }
        assert!(connections.tasks.len() <= 2, "{}", connections.tasks.len());
    }

    #[tokio::test]
    async fn closed_connection_leaves_its_slot() {
        let mut connections = ConnectionSet::new(2);
        let (note, mut stays, future) = connection(Phase::Waiting);
        connections.insert(note.subscribe(), future);
        connections.insert(watch::Sender::new(Phase::Waiting.now()).subscribe(), std::future::ready(()));
        assert!(connections.next_closed().await);
        connections.insert(watch::Sender::new(Phase::Waiting.now()).subscribe(), std::future::ready(()));
        assert!(connections.next_closed().await);
        assert_eq!(stays.try_recv(), Err(oneshot::error::TryRecvError::Empty), "it was not evicted");
    }
}
