//! Waiting for conditions, never for time: every wait of the suite has a deadline and says what it waited for.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, sleep, timeout};

/// The deadline of a wait that should end at once on an idle machine; generous, because the machine is often not idle.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The first and the longest pause between two looks at a condition.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Looks at a condition until it yields a value, or fails after `limit` naming `what`.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut look: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Ok(Some(value)) = timeout(limit, look()).await {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("{what}: not seen within {limit:?}");
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Awaits a future for [`DEADLINE`] at most, and names `what` when it does not end.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    timeout(DEADLINE, future).await.with_context(|| format!("{what}: did not end within {DEADLINE:?}"))
}

/// As [`within`], with a limit of its own: for facts about how fast something must be.
pub async fn within_limit<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> Result<T> {
    timeout(limit, future).await.with_context(|| format!("{what}: did not end within {limit:?}"))
}
