//! Signals between a stream and its owner.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

/// Called when the server of a stream stops answering pings, and when it answers again.
pub type UnresponsiveObserver = Arc<dyn Fn(bool) + Send + Sync>;

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
    pub unresponsive: UnresponsiveObserver,
}

impl std::fmt::Debug for LinkControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkControl")
            .field("draining", &self.drain.is_cancelled())
            .field("retiring", &self.retire.is_cancelled())
            .field("stopping", &self.stop.is_cancelled())
            .finish_non_exhaustive()
    }
}
