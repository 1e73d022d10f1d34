//! Holds an endpoint's payload back from a client that has just received the answer to its dial: until the client's first byte,
//! or for [`MAX_HOLD`].
//!
//! Both frontends need it, because their clients may not take payload that comes with the answer to the dial:
//! kube-apiserver fails when one read brings more than the head of a 200, and the Go client drops DATA and CLOSE_RSP until
//! it has registered the connection of a DIAL_RSP. A client that sends has read its answer. kube-apiserver always sends
//! first. The time limit serves other clients; it does not prove that such a client has read its answer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// How long payload waits for a client that sends nothing.
pub(super) const MAX_HOLD: Duration = Duration::from_millis(50);

/// See the module. Reading from the client is never delayed.
#[derive(Debug)]
pub struct FirstByteBarrier {
    /// `None` once payload may pass.
    until: Option<Instant>,
    /// Created when payload waits: a client that sends first needs no timer.
    timer: Option<Pin<Box<Sleep>>>,
}

impl FirstByteBarrier {
    /// A barrier for a client that has just been sent its answer.
    pub fn start() -> Self {
        FirstByteBarrier { until: Some(Instant::now() + MAX_HOLD), timer: None }
    }

    /// Ready when payload may go to the client.
    pub fn poll_lifted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(until) = self.until {
            ready!(self.timer.get_or_insert_with(|| Box::pin(sleep_until(until))).as_mut().poll(cx));
            *self = FirstByteBarrier { until: None, timer: None };
        }
        Poll::Ready(())
    }

    /// The client has sent its first byte: wakes the task that holds payload.
    pub fn lift(&mut self, cx: &mut Context<'_>) {
        if self.until.take().is_some() && self.timer.take().is_some() {
            cx.waker().wake_by_ref();
        }
    }

    /// Whether the barrier is known to be lifted.
    pub fn is_lifted(&self) -> bool {
        self.until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_byte_wakes_payload_that_waits() {
        for waits in [true, false] {
            let woken = Arc::<Woken>::default();
            let waker = Arc::clone(&woken).into();
            let mut cx = Context::from_waker(&waker);
            let mut barrier = FirstByteBarrier::start();
            if waits {
                assert!(barrier.poll_lifted(&mut cx).is_pending());
            }
            barrier.lift(&mut cx);
            barrier.lift(&mut cx);
            assert_eq!(woken.0.load(Ordering::Relaxed), usize::from(waits));
            assert!(barrier.is_lifted() && barrier.poll_lifted(&mut cx).is_ready());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn payload_that_comes_late_does_not_wait() {
        let mut barrier = FirstByteBarrier::start();
        tokio::time::advance(MAX_HOLD).await;
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(barrier.poll_lifted(&mut cx).is_ready());
    }
}
