//! Bounds on peers of whom nothing is known yet.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::limits::{HANDSHAKE_LIMIT, HANDSHAKES_IN_FLIGHT};
use crate::tls::HandshakeError;

/// Lets a bounded number of handshakes run, each for a bounded time. Clones share the bound.
#[derive(Debug, Clone)]
pub struct HandshakeGate {
    turns: Arc<Semaphore>,
    limit: Duration,
}

impl Default for HandshakeGate {
    fn default() -> Self {
        Self::new(HANDSHAKES_IN_FLIGHT, HANDSHAKE_LIMIT)
    }
}

impl HandshakeGate {
    /// `in_flight` handshakes at once, each done within `limit` of its call.
    pub fn new(in_flight: usize, limit: Duration) -> Self {
        Self { turns: Arc::new(Semaphore::new(in_flight)), limit }
    }

    /// Runs one handshake. Waiting for a turn counts into the limit: whoever blocks the gate came
    /// earlier and leaves earlier, and nobody waits for longer than a peer would have patience.
    ///
    /// # Errors
    /// The handshake's own, and [`HandshakeError::Timeout`].
    pub async fn run<T, E>(&self, handshake: impl Future<Output = Result<T, E>>) -> Result<T, HandshakeError>
    where
        E: Into<HandshakeError>,
    {
        let turn_and_handshake = async {
            // The semaphore is never closed, so that a failure here cannot be; going on is harmless.
            let _turn = self.turns.acquire().await;
            handshake.await.map_err(Into::into)
        };
        tokio::time::timeout(self.limit, turn_and_handshake)
            .await
            .unwrap_or(Err(HandshakeError::Timeout(self.limit)))
    }
}
