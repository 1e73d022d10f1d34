//! A value that is replaced while it is in use.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// The newest version of a configuration. A user of an older version keeps it until it is done.
#[derive(Debug)]
pub struct Reloadable<T> {
    current: ArcSwap<T>,
}

impl<T> Reloadable<T> {
    /// Starts with `value`.
    pub fn new(value: T) -> Self {
        Self { current: ArcSwap::from_pointee(value) }
    }

    /// The newest value.
    pub fn load(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Replaces the value for later calls of [`Reloadable::load`].
    pub fn store(&self, value: T) {
        self.current.store(Arc::new(value));
    }
}
