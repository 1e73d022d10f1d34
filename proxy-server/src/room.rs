//! How many connections a port has at once, or how many strangers: whoever connects there leaves the rest of the process
//! its share of descriptors.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Between lines that say that there is none: strangers come by the thousand.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// Room for so many connections.
#[derive(Debug)]
pub(crate) struct Room {
    places: Arc<Semaphore>,
    most: usize,
    /// What is said when there is none.
    full: &'static str,
    /// When it was last said that there is none.
    said: Mutex<Option<Instant>>,
}

impl Room {
    /// `full` is logged when there is none.
    pub(crate) fn new(most: usize, full: &'static str) -> Self {
        Room { places: Arc::new(Semaphore::new(most)), most, full, said: Mutex::default() }
    }

    /// A connection's place, until it is dropped. `None`: the newcomer is to be closed, who is there stays.
    pub(crate) fn enter(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() && self.is_to_be_said() {
            tracing::warn!(connections = self.most, "{}", self.full);
        }
        place
    }

    fn is_to_be_said(&self) -> bool {
        let (mut said, now) = (self.said.lock(), Instant::now());
        let due = said.is_none_or(|said| now.duration_since(said) >= SAY_AGAIN);
        if due {
            *said = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_is_let_in_once_somebody_has_left() {
        let room = Room::new(2, "full");
        let (first, _second) = (room.enter().unwrap(), room.enter().unwrap());
        assert!(room.enter().is_none());
        drop(first);
        let _third = room.enter().unwrap();
        assert!(room.enter().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_port_is_said_now_and_then() {
        let (room, began, mut said) = (Room::new(0, "full"), Instant::now(), Vec::new());
        while began.elapsed().as_secs() < 70 {
            if room.is_to_be_said() {
                said.push(began.elapsed().as_secs());
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(said, [0, 30, 60]);
    }
}
