//! The streams of the set, as data: the kept streams of each server, and the retiring streams, which take no new dials.
//!
//! A server has one kept stream, or several if it offers lanes. All of them count as one connected server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use grpc::capabilities;

/// Retiring streams to one server at once, for each kept stream, beyond which no stream is replaced: a server accepts 4 streams of an
/// agent, of which one is the kept stream and one may be a duplicate, and more of an agent with lanes.
pub(super) const MAX_RETIRED: usize = 2;

/// The most lanes to one server.
const MAX_LANES: usize = capabilities::MAX_LANES as usize;

/// A stream that wants a successor earlier than this after its start was of little use.
const SHORT_LIVED: Duration = Duration::from_secs(60);

/// A stream that ends earlier than this after its start shows that the server, or something on the path, does not want another lane.
/// A network that loses streams after half a minute shows nothing.
const ENDED_SOON: Duration = Duration::from_secs(10);

/// The id of one kept stream. Never reused, because a server id alone must not decide which stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(super) u64);

/// What the caller does with a stream that was just opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Keep it under this id until [`Machine::lost`](super::machine::Machine::lost).
    Keep(StreamId),
    /// The same: it is another lane to a connected server.
    KeepLane(StreamId),
    /// Keep it under the first id, and retire the stream of the second id.
    Replace(StreamId, StreamId),
    /// Close it: there is already a stream to this server.
    Duplicate,
    /// Close it: the agent drains.
    Unwanted,
}

/// What a server announces with a new stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerInfo {
    /// The number of servers.
    pub servers: usize,
    /// The number of lanes that it accepts of one agent; 1 without lanes.
    pub lanes: usize,
}

/// A connected server.
#[derive(Debug)]
struct Server {
    /// What it announced last.
    info: ServerInfo,
    /// Its RTT is high: more lanes are wanted.
    high_rtt: bool,
    /// Never empty.
    lanes: Vec<KeptStream>,
}

/// A kept stream, and the reasons to replace it.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeptStream {
    id: StreamId,
    /// The server does not answer pings, or has sent GOAWAY.
    pub(super) unresponsive: bool,
    /// The stream's client certificate is about to expire.
    pub(super) expiring: bool,
    opened: Duration,
    /// Streams in a row that replaced each other, this one included, that wanted a successor within [`SHORT_LIVED`].
    short: u32,
}

impl KeptStream {
    fn wants_successor(&self) -> bool {
        self.unresponsive || self.expiring
    }
}

/// The end of a kept stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EndedStream {
    pub(super) server: Arc<str>,
    /// The server has no other kept stream.
    pub(super) last: bool,
    /// The stream ended within [`ENDED_SOON`].
    pub(super) soon: bool,
}

/// The kept and the retiring streams.
#[derive(Debug)]
pub(super) struct Streams {
    /// The wanted lanes of a server with a low RTT.
    lanes: usize,
    kept: HashMap<Arc<str>, Server>,
    retired: HashMap<StreamId, Arc<str>>,
    next_id: u64,
}

impl Streams {
    /// `lanes`: `--lanes`.
    pub(super) fn new(lanes: usize) -> Self {
        Self { lanes, kept: HashMap::new(), retired: HashMap::new(), next_id: 0 }
    }

    /// The number of servers with a stream.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether a server has a stream.
    pub(super) fn contains(&self, server: &str) -> bool {
        self.kept.contains_key(server)
    }

    /// The number of servers of which no stream answers.
    pub(super) fn unresponsive_servers(&self) -> usize {
        self.kept.values().filter(|server| server.lanes.iter().all(|lane| lane.unresponsive)).count()
    }

    /// Takes a new stream, unless it is a duplicate.
    pub(super) fn insert(&mut self, now: Duration, server: &Arc<str>, info: ServerInfo) -> Decision {
        if let Some(kept) = self.kept.get_mut(server) {
            kept.info = info;
        }
        let replaces = self.may_retire(server);
        let lacks_lane = self.lacks_lane(server);
        let id = StreamId(self.next_id);
        let new = |short| KeptStream { id, unresponsive: false, expiring: false, opened: now, short };
        let decision = match self.kept.get_mut(server) {
            None => {
                let lanes = vec![new(0)];
                self.kept.insert(Arc::clone(server), Server { info, high_rtt: false, lanes });
                Decision::Keep(id)
            }
            Some(kept) => match kept.lanes.iter_mut().find(|lane| lane.wants_successor()) {
                Some(old) if replaces => {
                    let old = std::mem::replace(old, new(old.short));
                    self.retired.insert(old.id, Arc::clone(server));
                    Decision::Replace(id, old.id)
                }
                _ if lacks_lane => {
                    kept.lanes.push(new(0));
                    Decision::KeepLane(id)
                }
                _ => return Decision::Duplicate,
            },
        };
        self.next_id += 1;
        decision
    }

