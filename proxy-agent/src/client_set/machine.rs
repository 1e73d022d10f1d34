//! The rules of the client set as data: when to open another stream, and which streams to keep.
//!
//! ```text
//!            poll, due             connected / failed
//!   Waiting ───────────▶ Connecting ─────────────────▶ Waiting
//!      ▲                                                  │ drain
//!      └──────────── stream lost, count changed           ▼
//!                                                      Draining (final)
//! ```
//!
//! No clock, no socket: `now` is the time since the set's start, and randomness is passed in. One stream is kept for each
//! server id. A stream that should be replaced is kept until another one to the same server is open, and then stays without new
//! dials until it is idle. A load balancer may lead every attempt to a server that is already known. Such a duplicate causes no
//! backoff, because it says nothing about the missing servers, unless so many follow each other that the balancer is evidently
//! stuck. The pauses are in [`super::pace`].
//!
//! | state | attempts |
//! |---|---|
//! | servers are missing | until they are found |
//! | the known number is connected | none |
//! | the same, `--sync-forever`, and the number is the leases' | none |
//! | the same, and every connected server told this number | one in about ten minutes |
//! | the same, and the number is evidently wrong | as if servers were missing |

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::pace::Pace;

/// Attempts in a row that must lead to the one connected server before `--sync-forever` believes a count of 1: it is the
/// default of servers, which nobody may have chosen.
const PROOF_OF_ONE: usize = 10;

/// Retiring streams to one server at once: a server accepts 4 streams of an agent, of which one is the kept stream and one may
/// be a duplicate.
const MOST_RETIRED: usize = 2;

/// How the number of servers is derived if both sources have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CountSource {
    /// The leases' count if leases are counted, otherwise the count of the last new server.
    #[default]
    Default,
    /// The larger of the two.
    Max,
}

/// The client set's settings, from flags of the same names.
#[derive(Debug, Clone)]
pub struct SyncSettings {
    /// Pause between attempts.
    pub interval: Duration,
    /// The longest pause, not counting jitter.
    pub cap: Duration,
    /// Whether to continue with as many streams as there are servers.
    pub forever: bool,
    /// The source of the number of servers.
    pub count_source: CountSource,
}

/// The id of one kept stream. Never reused, because a server id alone must not decide which stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

/// The next action of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Open a stream, and report the result by [`Machine::connected`] or [`Machine::failed`].
    Connect,
    /// Do nothing before this time.
    WaitUntil(Duration),
    /// Do nothing before an event.
    Wait,
}

/// What the caller does with a stream that was just opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Keep it under this id until [`Machine::lost`].
    Keep(StreamId),
    /// Keep it under the first id, and retire the stream of the second id.
    Replace(StreamId, StreamId),
    /// Close it: there is already a stream to this server.
    Duplicate,
    /// Close it: the agent drains.
    Unwanted,
}

/// The state of the rules.
#[derive(Debug)]
pub struct Machine<J> {
    settings: SyncSettings,
    pace: Pace<J>,
    /// Kept streams by server: at most one for each.
    open: HashMap<Arc<str>, Kept>,
    /// Retiring streams, with their servers.
    retired: HashMap<StreamId, Arc<str>>,
    next_id: u64,
    /// The count of the last new server; 0 before the first.
    told: usize,
    /// The leases' count, if leases are counted.
    leases: Option<usize>,
    phase: Phase,
    /// The next attempt for servers that nobody announced.
    look: Duration,
    /// Errors in a row.
    failures: u32,
}

/// Why to open another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Demand {
    None,
    /// Another server is possible, but not expected.
    Look,
    /// The number of servers is evidently wrong.
    Doubt,
    /// A stream needs a successor before its certificate expires.
    Renewal,
    /// A server is missing or does not answer.
    Missing,
}

/// A kept stream, and the reasons to replace it.
#[derive(Debug, Clone, Copy)]
struct Kept {
    id: StreamId,
    /// The number of servers that this server told last.
    told: usize,
    /// The server does not answer pings.
    unresponsive: bool,
    /// The stream's client certificate is about to expire.
    aged: bool,
}

impl Kept {
    fn wants_successor(&self) -> bool {
        self.unresponsive || self.aged
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No attempt before this time.
    Waiting(Duration),
    Connecting,
    Draining,
}

impl<J: FnMut() -> f64> Machine<J> {
    /// A set without streams; the first attempt is due at once.
    pub fn new(settings: SyncSettings, jitter: J) -> Self {
        Self {
            pace: Pace::new(settings.interval, settings.cap, jitter),
            settings,
            open: HashMap::new(),
            retired: HashMap::new(),
            next_id: 0,
            told: 0,
            leases: None,
            phase: Phase::Waiting(Duration::ZERO),
            look: Duration::ZERO,
            failures: 0,
        }
    }

    /// The known number of servers; at least 1.
    pub fn server_count(&self) -> usize {
        let count = match (self.settings.count_source, self.leases) {
            (CountSource::Default, Some(leases)) => leases,
            (CountSource::Max, Some(leases)) => leases.max(self.told),
            (_, None) => self.told,
        };
        count.max(1)
    }

    /// The number of servers with a stream.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Whether the set drains: it opens no stream any more.
    pub fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// The action at `now`. After [`Step::Connect`] the caller must report a result first.
    pub fn poll(&mut self, now: Duration) -> Step {
        let Phase::Waiting(due) = self.phase else { return Step::Wait };
        match self.demand() {
            Demand::None => Step::Wait,
            Demand::Look if now < self.look => Step::WaitUntil(self.look),
            Demand::Missing | Demand::Renewal | Demand::Doubt if now < due => Step::WaitUntil(due),
            _ => {
                self.phase = Phase::Connecting;
                self.pace.attempt(now);
                Step::Connect
            }
        }
    }

