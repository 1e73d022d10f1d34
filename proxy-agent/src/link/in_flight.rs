//! Counts the dials and connections of one stream and of the whole agent.
//!
//! Decides nothing: a retiring stream and a draining agent wait for it to become idle.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// How long a stream must be idle before it may end: dials that the server sent before it received the DRAIN may still arrive.
const IDLE: Duration = Duration::from_secs(1);

/// Counts dials and connections. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct InFlight {
    /// Notifies only of zero and one: each notification locks eight lists.
    count: Arc<watch::Sender<usize>>,
    /// The count of the whole agent, if this is one stream's.
    whole: Option<Arc<watch::Sender<usize>>>,
}

/// Counts one dial or connection until it is dropped.
#[derive(Debug)]
#[must_use = "it counts until it is dropped"]
pub(crate) struct InFlightGuard(InFlight);

impl InFlight {
    /// The activity of one stream; it counts for the whole agent as well.
    pub(crate) fn part(&self) -> Self {
        Self { count: Arc::default(), whole: Some(Arc::clone(&self.count)) }
    }

    /// Counts one more dial or connection.
    pub(crate) fn enter(&self) -> InFlightGuard {
        for count in self.counts() {
            count.send_if_modified(|count| {
                *count += 1;
                *count == 1
            });
        }
        InFlightGuard(self.clone())
    }

    /// The number of dials and connections.
    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Resolves once there has been no dial and no connection for [`IDLE`].
    pub async fn idle(&self) {
        let mut count = self.count.subscribe();
        loop {
            // We hold the sender, so it cannot be dropped.
            let _ = count.wait_for(|count| *count == 0).await;
            if timeout(IDLE, count.changed()).await.is_err() {
                return;
            }
        }
    }

    fn counts(&self) -> impl Iterator<Item = &watch::Sender<usize>> {
        std::iter::once(&*self.count).chain(self.whole.as_deref())
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        for count in self.0.counts() {
            count.send_if_modified(|count| {
                *count -= 1;
                *count == 0
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idle_is_a_second_without_activity() {
        let whole = InFlight::default();
        let (one, other) = (whole.part(), whole.part());
        let long = one.enter();
        assert_eq!((whole.count(), one.count(), other.count()), (1, 1, 0));
        let began = Instant::now();
        other.idle().await;
        assert_eq!(began.elapsed(), IDLE, "the other's connections are no concern of it");
        assert!(timeout(IDLE * 100, whole.idle()).await.is_err());
        drop(long);
        let mut idle = std::pin::pin!(whole.idle());
        assert!(timeout(IDLE * 9 / 10, &mut idle).await.is_err());
        drop(other.enter());
        assert!(timeout(IDLE * 9 / 10, &mut idle).await.is_err(), "it begins anew");
        assert!(timeout(IDLE * 2 / 10, &mut idle).await.is_ok());
    }
}
