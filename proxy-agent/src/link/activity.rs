//! Whether anything is going on: dials and connections, of one stream and of the whole agent.
//!
//! Decides nothing: a stream that is to go, and an agent that is to exit, wait for it to be quiet.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// How long nothing may have gone on before that counts as quiet. What a server asked for before it had heard of
/// the end is on its way.
const QUIET: Duration = Duration::from_secs(1);

/// Counts what is under way. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Activity {
    own: Arc<watch::Sender<usize>>,
    /// That of the whole, for a part.
    whole: Option<Arc<watch::Sender<usize>>>,
}

/// Something that is under way, until it is dropped.
#[derive(Debug)]
#[must_use = "it counts until it is dropped"]
pub struct Busy(Activity);

impl Activity {
    /// A part, whose activity is the whole's as well.
    pub(crate) fn part(&self) -> Self {
        Self { own: Arc::default(), whole: Some(Arc::clone(&self.own)) }
    }

    /// One more.
    pub(crate) fn enter(&self) -> Busy {
        for count in self.counts() {
            count.send_modify(|count| *count += 1);
        }
        Busy(self.clone())
    }

    /// How much is under way.
    pub fn count(&self) -> usize {
        *self.own.borrow()
    }

    /// Resolves when nothing has gone on for a second.
    pub async fn quiet(&self) {
        let mut count = self.own.subscribe();
        loop {
            // The sender is ours: it cannot go away.
            let _ = count.wait_for(|count| *count == 0).await;
            if timeout(QUIET, count.changed()).await.is_err() {
                return;
            }
        }
    }

    fn counts(&self) -> impl Iterator<Item = &watch::Sender<usize>> {
        std::iter::once(&*self.own).chain(self.whole.as_deref())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for count in self.0.counts() {
            count.send_modify(|count| *count -= 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn quiet_is_a_second_without_anything() {
        let whole = Activity::default();
        let (one, other) = (whole.part(), whole.part());
        let long = one.enter();
        assert_eq!((whole.count(), one.count(), other.count()), (1, 1, 0));
        let began = Instant::now();
        other.quiet().await;
        assert_eq!(began.elapsed(), QUIET, "the other's connections are no concern of it");
        assert!(timeout(QUIET * 100, whole.quiet()).await.is_err());
        drop(long);
        let mut quiet = std::pin::pin!(whole.quiet());
        assert!(timeout(QUIET * 9 / 10, &mut quiet).await.is_err());
        drop(other.enter());
        assert!(timeout(QUIET * 9 / 10, &mut quiet).await.is_err(), "it begins anew");
        assert!(timeout(QUIET * 2 / 10, &mut quiet).await.is_ok());
    }
}
