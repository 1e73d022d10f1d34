//! The client set: one stream to every server replica, found through one address.
//!
//! [`machine`] has the rules, [`connect`] opens streams, [`set`] is the loop between them. A kept stream is handed
//! to a [`LinkRunner`]; nothing here knows packets, connections or endpoints.

pub mod connect;
pub mod machine;
pub mod metadata;
pub mod set;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use relay::LinkEnd;
use tokio_util::sync::CancellationToken;
use transport::wire::{ConnectionHandle, WireStream};

use crate::endpoint::Resolve;
use crate::link::Links;

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
}

/// Carries connections over a stream until it ends.
pub trait LinkRunner<S>: Send + Sync + 'static {
    /// Runs until the stream has ended and everything that belonged to it. `drain`: ask the server, once, for no
    /// new dials. `stop`: end the stream in order.
    fn run(
        &self,
        server_id: Arc<str>,
        stream: S,
        drain: CancellationToken,
        stop: CancellationToken,
    ) -> impl Future<Output = LinkEnd> + Send;
}

/// A gRPC stream and the connection that carries it alone.
#[derive(Debug)]
pub struct GrpcStream {
    /// The stream.
    pub wire: WireStream,
    /// Its connection: ends when dropped.
    pub connection: ConnectionHandle,
}

impl<R: Resolve> LinkRunner<GrpcStream> for Links<R> {
    async fn run(
        &self,
        server_id: Arc<str>,
        stream: GrpcStream,
        drain: CancellationToken,
        stop: CancellationToken,
    ) -> LinkEnd {
        let end = Links::run(self, server_id, stream.wire, drain, stop).await;
        stream.connection.close(CLOSE_WITHIN).await;
        end
    }
}
