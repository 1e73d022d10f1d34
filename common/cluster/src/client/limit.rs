//! `--kubeconfig-qps` and `--kubeconfig-burst`: a token bucket for requests. Requests wait in order, and one that gives up leaves
//! the queue, so it delays no others. Token reviews wait in a queue before that one: unauthenticated peers can cause
//! many, and a lease must not expire behind them.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

/// client-go's burst if a rate is given without one.
const BURST: f64 = 10.0;

/// The rate in requests per second, and the burst.
#[derive(Debug)]
pub(super) struct RateLimit {
    rate: f64,
    burst: f64,
    /// The tokens in the bucket, and when they were counted. The request whose turn is next holds the lock.
    state: Mutex<(f64, Instant)>,
    /// Held by the only review that may wait for `state`.
    reviews: Mutex<()>,
}

impl RateLimit {
    /// A `rate` at or below 0 means no limit.
    pub(super) fn new(rate: f32, burst: i64) -> Option<Self> {
        let rate = f64::from(rate);
        if rate <= 0.0 || !rate.is_finite() {
            return None;
        }
        let burst = i32::try_from(burst).ok().filter(|burst| *burst > 0).map_or(BURST, f64::from);
        Some(Self { rate, burst, state: Mutex::new((burst, Instant::now())), reviews: Mutex::default() })
    }

    /// Waits for a turn; behind at most one review, unless this is one. Has no time-out.
    pub(super) async fn turn(&self, is_review: bool) {
        let _first = if is_review { Some(self.reviews.lock().await) } else { None };
        let mut state = self.state.lock().await;
        let (tokens, counted) = *state;
        let filled = (tokens + self.rate * counted.elapsed().as_secs_f64()).min(self.burst);
        if filled < 1.0 {
            let wait = Duration::try_from_secs_f64((1.0 - filled) / self.rate);
            sleep(wait.unwrap_or(Duration::MAX)).await;
        }
        *state = (filled.max(1.0) - 1.0, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_a_steady_rate() {
        let limit = RateLimit::new(5.0, 3).unwrap();
        let began = Instant::now();
        let mut at = Vec::new();
        for _ in 0..6 {
            limit.turn(false).await;
            at.push(began.elapsed().as_millis());
        }
        // Timers have a resolution of 1 ms.
        for (at, want) in at.iter().zip([0, 0, 0, 200, 400, 600]) {
            assert!(at.abs_diff(want) <= 4, "{at} for {want}");
        }
        sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        for _ in 0..3 {
            limit.turn(false).await;
        }
        assert!(began.elapsed() < Duration::from_millis(2), "no more than the burst is saved up");
    }

    #[tokio::test(start_paused = true)]
    async fn another_request_waits_behind_one_review_at_most() {
        let limit = RateLimit::new(1.0, 1).unwrap();
        limit.turn(false).await;
        let began = Instant::now();
        let reviews = async { tokio::join!(limit.turn(true), limit.turn(true), limit.turn(true)) };
        let lease = async {
            limit.turn(false).await;
            began.elapsed().as_secs()
        };
        // In this order.
        let (_, lease) = tokio::join!(biased; reviews, lease);
        assert_eq!((lease, began.elapsed().as_secs()), (2, 4));
    }

    /// Many agents whose reviews have a deadline of one second, at one request per ten seconds.
    #[tokio::test(start_paused = true)]
    async fn request_that_gives_up_takes_no_turn() {
        let limit = RateLimit::new(0.1, 1).unwrap();
        limit.turn(false).await;
        let began = Instant::now();
        for _ in 0..5 {
            let [one, other] = [(); 2].map(|()| timeout(Duration::from_secs(1), limit.turn(false)));
            let (one, other) = tokio::join!(one, other);
            assert!(one.is_err() && other.is_err(), "its turn is not due");
        }
        limit.turn(false).await;
        assert_eq!(began.elapsed().as_secs(), 10);
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(RateLimit::new(0.0, 7).is_none() && RateLimit::new(-1.0, 7).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_next_to_nothing_is_no_panic() {
        let limit = RateLimit::new(f32::MIN_POSITIVE, 1).unwrap();
        limit.turn(false).await;
        assert!(timeout(Duration::from_secs(3_600), limit.turn(false)).await.is_err());
    }
}
