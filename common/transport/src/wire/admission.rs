//! Whether the peer of a connection has had an accepted stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a stream of a connection was ever accepted. Refused streams do not count, because any peer can open them.
/// Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Admission(Arc<AtomicBool>);

impl Admission {
    /// Records that a stream was accepted. The response that follows wakes the connection's driver.
    pub(super) fn grant(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether a stream was accepted. Never becomes false again.
    pub fn is_granted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
