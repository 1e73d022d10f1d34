//! The connect ids that streams to upstream servers use.
//!
//! An upstream server keeps one connection table for all streams of an agent. While a new stream replaces one whose certificate
//! is about to expire, a second connection with the same id would receive the first one's bytes. So a second stream to the same
//! server numbers its connections in a separate range; a single stream counts from 1.

use std::collections::HashMap;
use std::sync::Arc;

use mux::ConnectId;
use parking_lot::Mutex;

/// Distance between the ids of two streams.
const RANGE_SIZE: i64 = 1 << 32;

/// The ranges in use. Clones share the table.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectIdSpace(Arc<Mutex<HashMap<Arc<str>, Server>>>);

#[derive(Debug, Default)]
struct Server {
    /// Open streams.
    streams: usize,
    /// Ranges assigned since the server last had no stream.
    given: i64,
}

/// A stream's range, until this is dropped.
#[derive(Debug)]
pub(super) struct ConnectIdRange {
    connect_ids: ConnectIdSpace,
    server: Arc<str>,
    /// The ids of the range are above this one.
    pub(super) beyond: ConnectId,
}

impl ConnectIdSpace {
    /// Assigns a range that no open stream to that server uses.
    pub(super) fn enter(&self, server: &Arc<str>) -> ConnectIdRange {
        let mut servers = self.0.lock();
        let entry = servers.entry(Arc::clone(server)).or_default();
        entry.streams += 1;
        // The modulus is larger than any number of concurrent streams.
        let beyond = ConnectId(entry.given % (i64::MAX / RANGE_SIZE) * RANGE_SIZE);
        entry.given += 1;
        ConnectIdRange { connect_ids: self.clone(), server: Arc::clone(server), beyond }
    }
}

impl Drop for ConnectIdRange {
    fn drop(&mut self) {
        let mut servers = self.connect_ids.0.lock();
        if let Some(entry) = servers.get_mut(&self.server) {
            entry.streams -= 1;
            if entry.streams == 0 {
                servers.remove(&self.server);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_streams_beside_each_other_are_kept_apart() {
        let (connect_ids, a, b): (ConnectIdSpace, Arc<str>, Arc<str>) =
            (ConnectIdSpace::default(), "a".into(), "b".into());
        let first = connect_ids.enter(&a);
        let other = connect_ids.enter(&b);
        assert_eq!((first.beyond, other.beyond), (ConnectId(0), ConnectId(0)));
        let second = connect_ids.enter(&a);
        assert_eq!(second.beyond, ConnectId(RANGE_SIZE));
        drop(first);
        let third = connect_ids.enter(&a);
        assert_eq!(
            third.beyond,
            ConnectId(2 * RANGE_SIZE),
            "not the first one's: the server may still have some of it"
        );
        drop((second, third));
        assert_eq!(connect_ids.enter(&a).beyond, ConnectId(0), "alone");
        drop(other);
        assert!(connect_ids.0.lock().is_empty());
    }
}
