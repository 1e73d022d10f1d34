//! Which connect ids the streams to Go servers use.
//!
//! Those servers keep one table of connections for all streams of an agent. While one stream takes another's place, because what
//! was shown for the first is about to expire, a second connection of the same id would get the first one's bytes. So a
//! stream beside another to the same server numbers its connections in a range of its own; one alone counts from 1.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tunnel::ConnectId;

/// How far the ids of two streams are apart.
const RANGE: i64 = 1 << 32;

/// The ranges in use. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranges(Arc<Mutex<HashMap<Arc<str>, Server>>>);

#[derive(Debug, Default)]
struct Server {
    /// Streams that live.
    streams: usize,
    /// Ranges that were given away since there was none.
    given: i64,
}

/// A stream's range, until it is dropped.
#[derive(Debug)]
pub(super) struct Range {
    ranges: Ranges,
    server: Arc<str>,
    /// Its ids are above this one.
    pub(super) beyond: ConnectId,
}

impl Ranges {
    /// A range that no living stream to that server has.
    pub(super) fn enter(&self, server: &Arc<str>) -> Range {
        let mut servers = self.0.lock();
        let entry = servers.entry(Arc::clone(server)).or_default();
        entry.streams += 1;
        // Never so many beside each other that the first ones come again.
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
