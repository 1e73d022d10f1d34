//! The streams of the set, as data: at most one kept stream for each server, and the streams that it has replaced.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Retiring streams to one server at once: a server accepts 4 streams of an agent, of which one is the kept stream and one may
/// be a duplicate.
pub(super) const MOST_RETIRED: usize = 2;

/// A stream that wants a successor earlier than this after its start was of little use.
const SHORT: Duration = Duration::from_secs(60);

/// The id of one kept stream. Never reused, because a server id alone must not decide which stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(super) u64);

/// What the caller does with a stream that was just opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Keep it under this id until [`Machine::lost`](super::machine::Machine::lost).
    Keep(StreamId),
    /// Keep it under the first id, and retire the stream of the second id.
    Replace(StreamId, StreamId),
    /// Close it: there is already a stream to this server.
    Duplicate,
    /// Close it: the agent drains.
    Unwanted,
}

/// A kept stream, and the reasons to replace it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    id: StreamId,
    /// The number of servers that this server told last.
    pub(super) told: usize,
    /// The server does not answer pings, or has sent GOAWAY.
    pub(super) unresponsive: bool,
    /// The stream's client certificate is about to expire.
    pub(super) aged: bool,
    opened: Duration,
    /// Streams to this server in a row, this one included, that wanted a successor within [`SHORT`].
    short: u32,
}

impl Kept {
    fn wants_successor(&self) -> bool {
        self.unresponsive || self.aged
    }
}

/// The kept and the retiring streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    kept: HashMap<Arc<str>, Kept>,
    retired: HashMap<StreamId, Arc<str>>,
    next_id: u64,
}

impl Streams {
    /// The number of servers with a stream.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Takes a new stream, unless it is a duplicate. `told` is the server's count of servers.
    pub(super) fn offer(&mut self, now: Duration, server: &Arc<str>, told: usize) -> Decision {
        if !self.lacks(server) {
            if let Some(kept) = self.kept.get_mut(server) {
                kept.told = told;
            }
            return Decision::Duplicate;
        }
        let id = StreamId(self.next_id);
        self.next_id += 1;
        let short = self.kept.get(server).map_or(0, |old| old.short);
        let kept = Kept { id, told, unresponsive: false, aged: false, opened: now, short };
        match self.kept.insert(Arc::clone(server), kept) {
            Some(Kept { id: old, .. }) => {
                self.retired.insert(old, Arc::clone(server));
                Decision::Replace(id, old)
            }
            None => Decision::Keep(id),
        }
    }

    /// Changes the marks of a kept stream. If it now wants a successor and did not before: its server, and the number of streams
    /// before it in a row that wanted one soon after their start, as this one does.
    pub(super) fn mark(
        &mut self,
        now: Duration,
        id: StreamId,
        mark: impl FnOnce(&mut Kept),
    ) -> Option<(Arc<str>, u32)> {
        let (server, kept) = self.kept.iter_mut().find(|(_, kept)| kept.id == id)?;
        let before = kept.wants_successor();
        mark(kept);
        if before || !kept.wants_successor() {
            return None;
        }
        kept.short = if now < kept.opened + SHORT { kept.short.saturating_add(1) } else { 0 };
        Some((Arc::clone(server), kept.short.saturating_sub(1)))
    }

    /// A retiring stream has ended; false if this is none.
    pub(super) fn end_retired(&mut self, id: StreamId) -> bool {
        self.retired.remove(&id).is_some()
    }

    /// A kept stream has ended; returns its server.
    pub(super) fn end_kept(&mut self, id: StreamId) -> Option<Arc<str>> {
        let server =
            self.kept.iter().find(|(_, kept)| kept.id == id).map(|(server, _)| Arc::clone(server))?;
        self.kept.remove(&server);
        Some(server)
    }

    /// Whether a stream to this server would be kept.
    pub(super) fn lacks(&self, server: &Arc<str>) -> bool {
        self.kept.get(server).is_none_or(|kept| kept.wants_successor() && self.may_retire(server))
    }

    /// Whether a kept stream needs a replacement that its server would accept.
    pub(super) fn lack_successor(&self) -> bool {
        self.successors_wanted(Kept::wants_successor)
    }

    /// Whether a server that does not answer would accept another stream.
    pub(super) fn lack_answers(&self) -> bool {
        self.successors_wanted(|kept| kept.unresponsive)
    }

    /// The number of servers that every server told last, if it is the same.
    pub(super) fn told(&self) -> Option<usize> {
        let first = self.kept.values().next()?.told;
        self.kept.values().all(|kept| kept.told == first).then_some(first).filter(|count| *count > 0)
    }

    fn successors_wanted(&self, wanted: impl Fn(&Kept) -> bool) -> bool {
        self.kept.iter().any(|(server, kept)| wanted(kept) && self.may_retire(server))
    }

    /// Whether the server would accept another stream beside the retiring ones.
    fn may_retire(&self, server: &Arc<str>) -> bool {
        self.retired.values().filter(|retired| *retired == server).count() < MOST_RETIRED
    }
}
