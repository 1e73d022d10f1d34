//! The connect ids that streams to upstream servers use.
//!
//! An upstream server keeps one connection table for all streams of an agent. While a new stream replaces one whose certificate
//! is about to expire, a second connection with the same id would receive the first one's bytes. So a second stream to the same
//! server numbers its connections in a separate range; a single stream counts from 1.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tunnel::ConnectId;

/// Distance between the ids of two streams.
const RANGE: i64 = 1 << 32;

/// The ranges in use. Clones share the table.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranges(Arc<Mutex<HashMap<Arc<str>, Server>>>);

#[derive(Debug, Default)]
struct Server {
    /// Open streams.
    streams: usize,
    /// Ranges assigned since the server last had no stream.
    given: i64,
}

/// A stream's range, until this is dropped.
#[derive(Debug)]
pub(super) struct Range {
    ranges: Ranges,
    server: Arc<str>,
    /// The ids of the range are above this one.
    pub(super) beyond: ConnectId,
}

impl Ranges {
    /// Assigns a range that no open stream to that server uses.
    pub(super) fn enter(&self, server: &Arc<str>) -> Range {
        let mut servers = self.0.lock();
        let entry = servers.entry(Arc::clone(server)).or_default();
        entry.streams += 1;
        // The modulus is larger than any number of concurrent streams.
        let beyond = ConnectId(entry.given % (i64::MAX / RANGE) * RANGE);
        entry.given += 1;
        Range { ranges: self.clone(), server: Arc::clone(server), beyond }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let mut servers = self.ranges.0.lock();
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
        let (ranges, a, b): (Ranges, Arc<str>, Arc<str>) = (Ranges::default(), "a".into(), "b".into());
        let first = ranges.enter(&a);
        let other = ranges.enter(&b);
        assert_eq!((first.beyond, other.beyond), (ConnectId(0), ConnectId(0)));
        let second = ranges.enter(&a);
        assert_eq!(second.beyond, ConnectId(RANGE));
        drop(first);
        let third = ranges.enter(&a);
        assert_eq!(
            third.beyond,
            ConnectId(2 * RANGE),
            "not the first one's: the server may still have some of it"
        );
        drop((second, third));
        assert_eq!(ranges.enter(&a).beyond, ConnectId(0), "alone");
        drop(other);
        assert!(ranges.0.lock().is_empty());
    }
}
