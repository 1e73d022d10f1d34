//! When a link's dials have waited so long that the agent is pinged.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// How long dials wait before the agent is pinged, and the interval of further pings.
const PING_AFTER: Duration = Duration::from_millis(250);

/// See the module. Without dials it needs no timer of its own, but keeps an armed one: arming it for each dial costs a wake-up.
#[derive(Debug, Default)]
pub(super) struct WaitTimer {
    /// When the next ping is due; `None` while no dial waits.
    due: Option<Instant>,
    /// Fires at that time or earlier.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WaitTimer {
    /// Whether a ping is due. `waiting`: dials wait now. Wakes the task when the next one is due.
    pub(super) fn poll_due(&mut self, cx: &mut Context<'_>, waiting: bool) -> bool {
        if !waiting {
            self.due = None;
            self.timer.take_if(|timer| timer.is_elapsed());
            return false;
        }
        let due = self.due.get_or_insert_with(|| Instant::now() + PING_AFTER);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(*due)));
        let mut is_due = false;
        while timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now >= *due {
                is_due = true;
                *due = now + PING_AFTER;
            }
            timer.as_mut().reset(*due);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::time::{advance, timeout};

    use super::*;

    async fn due_within(timer: &mut WaitTimer, limit: Duration) -> bool {
        let due = poll_fn(|cx| if timer.poll_due(cx, true) { Poll::Ready(()) } else { Poll::Pending });
        timeout(limit, due).await.is_ok()
    }

    async fn nothing_waits(timer: &mut WaitTimer) {
        assert!(!poll_fn(|cx| Poll::Ready(timer.poll_due(cx, false))).await);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_dials_cause_a_ping_every_quarter_of_a_second() {
        let mut timer = WaitTimer::default();
        let began = Instant::now();
        for count in 1..=4 {
            assert!(due_within(&mut timer, PING_AFTER * 2).await);
            assert_eq!(began.elapsed().as_millis(), (PING_AFTER * count).as_millis());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_wait_is_counted_from_its_own_begin() {
        let mut timer = WaitTimer::default();
        for _ in 0..5 {
            assert!(!due_within(&mut timer, PING_AFTER * 3 / 4).await);
            nothing_waits(&mut timer).await;
        }
        // Also after the timer has fired while nothing waited.
        advance(PING_AFTER * 2).await;
        nothing_waits(&mut timer).await;
        assert!(!due_within(&mut timer, PING_AFTER * 3 / 4).await);
        assert!(due_within(&mut timer, PING_AFTER).await);
    }
}
