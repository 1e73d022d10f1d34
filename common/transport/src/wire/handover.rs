//! What streams leave behind for the task that drives their connection.

use std::task::{Context, Waker};

use parking_lot::Mutex;

/// Between the streams of a connection and the task that drives it. The lock is never held over h2, which wakes tasks.
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
    /// Leaves a thing, and wakes the driver if it waits.
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

    /// What was left since the last time, in its order. The driver, whose turn this is, is woken for what comes next.
    pub(super) fn take(&self, cx: &Context<'_>) -> Vec<T> {
        let mut left = self.0.lock();
        match &mut left.driver {
            Some(driver) => driver.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        std::mem::take(&mut left.things)
    }
}
