//! Polls files, and loads the ones that have changed.
//!
//! It polls because Kubernetes mounts secrets behind symbolic links that it swaps, and file notification loses those. A
//! writer may be in the middle of a file, so a change counts if a second read agrees. Files that cannot be used are logged
//! and counted once, and tried again at every poll: a certificate may become valid, a file readable.
//!
//! Never here: established streams; a reload affects only handshakes.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{Material, Options, Tls, TlsError, Validities};

/// The time between two reads of files that have just changed.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// The result of a change of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rotated {
    /// The files are in use.
    Taken(Validities),
    /// The files cannot be used, for this reason, and the current configuration stays.
    Refused(String),
    /// After files that could not be used, the files again match the current configuration: nothing was loaded.
    Restored,
}

/// The contents of the files, or why they cannot be read.
type Look = Result<Material, String>;

/// Watches the files of `tls` for as long as it is polled, every `every` (above zero). `name` names them in the log;
/// `note` is called once for each change.
pub async fn watch<O: Options>(
    tls: Tls<O>,
    name: &'static str,
    every: Duration,
    mut note: impl FnMut(Rotated),
) {
    let mut refused: Option<Look> = None;
    let mut rounds = interval(every);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once; the files have just been read.
    rounds.tick().await;
    loop {
        rounds.tick().await;
        let seen = in_background(&tls, Tls::read).await;
        if !in_use(&tls, &seen) && refused.as_ref() != Some(&seen) {
            sleep(every.min(DEBOUNCE)).await;
            if in_background(&tls, Tls::read).await != seen {
                continue;
            }
        }
        if in_use(&tls, &seen) {
            if refused.take().is_some() {
                tracing::info!(files = name, "the files hold again what is in use");
                note(Rotated::Restored);
            }
            continue;
        }
        let taken = match &seen {
            Ok(material) => {
                let material = material.clone();
                in_background(&tls, move |tls| tls.take(&material)).await
            }
            Err(why) => Err(why.clone()),
        };
        let Err(why) = taken else {
            refused = None;
            tracing::info!(files = name, "changed files are in use for new handshakes");
            note(Rotated::Taken(tls.validities()));
            continue;
        };
        if refused.as_ref() != Some(&seen) {
            tracing::error!(files = name, error = why, "changed files cannot be used, what was in use stays");
            note(Rotated::Refused(why));
        }
        refused = Some(seen);
    }
}

fn in_use<O: Options>(tls: &Tls<O>, seen: &Look) -> bool {
    seen.as_ref().is_ok_and(|material| tls.uses(material))
}

/// Works on a blocking thread: a network file system may be slow.
async fn in_background<O: Options, T: Send + 'static>(
    tls: &Tls<O>,
    work: impl FnOnce(&Tls<O>) -> Result<T, TlsError> + Send + 'static,
) -> Result<T, String> {
    let tls = tls.clone();
    let done = tokio::task::spawn_blocking(move || work(&tls)).await;
    // The task neither panics nor is aborted.
    done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
