//! `--kubeconfig-qps` and `--kubeconfig-burst`: a bucket of requests that fills at a steady rate.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// client-go's burst where a rate is given and no burst.
const BURST: f64 = 10.0;

/// How many requests a second, and how many at once.
#[derive(Debug)]
pub(super) struct RateLimit {
    rate: f64,
    burst: f64,
    /// Requests that may go at `since`; below 0 are those that wait already.
    state: Mutex<(f64, Instant)>,
}

impl RateLimit {
    /// `rate` at or below 0 is no limit.
    pub(super) fn new(rate: f32, burst: i64) -> Option<Self> {
        let rate = f64::from(rate);
        if rate <= 0.0 || !rate.is_finite() {
            return None;
        }
        let burst = i32::try_from(burst).ok().filter(|burst| *burst > 0).map_or(BURST, f64::from);
        Some(Self { rate, burst, state: Mutex::new((burst, Instant::now())) })
    }

    /// Waits for a turn. A waiter that is dropped has used its turn.
    pub(super) async fn turn(&self) {
        let wait = {
            let mut state = self.state.lock();
            let now = Instant::now();
            let filled = state.0 + self.rate * (now - state.1).as_secs_f64();
            *state = (filled.min(self.burst) - 1.0, now);
            (-state.0 / self.rate).max(0.0)
        };
        if wait > 0.0 {
            sleep(Duration::from_secs_f64(wait.min(3_600.0))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_a_steady_rate() {
        let limit = RateLimit::new(5.0, 3).unwrap();
        let began = Instant::now();
        let mut at = Vec::new();
        for _ in 0..6 {
            limit.turn().await;
            at.push(began.elapsed().as_millis());
        }
        // Timers have a millisecond's grain.
        for (at, want) in at.iter().zip([0, 0, 0, 200, 400, 600]) {
            assert!(at.abs_diff(want) <= 4, "{at} for {want}");
        }
        sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        for _ in 0..3 {
            limit.turn().await;
        }
        assert!(began.elapsed() < Duration::from_millis(2), "no more than the burst is saved up");
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(RateLimit::new(0.0, 7).is_none() && RateLimit::new(-1.0, 7).is_none());
    }
}
