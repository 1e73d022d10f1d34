//! The client set: one stream to every server replica, reached through one address or through several.
//!
//! [`machine`] has the rules, [`connect`] opens streams, [`set`] is the loop that connects them. A kept stream is passed to a
//! [`LinkRunner`]; nothing here knows packets, connections or endpoints.

pub mod addresses;
pub mod connect;
pub(crate) mod identifiers;
#[cfg(test)]
mod lanes;
pub mod machine;
pub mod metadata;
mod pace;
pub mod renewal;
pub mod set;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod stream_tests;
mod streams;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use driver::LinkEnd;
use grpc::live_streams::LiveStreams;
use grpc::{ConnectionHandle, KeepaliveHandle, WireStream};
use mux::Negotiated;
use net::tls::Validity;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::endpoint::Resolve;
use crate::link::{LinkControl, Links, Origin, ServerState};

pub use addresses::{Address, Advertised, Leased, Resolved};
pub use connect::{ConnectError, ConnectStage, DIAL_LIMIT, GrpcConnector, ServerAddress};
pub use machine::{CountSource, SyncSettings};
pub use metadata::AgentMetadata;
pub use set::{ClientSet, RunEnd, Servers};
pub use streams::Told;

/// A server with a higher RTT gets more lanes: one lost packet holds up a lane for an RTT.
const HIGH_RTT: Duration = Duration::from_millis(10);

/// How often a new stream is asked for its RTT until it is measured.
const RTT_EVERY: Duration = Duration::from_secs(1);

/// How long the connection below a finished stream may take to end by itself.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// The same for a replaced stream. A congested path may still hold its last bytes, and the set names it to servers meanwhile:
/// a server cuts the streams that are no longer named.
const REPLACED_CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// A stream that a server has accepted.
#[derive(Debug)]
pub struct ConnectedStream<S> {
    /// The server's id.
    pub server_id: Arc<str>,
    /// The server's counts of servers and lanes.
    pub told: Told,
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

    /// One attempt: a new TCP and TLS connection with one stream, which the server is told the name of. Limited in time; dropping
    /// the future cancels it.
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

/// Serves a stream until it ends.
pub trait LinkRunner<S>: Send + Sync + 'static {
    /// Runs until the stream and its connections have ended; controlled by `control`.
    fn run(
        self: Arc<Self>,
        server_id: Arc<str>,
        stream: S,
        control: LinkControl,
    ) -> impl Future<Output = LinkEnd> + Send + 'static;
}

/// A gRPC stream, and the connection that carries only this stream.
#[derive(Debug)]
pub struct GrpcStream {
    /// The stream.
    pub wire: WireStream,
    /// The server is a native peer.
    pub native: bool,
    /// The server's address with its port.
    pub address: String,
    /// The negotiated terms.
    pub negotiated: Negotiated,
    /// The connection; it ends when this is dropped.
    pub connection: ConnectionHandle,
}

impl<R: Resolve> LinkRunner<GrpcStream> for Links<R> {
    async fn run(self: Arc<Self>, server_id: Arc<str>, stream: GrpcStream, control: LinkControl) -> LinkEnd {
        let (keepalive, going_away) =
            (Arc::clone(&stream.connection.keepalive), stream.connection.going_away.clone());
        let watch = watch_server(keepalive, going_away, control.clone());
        let _watch = AbortOnDropHandle::new(tokio::spawn(watch));
        let keepalive = Some(Arc::clone(&stream.connection.keepalive));
        let origin = Origin { address: stream.address, keepalive };
        let (native, negotiated, stop) = (stream.native, stream.negotiated, control.stop.clone());
        let end = Links::run(&self, server_id, stream.wire, native, negotiated, origin, control).await;
        match end {
            LinkEnd::Stopped => {
                let stopped = async {
                    stop.cancelled().await;
                    sleep(CLOSE_WITHIN).await;
                };
                tokio::select! {
                    () = stream.connection.close(REPLACED_CLOSE_WITHIN) => {}
                    () = stopped => {}
                }
            }
            LinkEnd::Finished | LinkEnd::Failed(_) => stream.connection.close(CLOSE_WITHIN).await,
        }
        end
    }
}

/// Reports the states of the server, so that the set opens a replacement stream. Once it is open, the silence of this one means
/// that its connection is half-open.
async fn watch_server(keepalive: Arc<KeepaliveHandle>, going_away: CancellationToken, control: LinkControl) {
    let mut unresponsive = keepalive.unresponsive();
    // A change before the first `changed` call must count, too.
    unresponsive.mark_changed();
    let (mut known, mut replaced) = (ServerState::Responsive, false);
    let (measured, mut is_measured) = (sleep(RTT_EVERY), false);
    tokio::pin!(measured);
    loop {
        let state = tokio::select! {
            () = control.retire.cancelled(), if !replaced => {
                replaced = true;
                keepalive.supersede();
                continue;
            }
            () = &mut measured, if !is_measured => {
                measured.as_mut().reset(Instant::now() + RTT_EVERY);
                let rtt = keepalive.rtt();
                is_measured = rtt.is_some();
                if rtt.is_some_and(|rtt| rtt > HIGH_RTT) {
                    (control.observer)(ServerState::Distant);
                }
                continue;
            }
            () = going_away.cancelled(), if known != ServerState::GoingAway => ServerState::GoingAway,
            Ok(()) = unresponsive.changed(), if known != ServerState::GoingAway => {
                match *unresponsive.borrow_and_update() {
                    true => ServerState::Unresponsive,
                    false => ServerState::Responsive,
                }
            }
            else => return,
        };
        if std::mem::replace(&mut known, state) != state {
            (control.observer)(state);
        }
    }
}
