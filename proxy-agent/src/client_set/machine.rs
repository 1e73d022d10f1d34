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
//! stuck.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Growth of the pause with each error (Go: 1.5).
const FACTOR: f64 = 1.5;

/// Largest random lengthening of a pause, as a fraction of it (Go: 0.1).
const JITTER: f64 = 0.1;

/// Largest random shortening of the pause after too many duplicates, as a fraction of it. A round-robin balancer may always
/// lead two agents that try in step to the servers that they already have. With a tenth of jitter they get out of step after
/// about forty attempts, with three quarters after a few.
const SPREAD: f64 = 0.75;

/// Duplicates in a row, for each known server, that cause no backoff.
const PATIENCE: usize = 3;

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
    /// Returns random numbers from 0 up to, and not including, 1.
    jitter: J,
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
    /// Errors in a row.
    failures: u32,
    /// Duplicates since the last new server, loss or change of the count.
    duplicates: usize,
}

/// A kept stream, and the reasons to replace it.
#[derive(Debug, Clone, Copy)]
struct Kept {
    id: StreamId,
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
            settings,
            jitter,
            open: HashMap::new(),
            retired: HashMap::new(),
            next_id: 0,
            told: 0,
            leases: None,
            phase: Phase::Waiting(Duration::ZERO),
            failures: 0,
            duplicates: 0,
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

    /// Whether the last attempt was the first of many in a row that reached no missing server. True once until a server is new
    /// or lost, or the count changes.
    pub fn is_stuck(&self) -> bool {
        self.open.len() < self.server_count() && self.duplicates == PATIENCE * self.server_count() + 1
    }

    /// Whether the set drains: it opens no stream any more.
    pub fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// The action at `now`. After [`Step::Connect`] the caller must report a result first.
    pub fn poll(&mut self, now: Duration) -> Step {
        match self.phase {
            Phase::Waiting(_) if !self.wants_more() => Step::Wait,
            Phase::Waiting(due) if now < due => Step::WaitUntil(due),
            Phase::Waiting(_) => {
                self.phase = Phase::Connecting;
                Step::Connect
            }
            Phase::Connecting | Phase::Draining => Step::Wait,
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
            self.duplicates = self.duplicates.saturating_add(1);
            let beyond = self.duplicates.saturating_sub(PATIENCE.saturating_mul(self.server_count()));
            let shorter = if beyond > 0 { SPREAD * (self.jitter)() } else { 0.0 };
            self.wait(now, u32::try_from(beyond).unwrap_or(u32::MAX), 1.0 - shorter);
            return Decision::Duplicate;
        }
        let id = StreamId(self.next_id);
        self.next_id += 1;
        self.open.insert(server.clone(), Kept { id, unresponsive: false, aged: false });
        self.duplicates = 0;
        self.wait(now, 0, 1.0);
        match incumbent {
            Some(Kept { id: old, .. }) => {
                self.retired.insert(old, server.clone());
                Decision::Replace(id, old)
            }
            None => {
                self.told = count;
                Decision::Keep(id)
            }
        }
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
            self.seek_successor(now);
        }
    }

    fn seek_successor(&mut self, now: Duration) {
        self.duplicates = 0;
        self.hurry(now);
    }

    /// Whether the server would accept another stream beside the retiring ones.
    fn may_retire(&self, server: &Arc<str>) -> bool {
        self.retired.values().filter(|retired| *retired == server).count() < MOST_RETIRED
    }

    /// Whether a kept stream needs a replacement that its server would accept.
    fn lacks_successor(&self) -> bool {
        self.open.iter().any(|(server, kept)| kept.wants_successor() && self.may_retire(server))
    }

    /// The attempt failed. Returns the pause, for the log.
    pub fn failed(&mut self, now: Duration) -> Duration {
        let steps = self.failures;
        self.failures = self.failures.saturating_add(1);
        self.wait(now, steps, 1.0)
    }

    /// A kept stream has ended. The next attempt is not due at once: a restarted server loses all its agents at the same
    /// moment, and they must not reconnect in step.
    pub fn lost(&mut self, now: Duration, id: StreamId) {
        if self.retired.remove(&id).is_some() {
            if self.lacks_successor() {
                // Before, the server had no room for the replacement.
                self.seek_successor(now);
            }
            return;
        }
        self.open.retain(|_, kept| kept.id != id);
        self.duplicates = 0;
        if let Phase::Waiting(due) = self.phase {
            let spread = self.settings.interval.mul_f64((self.jitter)());
            // Not before the pause after an error or a recent attempt, but without the backoff for duplicates.
            let latest = if self.failures > 0 { due } else { due.min(now + self.settings.interval) };
            self.phase = Phase::Waiting(latest.max(now + spread));
        }
    }

    /// Sets the leases' count; `None` if leases are not (or not yet) counted.
    pub fn leases_counted(&mut self, now: Duration, leases: Option<usize>) {
        let before = self.server_count();
        self.leases = leases;
        if self.server_count() != before {
            self.duplicates = 0;
            self.hurry(now);
        }
    }

    /// Makes the next attempt due within an interval, unless an error demands a longer pause.
    fn hurry(&mut self, now: Duration) {
        if let Phase::Waiting(due) = self.phase
            && self.failures == 0
        {
            self.phase = Phase::Waiting(due.min(now + self.settings.interval));
        }
    }

    /// Opens no stream from now on; the result of a running attempt is discarded.
    pub fn drain(&mut self) {
        self.phase = Phase::Draining;
    }

    fn wants_more(&self) -> bool {
        self.settings.forever || self.open.len() < self.server_count() || self.lacks_successor()
    }

    /// Makes the next attempt due after this share of the interval, grown `steps` times, with jitter.
    fn wait(&mut self, now: Duration, steps: u32, share: f64) -> Duration {
        // The growth of more steps is far above any cap; the limit keeps it finite.
        let growth = FACTOR.powi(i32::try_from(steps.min(64)).unwrap_or(64));
        let grown = self.settings.interval.as_secs_f64() * growth;
        let capped = grown.min(self.settings.cap.max(self.settings.interval).as_secs_f64());
        let pause = Duration::from_secs_f64(capped * share * (1.0 + JITTER * (self.jitter)()));
        if !self.is_draining() {
            self.phase = Phase::Waiting(now + pause);
        }
        pause
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