    /// A stream is open. `count` is the server's count of all servers; it is used only if the server is new.
    pub fn connected(&mut self, now: Duration, server: &Arc<str>, count: usize) -> Decision {
        if self.is_draining() {
            return Decision::Unwanted;
        }
        self.failures = 0;
        let incumbent = self.open.get(server).copied();
        if incumbent.is_some_and(|kept| !kept.wants_successor() || !self.may_retire(server)) {
            if let Some(kept) = self.open.get_mut(server) {
                kept.told = count;
            }
            let pause = self.pace.after_duplicate(now, self.server_count(), self.demand() == Demand::Missing);
            self.wait(now, pause);
            return Decision::Duplicate;
        }
        let id = StreamId(self.next_id);
        self.next_id += 1;
        self.open.insert(server.clone(), Kept { id, told: count, unresponsive: false, aged: false });
        let decision = match incumbent {
            Some(Kept { id: old, .. }) => {
                self.retired.insert(old, server.clone());
                Decision::Replace(id, old)
            }
            None => {
                let before = self.server_count();
                self.told = count;
                if self.server_count() != before {
                    self.news();
                }
                Decision::Keep(id)
            }
        };
        let pause = self.pace.after_stream(now, self.server_count(), self.demand() == Demand::Missing);
        self.wait(now, pause);
        decision
    }

    /// The server of a kept stream does not answer pings, or answers again.
    pub fn set_unresponsive(&mut self, now: Duration, id: StreamId, unresponsive: bool) {
        self.mark(now, id, |kept| kept.unresponsive = unresponsive);
    }

    /// The certificate of a kept stream is about to expire. Returns false if that was already known.
    pub fn aged(&mut self, now: Duration, id: StreamId) -> bool {
        let mut news = false;
        self.mark(now, id, |kept| news = !std::mem::replace(&mut kept.aged, true));
        news
    }

    fn mark(&mut self, now: Duration, id: StreamId, mark: impl FnOnce(&mut Kept)) {
        let Some(kept) = self.open.values_mut().find(|kept| kept.id == id) else { return };
        let before = kept.wants_successor();
        mark(kept);
        if kept.wants_successor() && !before {
            self.seek(now);
        }
    }

    fn seek(&mut self, now: Duration) {
        self.news();
        self.hurry(now);
    }

    /// There is a reason to look for servers.
    fn news(&mut self) {
        let (known, open) = (self.server_count(), self.open.len());
        self.pace.news(known, known.saturating_sub(open).max(1));
    }

    /// Whether the server would accept another stream beside the retiring ones.
    fn may_retire(&self, server: &Arc<str>) -> bool {
        self.retired.values().filter(|retired| *retired == server).count() < MOST_RETIRED
    }

    /// Whether a kept stream needs a replacement that its server would accept.
    fn lacks_successor(&self) -> bool {
        self.successors_wanted(|kept| kept.wants_successor())
    }

    fn successors_wanted(&self, wanted: impl Fn(&Kept) -> bool) -> bool {
        self.open.iter().any(|(server, kept)| wanted(kept) && self.may_retire(server))
    }

    /// The attempt failed. Returns the pause, for the log.
    pub fn failed(&mut self, now: Duration) -> Duration {
        let pause = self.pace.grown(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.wait(now, pause);
        match self.demand() {
            Demand::Look => self.look.saturating_sub(now),
            _ => pause,
        }
    }

    /// A kept stream has ended.
    pub fn lost(&mut self, now: Duration, id: StreamId) {
        if self.retired.remove(&id).is_some() {
            if self.lacks_successor() {
                // Before, the server had no room for the replacement.
                self.seek(now);
            }
            return;
        }
        let complete = self.open.len() >= self.server_count();
        self.open.retain(|_, kept| kept.id != id);
        self.news();
        if let Phase::Waiting(due) = self.phase {
            let next = self.pace.after_loss(now, due, complete);
            // Never before the pause after an error.
            self.phase = Phase::Waiting(if self.failures > 0 { next.max(due) } else { next });
        }
    }

    /// Sets the leases' count; `None` if leases are not (or not yet) counted.
    pub fn leases_counted(&mut self, now: Duration, leases: Option<usize>) {
        let before = self.server_count();
        self.leases = leases;
        if self.server_count() != before {
            self.seek(now);
        }
    }

    /// Makes the next attempt due within an interval, unless an error demands a longer pause.
    fn hurry(&mut self, now: Duration) {
        if let Phase::Waiting(due) = self.phase
            && self.failures == 0
        {
            self.phase = Phase::Waiting(self.pace.hurried(now, due));
        }
    }

    /// Opens no stream from now on; the result of a running attempt is discarded.
    pub fn drain(&mut self) {
        self.phase = Phase::Draining;
    }

    fn demand(&self) -> Demand {
        let open = self.open.len();
        if open < self.server_count() || self.successors_wanted(|kept| kept.unresponsive) {
            return Demand::Missing;
        }
        if self.lacks_successor() {
            return Demand::Renewal;
        }
        if !self.settings.forever || self.leases == Some(open) {
            return Demand::None;
        }
        let unanimous = self.open.values().all(|kept| kept.told.max(1) == open);
        let proven = open > 1 || self.pace.duplicates() >= PROOF_OF_ONE;
        if unanimous && proven { Demand::Look } else { Demand::Doubt }
    }

    /// Makes the next attempt due after a pause, and puts off the next look.
    fn wait(&mut self, now: Duration, pause: Duration) {
        self.look = now + self.pace.until_look();
        if !self.is_draining() {
            self.phase = Phase::Waiting(now + pause);
        }
    }
}

#[cfg(test)]
#[path = "simulation.rs"]
mod simulation;
#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
