//! Signals between a stream and its owner.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

/// What a stream shows about its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// It answers pings again.
    Responsive,
    /// It does not answer pings.
    Unresponsive,
    /// It has sent GOAWAY, or a proxy before it has: the stream continues, but may end soon.
    GoingAway,
    /// Its RTT is high.
    Distant,
    /// It tells this number of servers.
    Servers(usize),
}

/// Called at each change of the server's state.
pub type ServerObserver = Arc<dyn Fn(ServerState) + Send + Sync>;

/// The controls of one stream. Cheap to clone.
#[derive(Clone)]
pub struct LinkControl {
    /// Asks the server once for no new dials (DRAIN).
    pub drain: CancellationToken,
    /// Another stream has replaced this one: after its drain it ends in order once it is idle.
    pub retire: CancellationToken,
    /// Ends the stream in order.
    pub stop: CancellationToken,
    /// Called at each change.
    pub observer: ServerObserver,
}
