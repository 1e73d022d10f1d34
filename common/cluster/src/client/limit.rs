//! `--kubeconfig-qps` and `--kubeconfig-burst`: a token bucket for requests.
//!
//! A request that cannot have a turn before its deadline fails at once and takes no turn, and a request that is dropped
//! while it waits returns its turn. So the wait never exceeds the requests' deadlines, and dropped requests delay no
//! others.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// client-go's burst if a rate is given without one.
const BURST: f64 = 10.0;

/// The rate in requests per second, and the burst.
#[derive(Debug)]
pub(super) struct RateLimit {
    rate: f64,
    burst: f64,
    /// The tokens in the bucket, and when they were counted; negative while requests wait.
    state: Mutex<(f64, Instant)>,
}

/// The turn would come after the deadline.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLate;

/// A turn in the future. Dropping it returns the turn, unless it was used.
struct Waiting<'a> {
    limit: &'a RateLimit,
    used: bool,
}

impl RateLimit {
    /// A `rate` at or below 0 means no limit.
    pub(super) fn new(rate: f32, burst: i64) -> Option<Self> {
        let rate = f64::from(rate);
        if rate <= 0.0 || !rate.is_finite() {
            return None;
        }
        let burst = i32::try_from(burst).ok().filter(|burst| *burst > 0).map_or(BURST, f64::from);
        Some(Self { rate, burst, state: Mutex::new((burst, Instant::now())) })
    }

    /// Waits for a turn that comes before `deadline`.
    ///
    /// # Errors
    /// At once, if there is no such turn.
    pub(super) async fn turn(&self, deadline: Instant) -> Result<(), TooLate> {
        let Some(due) = self.take(Instant::now(), deadline)? else { return Ok(()) };
        let mut waiting = Waiting { limit: self, used: false };
        sleep_until(due).await;
        waiting.used = true;
        Ok(())
    }

    /// Takes a turn. Returns when it comes; `None` means now.
    fn take(&self, now: Instant, deadline: Instant) -> Result<Option<Instant>, TooLate> {
        let mut state = self.state.lock();
        let filled = (state.0 + self.rate * (now - state.1).as_secs_f64()).min(self.burst);
        let due = if filled >= 1.0 {
            None
        } else {
            // A wait that exceeds `Duration` is later than any deadline.
            let wait = Duration::try_from_secs_f64((1.0 - filled) / self.rate).map_err(|_| TooLate)?;
            let due = now.checked_add(wait).filter(|due| *due < deadline).ok_or(TooLate)?;
            Some(due)
        };
        *state = (filled - 1.0, now);
        Ok(due)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.used {
            self.limit.state.lock().0 += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    fn within(patience: Duration) -> Instant {
        Instant::now() + patience
    }

    const LONG: Duration = Duration::from_secs(3_600);

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_a_steady_rate() {
        let limit = RateLimit::new(5.0, 3).unwrap();
        let began = Instant::now();
        let mut at = Vec::new();
        for _ in 0..6 {
            limit.turn(within(LONG)).await.unwrap();
            at.push(began.elapsed().as_millis());
        }
        // Timers have a resolution of 1 ms.
        for (at, want) in at.iter().zip([0, 0, 0, 200, 400, 600]) {
            assert!(at.abs_diff(want) <= 4, "{at} for {want}");
        }
        sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        for _ in 0..3 {
            limit.turn(within(LONG)).await.unwrap();
        }
        assert!(began.elapsed() < Duration::from_millis(2), "no more than the burst is saved up");
    }

    /// Many agents whose reviews have a deadline of ten seconds, at one request per ten seconds.
    #[tokio::test(start_paused = true)]
    async fn request_that_would_wait_too_long_takes_no_turn() {
        let limit = RateLimit::new(0.1, 1).unwrap();
        limit.turn(within(LONG)).await.unwrap();
        let began = Instant::now();
        for _ in 0..50 {
            assert_eq!(limit.turn(within(Duration::from_secs(9))).await, Err(TooLate));
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "they are told at once");
        limit.turn(within(Duration::from_secs(11))).await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 10, "the next turn is nobody else's");
    }

    #[tokio::test(start_paused = true)]
    async fn canceled_request_gives_its_turn_back() {
        let limit = RateLimit::new(0.1, 1).unwrap();
        limit.turn(within(LONG)).await.unwrap();
        let began = Instant::now();
        for _ in 0..5 {
            let left = timeout(Duration::from_secs(1), limit.turn(within(LONG))).await;
            assert!(left.is_err(), "its turn is not due");
        }
        limit.turn(within(Duration::from_secs(11))).await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 10);
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(RateLimit::new(0.0, 7).is_none() && RateLimit::new(-1.0, 7).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_next_to_nothing_is_no_panic() {
        let limit = RateLimit::new(f32::MIN_POSITIVE, 1).unwrap();
        limit.turn(within(LONG)).await.unwrap();
        assert_eq!(limit.turn(within(LONG)).await, Err(TooLate));
    }
}