    /// Changes the reasons to replace a kept stream. If it now wants a successor and did not before, returns its server, and the
    /// number of streams before it in a row that wanted one soon after their start, as this one does.
    pub(super) fn update_kept(
        &mut self,
        now: Duration,
        id: StreamId,
        update: impl FnOnce(&mut KeptStream),
    ) -> Option<(Arc<str>, u32)> {
        let lanes = self
            .kept
            .iter_mut()
            .flat_map(|(name, server)| server.lanes.iter_mut().map(move |lane| (name, lane)));
        let (server, kept) = { lanes }.find(|(_, kept)| kept.id == id)?;
        let before = kept.wants_successor();
        update(kept);
        if before || !kept.wants_successor() {
            return None;
        }
        kept.short = if now < kept.opened + SHORT_LIVED { kept.short.saturating_add(1) } else { 0 };
        Some((Arc::clone(server), kept.short.saturating_sub(1)))
    }

    /// The RTT of a stream's server is high. Returns false if that was already known.
    pub(super) fn set_high_rtt(&mut self, id: StreamId) -> bool {
        self.server_of(id).is_some_and(|server| !std::mem::replace(&mut server.high_rtt, true))
    }

    /// The server of a stream announces this number of servers.
    pub(super) fn set_server_count(&mut self, id: StreamId, servers: usize) {
        if let Some(server) = self.server_of(id) {
            server.info.servers = servers;
        }
    }

    fn server_of(&mut self, id: StreamId) -> Option<&mut Server> {
        self.kept.values_mut().find(|server| server.lanes.iter().any(|lane| lane.id == id))
    }

    /// Whether another lane to the same server does not answer.
    pub(super) fn has_unresponsive_sibling_lane(&self, id: StreamId) -> bool {
        let of_server = |server: &&Server| server.lanes.iter().any(|lane| lane.id == id);
        let server = self.kept.values().find(of_server);
        server.is_some_and(|server| server.lanes.iter().any(|lane| lane.id != id && lane.unresponsive))
    }

    /// A kept stream retires without a successor.
    pub(super) fn retire(&mut self, now: Duration, id: StreamId) {
        let ended = self.end_kept(now, id);
        self.retired.extend(ended.map(|ended| (id, ended.server)));
    }

    /// A retiring stream has ended; false if this is none.
    pub(super) fn end_retired(&mut self, id: StreamId) -> bool {
        self.retired.remove(&id).is_some()
    }

    /// A kept stream has ended, or retires.
    pub(super) fn end_kept(&mut self, now: Duration, id: StreamId) -> Option<EndedStream> {
        let (name, server) =
            self.kept.iter_mut().find(|(_, server)| server.lanes.iter().any(|lane| lane.id == id))?;
        let name = Arc::clone(name);
        let place = server.lanes.iter().position(|lane| lane.id == id)?;
        let ended = server.lanes.remove(place);
        let last = server.lanes.is_empty();
        if last {
            self.kept.remove(&name);
        }
        Some(EndedStream { server: name, last, soon: now < ended.opened + ENDED_SOON })
    }

    /// Whether a stream to this server would be kept. `lanes`: also as another lane.
    pub(super) fn lacks(&self, server: &Arc<str>, lanes: bool) -> bool {
        self.kept.get(server).is_none_or(|kept| {
            kept.lanes.iter().any(KeptStream::wants_successor) && self.may_retire(server)
                || lanes && self.lacks_lane(server)
        })
    }

    /// Whether a kept stream needs a replacement that its server would accept.
    pub(super) fn lack_successor(&self) -> bool {
        self.successors_wanted(KeptStream::wants_successor)
    }

    /// Whether a server that does not answer would accept another stream.
    pub(super) fn lack_answers(&self) -> bool {
        self.successors_wanted(|kept| kept.unresponsive)
    }

    /// Whether a server has fewer lanes than wanted.
    pub(super) fn lack_lanes(&self) -> bool {
        self.kept.keys().any(|server| self.lacks_lane(server))
    }

    /// The number of servers that every server announced last, if it is the same.
    pub(super) fn agreed_server_count(&self) -> Option<usize> {
        let first = self.kept.values().next()?.info.servers;
        let agree = self.kept.values().all(|kept| kept.info.servers == first);
        agree.then_some(first).filter(|count| *count > 0)
    }

    fn successors_wanted(&self, wanted: impl Fn(&KeptStream) -> bool) -> bool {
        self.kept.iter().any(|(name, server)| server.lanes.iter().any(&wanted) && self.may_retire(name))
    }

    /// Twice as many lanes are wanted if the RTT is high, but no more than the server accepts, and one while any server accepts no
    /// more: lanes to the others would fill them up, and a balancer that prefers the server with the fewest connections would send
    /// every attempt to that one.
    fn lacks_lane(&self, server: &Arc<str>) -> bool {
        if self.kept.values().any(|kept| kept.info.lanes < 2) {
            return false;
        }
        self.kept.get(server).is_some_and(|kept| {
            let wanted = if kept.high_rtt && self.lanes > 1 { 2 * self.lanes } else { self.lanes };
            kept.lanes.len() < wanted.min(kept.info.lanes).min(MAX_LANES)
        })
    }

    /// Whether the server would accept another stream beside the retiring ones.
    fn may_retire(&self, server: &Arc<str>) -> bool {
        let lanes = self.kept.get(server).map_or(1, |kept| kept.lanes.len());
        self.retired.values().filter(|retired| *retired == server).count() < MAX_RETIRED * lanes
    }
}
