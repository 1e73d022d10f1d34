//! What may happen to a stream from outside, and what it has to say about itself.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

/// Told whether the server of a stream does not answer pings.
pub type SuspectObserver = Arc<dyn Fn(bool) + Send + Sync>;

/// The course of one stream's life. Cheap to clone.
#[derive(Clone)]
pub struct Life {
    /// Asks the server, once, for no new dials.
    pub drain: CancellationToken,
    /// Another stream has taken its place: once it drains, it ends in order when nothing goes on in it any more.
    pub retire: CancellationToken,
    /// Ends the stream in order.
    pub stop: CancellationToken,
    /// Called at each change.
    pub suspect: SuspectObserver,
}

impl std::fmt::Debug for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Life")
            .field("draining", &self.drain.is_cancelled())
            .field("retiring", &self.retire.is_cancelled())
            .field("stopping", &self.stop.is_cancelled())
            .finish_non_exhaustive()
    }
}
