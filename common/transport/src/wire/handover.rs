//! Objects that streams leave to the task that drives their connection.

use std::task::{Context, Waker};

use parking_lot::Mutex;

/// Shared by the streams of a connection and the task that drives it. The lock is never held during calls of h2, which
/// wakes tasks.
#[derive(Debug)]
pub(super) struct Handover<T>(Mutex<Left<T>>);

#[derive(Debug)]
struct Left<T> {
    things: Vec<T>,
    driver: Option<Waker>,
}

impl<T> Default for Handover<T> {
    fn default() -> Self {
        Handover(Mutex::new(Left { things: Vec::new(), driver: None }))
    }
}

impl<T> Handover<T> {
    /// Adds an object, and wakes the driver if it waits.
    pub(super) fn leave(&self, thing: T) {
        let driver = {
            let mut left = self.0.lock();
            left.things.push(thing);
            left.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// The objects added since the last call, in order. Registers the driver's waker for the next one.
    pub(super) fn take(&self, cx: &Context<'_>) -> Vec<T> {
        let mut left = self.0.lock();
        match &mut left.driver {
            Some(driver) => driver.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        std::mem::take(&mut left.things)
    }
}
