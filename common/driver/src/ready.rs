//! The connections that have work to do: a waker for each, one list, one task.
//!
//! No wake-up is lost because the task takes the list, and clears a connection's mark *before* it polls the socket. A
//! later wake-up marks the connection again and wakes the task.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use mux::ConnKey;
use parking_lot::Mutex;

/// The list of one link's task.
#[derive(Debug, Default)]
pub(crate) struct ReadyList(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    ready: Vec<Arc<ConnWaker>>,
    task: Option<Waker>,
}

/// One connection's mark on the list. As a [`Waker`] it is registered with the connection's sockets.
#[derive(Debug)]
pub(crate) struct ConnWaker {
    /// The marked connection.
    pub(crate) key: ConnKey,
    listed: AtomicBool,
    /// Weak, because the list holds marks.
    list: Weak<ReadyList>,
}

impl ConnWaker {
    pub(crate) fn new(list: &Arc<ReadyList>, key: ConnKey) -> Arc<Self> {
        Arc::new(ConnWaker { key, listed: AtomicBool::new(false), list: Arc::downgrade(list) })
    }

    /// Clears the mark. Call this before polling the sockets. A swap, so that the polls see what was written before a wake-up
    /// that found the mark.
    pub(crate) fn clear_listed(&self) {
        self.listed.swap(false, Ordering::AcqRel);
    }
}

impl Wake for ConnWaker {
    fn wake(self: Arc<Self>) {
        Wake::wake_by_ref(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(list) = self.list.upgrade() else { return };
        let task = {
            let mut inner = list.0.lock();
            inner.ready.push(Arc::clone(self));
            inner.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl ReadyList {
    /// Appends the ready connections to `into`, and registers `task` for the next wake-up.
    pub(crate) fn take(&self, task: &Waker, into: &mut VecDeque<Arc<ConnWaker>>) {
        let mut inner = self.0.lock();
        into.extend(inner.ready.drain(..));
        match &inner.task {
            Some(known) if known.will_wake(task) => {}
            _ => inner.task = Some(task.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use mux::{Limits, Link, Negotiated, Server};

    use super::*;

    fn key() -> ConnKey {
        let mut link: Link<Server, usize> = Link::new(Limits::default(), Negotiated::default());
        link.dial("tcp", "a:1", None).unwrap()
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn wake_up_between_clear_and_poll_is_not_lost() {
        let list = Arc::new(ReadyList::default());
        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let conn_waker = ConnWaker::new(&list, key());
        let waker = Waker::from(Arc::clone(&conn_waker));
        let mut ready = VecDeque::new();

        list.take(&task, &mut ready);
        assert!(ready.is_empty());
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "one wake-up of the task for one listing");
        list.take(&task, &mut ready);
        assert_eq!(ready.iter().map(|conn_waker| conn_waker.key).collect::<Vec<_>>(), [key()]);

        ready[0].clear_listed();
        waker.wake_by_ref(); // while the connection is served
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        ready.clear();
        list.take(&task, &mut ready);
        assert_eq!(ready.len(), 1, "listed again");
    }

    /// `hack/nightly miri` runs this under Miri, which tries other interleavings with each seed, and is slow.
    #[test]
    fn threads_that_wake_lose_nothing() {
        const WAKES: usize = if cfg!(miri) { 50 } else { 50_000 };
        let list = Arc::new(ReadyList::default());
        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let served = Arc::new(AtomicUsize::new(0));
        let pending = Arc::new(AtomicUsize::new(0));
        let conn_waker = ConnWaker::new(&list, key());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (waker, pending) = (Waker::from(Arc::clone(&conn_waker)), Arc::clone(&pending));
                scope.spawn(move || {
                    for _ in 0..WAKES {
                        pending.fetch_add(1, Ordering::SeqCst);
                        waker.wake_by_ref();
                    }
                });
            }
            let mut ready = VecDeque::new();
            while served.load(Ordering::SeqCst) < 2 * WAKES {
                list.take(&task, &mut ready);
                for conn_waker in ready.drain(..) {
                    conn_waker.clear_listed();
                    served.fetch_add(pending.swap(0, Ordering::SeqCst), Ordering::SeqCst);
                }
                std::hint::spin_loop();
            }
        });
        assert_eq!(served.load(Ordering::SeqCst), 2 * WAKES);
    }
}
