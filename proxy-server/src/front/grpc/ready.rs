//! When a client may hear from an endpoint that speaks first.
//!
//! The Go client reads DIAL_RSP in one goroutine and registers its connection in another: DATA that it reads in between
//! is lost, and so is a CLOSE_RSP. How long that takes is up to its machine, so it is asked: by DATA for a connection
//! that nobody has, which it answers by CLOSE_REQ. Where the client speaks first, as in all of TLS, it is never asked.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};
use transport::wire::Wire;

use super::stream::Stream;

/// How long the client may take to speak before it is asked.
pub(super) const UNASKED: Duration = Duration::from_millis(20);
/// How long its answer is waited for. (Clients before v0.28 give none.)
pub(super) const UNANSWERED: Duration = Duration::from_secs(2);
/// From the answer on: the goroutine that registers the connection was woken before it, and gets its turn meanwhile.
/// (With 10 ms, 2 of 20,000 greetings were lost on a machine with ten times its work.)
pub(super) const SETTLED: Duration = Duration::from_millis(50);

/// A DIAL_RSP that was sent so long ago has been read, or never will be.
pub(super) const LONG_AGO: Duration = Duration::from_secs(10);

/// Where the waiting stands. Polled only while something waits for the client.
#[derive(Debug)]
pub(super) struct Readiness {
    told: Instant,
    step: Step,
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Unasked,
    Asked,
    Answered,
}

impl Readiness {
    /// The client has just been sent its DIAL_RSP.
    pub(super) fn told() -> Self {
        Readiness { told: Instant::now(), step: Step::Unasked, timer: None }
    }

    /// Ready when the client may hear of the endpoint, or nothing more can be known.
    pub(super) fn poll<W: Wire>(&mut self, cx: &mut Context<'_>, stream: &mut Stream<W>) -> Poll<()> {
        if self.step == Step::Unasked && self.told.elapsed() >= LONG_AGO {
            return Poll::Ready(());
        }
        loop {
            if self.step == Step::Asked && stream.machine().is_answered() {
                (self.step, self.timer) = (Step::Answered, None);
            }
            let limit = match self.step {
                Step::Unasked => UNASKED,
                Step::Asked => UNANSWERED,
                Step::Answered => SETTLED,
            };
            ready!(self.timer.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx));
            self.timer = None;
            let Some(question) = stream.machine().ask() else { return Poll::Ready(()) };
            if stream.send(question).is_err() {
                return Poll::Ready(());
            }
            self.step = Step::Asked;
        }
    }
}
