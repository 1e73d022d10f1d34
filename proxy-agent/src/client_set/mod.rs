//! The client set: one stream to every server replica, reached through one address or through several.
//!
//! [`machine`] has the rules, [`connect`] opens streams, [`set`] is the loop that connects them. A kept stream is passed to a
//! [`LinkRunner`](crate::link::LinkRunner); nothing here knows packets, connections or endpoints.

pub mod addresses;
mod backoff;
pub mod connect;
pub(crate) mod identifiers;
#[cfg(test)]
mod lanes_tests;
pub mod machine;
pub mod metadata;
pub mod renewal;
pub mod set;
#[cfg(test)]
mod simulation;
mod streams;

use std::future::Future;
use std::sync::Arc;

use grpc::live_streams::LiveStreams;
use net::tls::Validity;

pub use addresses::{Address, Advertised, Leased, Resolved};
pub use connect::{ConnectError, ConnectStage, GrpcConnector, SERVER_DIAL_TIMEOUT, ServerAddress};
pub use machine::{CountSource, SyncSettings};
pub use metadata::AgentMetadata;
pub use set::{ClientSet, RunEnd, Servers};
pub use streams::ServerInfo;

/// A stream that a server has accepted.
#[derive(Debug)]
pub struct ConnectedStream<S> {
    /// The server's id.
    pub server_id: Arc<str>,
    /// The server's counts of servers and lanes.
    pub info: ServerInfo,
    /// The validity of the client certificate that the server received; `None` without one.
    pub presented: Option<Validity>,
    /// The stream with its connection.
    pub stream: S,
}

/// Opens streams to whichever server an address leads to.
pub trait Connector: Send + Sync + 'static {
    /// The stream with its connection.
    type Stream: Send + 'static;

    /// The entries of `--proxy-server-host` themselves, as addresses.
    fn entries(&self) -> Vec<Address>;

    /// Looks up the addresses of every entry of `--proxy-server-host`. Limited in time; dropping the future cancels it.
    fn resolve(&self) -> impl Future<Output = Vec<Resolved>> + Send;

    /// One attempt: a new TCP and TLS connection with one stream, whose name is sent to the server. Limited in time; dropping the
    /// future cancels it.
    fn connect(
        &self,
        address: &Address,
        streams: LiveStreams,
    ) -> impl Future<Output = Result<ConnectedStream<Self::Stream>, ConnectError>> + Send;

    /// Ends an unneeded stream in order, and then its connection. Limited in time.
    fn close(&self, stream: Self::Stream) -> impl Future<Output = ()> + Send;

    /// The validity of the client certificate for the next attempt; `None` without one.
    fn certificate_validity(&self) -> Option<Validity>;
}
