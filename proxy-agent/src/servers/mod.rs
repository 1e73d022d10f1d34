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
use tokio::time::{MissedTickBehavior, interval};
use transport::tls::Validity;
use transport::wire::{ConnectionHandle, Pulse, WireStream};
use tunnel::Terms;

use crate::endpoint::Resolve;
use crate::link::{Life, Links, SuspectObserver};

pub use connect::{ConnectError, GrpcConnector, ServerAddress};
pub use machine::{CountSource, SyncSettings};
pub use metadata::AgentMetadata;
pub use set::{ClientSet, RunEnd, Servers};

/// How long the connection below a finished stream may take to end by itself.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// A server that owes the answer to a ping for so long gets another stream beside the one that may be dead.
const SUSPECT_AFTER: Duration = Duration::from_secs(3);

/// Between looks at a stream's pulse.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
        let pulse = Arc::clone(&stream.connection.pulse);
        let suspicions = async {
            match own {
                true => watch_pulse(pulse, told).await,
                // A Go server is given a second stream only where there is no other way: when a certificate has aged.
                false => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            end = Links::run(self, server_id, stream.wire, stream.own, stream.terms, life) => end,
            never = suspicions => match never {},
        };
        stream.connection.close(CLOSE_WITHIN).await;
        end
    }
}

/// Tells whenever the peer begins, or ceases, to owe a sign of life for too long.
async fn watch_pulse(pulse: Arc<Pulse>, told: SuspectObserver) -> std::convert::Infallible {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut suspect = false;
    loop {
        looks.tick().await;
        let silent = pulse.unanswered_for().is_some_and(|silent| silent >= SUSPECT_AFTER);
        if silent != suspect {
            suspect = silent;
            told(suspect);
        }
    }
}
