//! Objects that streams leave to the task that drives their connection.

use std::task::{Context, Waker};

use parking_lot::Mutex;

/// Shared by the streams of a connection and the task that drives it. The lock is never held during calls of h2, which
/// wakes tasks.
#[derive(Debug)]
pub(super) struct Mailbox<T>(Mutex<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    items: Vec<T>,
    driver: Option<Waker>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Mailbox(Mutex::new(Inner { items: Vec::new(), driver: None }))
    }
}

impl<T> Mailbox<T> {
    /// Adds an object, and wakes the driver if it waits.
    pub(super) fn push(&self, item: T) {
        let driver = {
            let mut inner = self.0.lock();
            inner.items.push(item);
            inner.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// The objects added since the last call, in order. Registers the driver's waker for the next one.
    pub(super) fn take(&self, cx: &Context<'_>) -> Vec<T> {
        let mut inner = self.0.lock();
        match &mut inner.driver {
            Some(driver) => driver.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        std::mem::take(&mut inner.items)
    }
}
