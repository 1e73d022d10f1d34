//! Whether the transport below a connection accepts bytes, and how many at once: while it accepts none, streams are not
//! read.
//!
//! HTTP/2 and TLS send the bytes that they hold before everything later, such as a ping or a dial. So streams hand over
//! only as many bytes as the transport has recently accepted at once. While a path is drained (see [`super::pinger`]), streams
//! return no window to the peer, and may have to hand over nothing.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::settings::SEND_BUFFER;

/// The smallest batch, in bytes: one TLS record.
const MIN_BATCH_BYTES: usize = 16 << 10;

/// Shared by a connection's driver, which flushes, and its streams, which send.
#[derive(Debug)]
pub(super) struct Backlog(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The last flush could not complete.
    blocked: bool,
    /// Bytes that may be handed over between two flushes.
    batch: usize,
    /// Bytes handed over since the last complete flush.
    handed: usize,
    paused: Paused,
    waiting: Vec<Waker>,
}

/// Streams omit this while a path is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Paused {
    /// No path is drained.
    Nothing,
    /// They return no window to the peer.
    Window,
    /// They send no data, either.
    WindowAndData,
}

impl State {
    fn wait<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Default for Backlog {
    fn default() -> Self {
        let (blocked, paused, waiting) = (false, Paused::Nothing, Vec::new());
        Self(Mutex::new(State { blocked, batch: SEND_BUFFER, handed: 0, paused, waiting }))
    }
}

impl Backlog {
    /// A stream handed over this many bytes.
    pub(super) fn handed_over(&self, bytes: usize) {
        self.0.lock().handed += bytes;
    }

    /// How many bytes may be handed over now.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<usize> {
        let mut state = self.0.lock();
        if !state.blocked && state.paused < Paused::WindowAndData && state.handed < state.batch {
            return Poll::Ready(state.batch - state.handed);
        }
        state.wait(cx)
    }

    /// Pending while window must not be returned to the peer.
    pub(super) fn poll_give_back(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.paused == Paused::Nothing { Poll::Ready(()) } else { state.wait(cx) }
    }

    /// The driver begins, continues or ends to drain the path.
    pub(super) fn pause(&self, paused: Paused) {
        let mut state = self.0.lock();
        state.paused = paused;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The driver has flushed everything (`whole`), or only what the transport accepted.
    pub(super) fn flushed(&self, whole: bool) {
        let mut state = self.0.lock();
        if !whole {
            if !std::mem::replace(&mut state.blocked, true) {
                state.batch = (state.batch / 2).max(MIN_BATCH_BYTES);
            }
            return;
        }
        if state.handed >= state.batch && !state.blocked {
            state.batch = (state.batch * 2).min(SEND_BUFFER);
        }
        (state.blocked, state.handed) = (false, 0);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn room(backlog: &Backlog) -> Option<usize> {
        match backlog.poll_ready(&Context::from_waker(Waker::noop())) {
            Poll::Ready(room) => Some(room),
            Poll::Pending => None,
        }
    }

    #[test]
    fn streams_wait_while_a_flush_is_unfinished_and_are_woken_by_its_end() {
        let (backlog, woken) = (Backlog::default(), Arc::<Count>::default());
        backlog.flushed(false);
        let waker = Waker::from(Arc::clone(&woken));
        for _ in 0..3 {
            assert!(backlog.poll_ready(&Context::from_waker(&waker)).is_pending());
        }
        backlog.flushed(false);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        backlog.flushed(true);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "once");
        assert!(room(&backlog).is_some());
    }

    #[test]
    fn streams_return_no_window_while_a_path_is_drained_and_may_have_to_send_nothing() {
        let (backlog, woken) = (Backlog::default(), Arc::<Count>::default());
        let waker = Waker::from(Arc::clone(&woken));
        let cx = Context::from_waker(&waker);
        backlog.pause(Paused::Window);
        assert!(backlog.poll_ready(&cx).is_ready() && backlog.poll_give_back(&cx).is_pending());
        backlog.pause(Paused::WindowAndData);
        assert!(backlog.poll_ready(&cx).is_pending() && backlog.poll_give_back(&cx).is_pending());
        backlog.flushed(true);
        assert!(backlog.poll_ready(&cx).is_pending() && backlog.poll_give_back(&cx).is_pending());
        let before = woken.0.load(Ordering::Relaxed);
        backlog.pause(Paused::Nothing);
        assert_eq!(woken.0.load(Ordering::Relaxed), before + 1);
        assert!(backlog.poll_ready(&cx).is_ready() && backlog.poll_give_back(&cx).is_ready());
    }

    #[test]
    fn batch_follows_the_capacity_of_the_transport() {
        let backlog = Backlog::default();
        assert_eq!(room(&backlog), Some(SEND_BUFFER));
        for _ in 0..10 {
            backlog.flushed(false);
            assert_eq!(room(&backlog), None);
            backlog.flushed(true);
        }
        assert_eq!(room(&backlog), Some(MIN_BATCH_BYTES), "it blocked each time");
        backlog.flushed(true);
        assert_eq!(room(&backlog), Some(MIN_BATCH_BYTES), "a flush of less says nothing");
        backlog.handed_over(MIN_BATCH_BYTES);
        assert_eq!(room(&backlog), None, "until the next flush");
        backlog.flushed(true);
        assert_eq!(room(&backlog), Some(2 * MIN_BATCH_BYTES));
        for _ in 0..10 {
            backlog.handed_over(SEND_BUFFER);
            backlog.flushed(true);
        }
        assert_eq!(room(&backlog), Some(SEND_BUFFER));
    }
}
