//! Connections that wait for their next request. Few, and none for long: what rotates comes into force with a new one.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::connect::Sender;

/// Connections that wait.
const IDLE: usize = 4;
/// How long one may wait.
const IDLE_LIMIT: Duration = Duration::from_secs(50);
/// How long one is used: certificates, tokens of plug-ins and addresses behind a name change.
const AGE_LIMIT: Duration = Duration::from_secs(300);

/// A connection with its age.
pub(super) struct Pooled {
    pub(super) sender: Sender,
    pub(super) born: Instant,
    /// It has carried a request before: the API server may have closed it since.
    pub(super) used: bool,
}

/// The connections that wait.
#[derive(Default)]
pub(super) struct Pool(Mutex<Vec<(Pooled, Instant)>>);

impl Pool {
    /// One that is ready, the latest used first.
    pub(super) fn take(&self) -> Option<Pooled> {
        let mut waiting = self.0.lock();
        let now = Instant::now();
        waiting.retain(|(pooled, since)| {
            !pooled.sender.is_closed() && now - *since < IDLE_LIMIT && now - pooled.born < AGE_LIMIT
        });
        while let Some((pooled, _)) = waiting.pop() {
            if pooled.sender.is_ready() {
                return Some(pooled);
            }
        }
        None
    }

    /// Keeps one whose answer was read to its end.
    pub(super) fn put(&self, mut pooled: Pooled) {
        pooled.used = true;
        let mut waiting = self.0.lock();
        if waiting.len() < IDLE && !pooled.sender.is_closed() {
            waiting.push((pooled, Instant::now()));
        }
    }

    /// Closes all that wait.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}
