//! The client set: one stream to every server replica, found through one address.
//!
//! [`machine`] has the rules, [`connect`] opens streams, [`set`] is the loop between them. A kept stream is handed
//! to a [`LinkRunner`]; nothing here knows packets, connections or endpoints.

pub mod connect;
pub mod machine;
pub mod metadata;
pub mod renewal;
pub mod set;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use relay::LinkEnd;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use transport::tls::Validity;
use transport::wire::{ConnectionHandle, WireStream};
use tunnel::Terms;

use crate::endpoint::Resolve;
use crate::link::{Life, Links, SuspectObserver};

pub use connect::{ConnectError, GrpcConnector, ServerAddress};
pub use machine::{CountSource, SyncSettings};
pub use metadata::AgentMetadata;
pub use set::{ClientSet, RunEnd, Servers};

/// How long the connection below a finished stream may take to end by itself.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// A stream that a server has answered.
#[derive(Debug)]
pub struct ConnectedStream<S> {
    /// The server's name for itself.
    pub server_id: Arc<str>,
    /// How many servers it says there are; believed only if the server is new.
    pub server_count: usize,
    /// When the certificate is valid that was shown to the server, if one was.
    pub shown: Option<Validity>,
    /// The stream with what is below it.
    pub stream: S,
}

/// Opens streams to whichever server the address leads to.
pub trait Connector: Send + Sync + 'static {
    /// The stream with what is below it.
    type Stream: Send + 'static;

    /// One try: a new TCP and TLS connection with one stream. Bounded in time by itself; dropping it ends it.
    fn connect(&self) -> impl Future<Output = Result<ConnectedStream<Self::Stream>, ConnectError>> + Send;

    /// Ends a stream that is not wanted, in order, and then its connection. Bounded in time.
    fn close(&self, stream: Self::Stream) -> impl Future<Output = ()> + Send;

    /// When the certificate is valid that the next try would show; `None` without one.
    fn own_validity(&self) -> Option<Validity>;
}

/// Carries connections over a stream until it ends.
pub trait LinkRunner<S>: Send + Sync + 'static {
    /// Runs until the stream has ended and everything that belonged to it; directed by `life`.
    fn run(&self, server_id: Arc<str>, stream: S, life: Life) -> impl Future<Output = LinkEnd> + Send;
}

/// A gRPC stream and the connection that carries it alone.
#[derive(Debug)]
pub struct GrpcStream {
    /// The stream.
    pub wire: WireStream,
    /// The server is one of ours.
    pub own: bool,
    /// What was agreed on with the server.
    pub terms: Terms,
    /// Its connection: ends when dropped.
    pub connection: ConnectionHandle,
}

impl<R: Resolve> LinkRunner<GrpcStream> for Links<R> {
    async fn run(&self, server_id: Arc<str>, stream: GrpcStream, life: Life) -> LinkEnd {
        let (own, told) = (stream.own, Arc::clone(&life.suspect));
        // A Go server is given a second stream only where there is no other way: when a certificate has aged.
        let _watch = own.then(|| {
            let unresponsive = stream.connection.pulse.unresponsive();
            AbortOnDropHandle::new(tokio::spawn(watch_server(unresponsive, told)))
        });
        let end = Links::run(self, server_id, stream.wire, stream.own, stream.terms, life).await;
        stream.connection.close(CLOSE_WITHIN).await;
        end
    }
}

/// Tells whenever the server ceases to answer, so that it gets another stream beside the one that may be dead, and whenever
/// it answers again.
async fn watch_server(mut unresponsive: watch::Receiver<bool>, told: SuspectObserver) {
    // What was known before this began to look counts as a change.
    unresponsive.mark_changed();
    let mut known = false;
    while unresponsive.changed().await.is_ok() {
        let unresponsive = *unresponsive.borrow_and_update();
        if std::mem::replace(&mut known, unresponsive) != unresponsive {
            told(unresponsive);
        }
    }
}
