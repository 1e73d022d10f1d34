//! Waits for conditions, never for a fixed time: every wait of the suite has a deadline and names its condition.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::time::{Instant, sleep, timeout};

/// The deadline of a wait that ends at once on an idle machine; generous, because the machine is often busy.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The first and the longest pause between two checks of a condition.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Checks a condition until it returns a value, or fails after `limit` naming `what`.
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

/// Checks that a condition does not come true within `time`.
pub async fn never(what: &str, time: Duration, mut look: impl FnMut() -> bool) -> Result<()> {
    let seen = until(what, time, || std::future::ready(look().then_some(()))).await;
    ensure!(seen.is_err(), "{what}: seen within {time:?}");
    Ok(())
}

/// Awaits a future for [`DEADLINE`] at most, and names `what` if it does not end.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    timeout(DEADLINE, future).await.with_context(|| format!("{what}: did not end within {DEADLINE:?}"))
}

/// Like [`within`], with a separate limit: for requirements on speed.
pub async fn within_limit<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> Result<T> {
    timeout(limit, future).await.with_context(|| format!("{what}: did not end within {limit:?}"))
}
