//! Looks at files again and again, and puts to use what has changed.
//!
//! Polling, not notification: Kubernetes mounts secrets behind symbolic links that it swaps, and notification loses
//! them. Whoever writes the files in place may be in the middle of it, so a change counts once two looks agree.
//! What cannot be used is said and counted once, and tried again at every look: a certificate may become valid, a
//! file readable.
//!
//! Never here: streams that live; a reload touches handshakes only.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{Rotating, TlsError, Validities};

/// Between two looks at files that have just changed.
const SETTLE: Duration = Duration::from_millis(200);

/// So many looks that differ are given a chance to agree; then the next round goes on.
const LOOKS: usize = 25;

/// What became of changed files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotated {
    /// They are in use.
    Taken(Validities),
    /// They cannot be used, and what was in use stays.
    Refused,
    /// They hold again what is in use, after what could not be used: nothing is wrong any more, and nothing was loaded.
    Restored,
}

/// A look at the files: what they hold, or why they cannot be read.
type Look<M> = Result<M, String>;

/// Watches the files of `tls` for as long as it is polled, every `every` (above zero). `name` is what the log calls
/// them; `told` hears of every change once.
pub async fn watch<R: Rotating>(tls: R, name: &'static str, every: Duration, mut told: impl FnMut(Rotated)) {
    let tls = Arc::new(tls);
    let mut refused: Option<Look<R::Material>> = None;
    let mut rounds = interval(every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once, and the files were read a moment ago.
    rounds.tick().await;
    loop {
        rounds.tick().await;
        let first = look(&tls).await;
        let seen = if in_use(&*tls, &first) || refused.as_ref() == Some(&first) {
            first
        } else {
            match settled(&tls, first, every.min(SETTLE)).await {
                Some(agreed) => agreed,
                None => continue,
            }
        };
        if in_use(&*tls, &seen) {
            if refused.take().is_some() {
                tracing::info!(files = name, "the files hold again what is in use");
                told(Rotated::Restored);
            }
            continue;
        }
        match &seen {
            Err(why) => report(name, why, refused.as_ref() == Some(&seen), &mut told),
            Ok(material) => match take(&tls, material.clone()).await {
                Ok(()) => {
                    refused = None;
                    tracing::info!(files = name, "changed files are in use for new handshakes");
                    told(Rotated::Taken(tls.validities()));
                    continue;
                }
                Err(why) => report(name, &why, refused.as_ref() == Some(&seen), &mut told),
            },
        }
        refused = Some(seen);
    }
}

fn report(name: &str, why: &str, known: bool, told: &mut impl FnMut(Rotated)) {
    if !known {
        tracing::error!(files = name, error = why, "changed files cannot be used, what was in use stays");
        told(Rotated::Refused);
    }
}

fn in_use<R: Rotating>(tls: &R, seen: &Look<R::Material>) -> bool {
    seen.as_ref().is_ok_and(|material| tls.uses(material))
}

/// Looks until two looks agree.
async fn settled<R: Rotating>(
    tls: &Arc<R>,
    mut last: Look<R::Material>,
    pause: Duration,
) -> Option<Look<R::Material>> {
    for _ in 0..LOOKS {
        sleep(pause).await;
        let next = look(tls).await;
        if next == last {
            return Some(next);
        }
        last = next;
    }
    None
}

/// Reading may block for long: on a network's file system, say.
async fn look<R: Rotating>(tls: &Arc<R>) -> Look<R::Material> {
    let tls = Arc::clone(tls);
    in_background(move || tls.read()).await
}

async fn take<R: Rotating>(tls: &Arc<R>, material: R::Material) -> Result<(), String> {
    let tls = Arc::clone(tls);
    in_background(move || tls.take(&material)).await
}

async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TlsError> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    // It neither panics nor is it aborted.
    done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
