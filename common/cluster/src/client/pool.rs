//! Idle connections. They are few and short-lived, because rotated credentials and certificates apply to new
//! connections only.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::connect::Sender;

/// The highest number of idle connections.
const MAX_IDLE_CONNECTIONS: usize = 4;
/// The longest idle time of a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
/// The longest life of a connection: certificates, tokens of plug-ins and the addresses of a name change.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(300);

/// A connection with its age.
pub(super) struct Pooled {
    pub(super) sender: Sender,
    pub(super) born: Instant,
    /// It has carried a request before: the API server may have closed it since.
    pub(super) used: bool,
}

/// The idle connections.
#[derive(Default)]
pub(super) struct Pool(Mutex<Vec<(Pooled, Instant)>>);

impl Pool {
    /// A ready connection, the most recently used first.
    pub(super) fn take(&self) -> Option<Pooled> {
        let mut waiting = self.0.lock();
        let now = Instant::now();
        waiting.retain(|(pooled, since)| {
            !pooled.sender.is_closed()
                && now - *since < IDLE_TIMEOUT
                && now - pooled.born < MAX_CONNECTION_AGE
        });
        while let Some((pooled, _)) = waiting.pop() {
            if pooled.sender.is_ready() {
                return Some(pooled);
            }
        }
        None
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) fn put(&self, mut pooled: Pooled) {
        pooled.used = true;
        let mut waiting = self.0.lock();
        if waiting.len() < MAX_IDLE_CONNECTIONS && !pooled.sender.is_closed() {
            waiting.push((pooled, Instant::now()));
        }
    }

    /// Closes all idle connections.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}
