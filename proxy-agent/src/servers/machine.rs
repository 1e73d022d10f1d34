//! When to open another stream to a server, and which streams to keep: the client set's rules as data.
//!
//! ```text
//!            poll, due             connected / failed
//!   Waiting ───────────▶ Connecting ─────────────────▶ Waiting
//!      ▲                                                  │ drain
//!      └──────────── stream lost, count changed           ▼
//!                                                      Draining (for good)
//! ```
//!
//! No clock, no socket: `now` is the time since the set's start, randomness is passed in. One stream is kept
//! per server id. One that should be replaced stays until another to the same server is open, and then on, without new
//! dials, for as long as something goes on in it. Every try goes through a load balancer that may answer with a server already known: such a
//! duplicate costs no backoff, for it says nothing about the servers that are missing, until so many came in a
//! row that the balancer is plainly stuck.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// By how much the pause grows with each error (Go: 1.5).
const FACTOR: f64 = 1.5;

/// By how much at most a pause is lengthened at random (Go: 0.1).
const JITTER: f64 = 0.1;

/// By how much at most the pause after a duplicate too many is shortened at random. Two agents behind a balancer that takes turns
/// may always be sent to the servers that they have, for as long as they try in step: by a tenth they drift apart in some
/// forty tries, by three quarters in a few.
const SPREAD: f64 = 0.75;

/// So many duplicates in a row, times the count of servers, are taken without backoff.
const PATIENCE: usize = 3;

/// So many streams of one server may be on their way out at once: a server takes 4 of an agent, and one is kept and
/// one may be a duplicate.
const MOST_RETIRED: usize = 2;

/// Whom to believe about the number of servers, if both sources have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CountSource {
    /// The leases where they are counted, else what the last new server said.
    #[default]
    Default,
    /// The larger of the two.
    Max,
}

/// The client set's settings, from flags of the same names.
#[derive(Debug, Clone)]
pub struct SyncSettings {
    /// Pause between tries.
    pub interval: Duration,
    /// The longest pause, not counting jitter.
    pub cap: Duration,
    /// Tries on even with as many streams as there are servers.
    pub forever: bool,
    /// Whom to believe about the number of servers.
    pub count_source: CountSource,
}

/// One kept stream. Ids are never used twice: a name alone must not decide what is torn down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

/// What the shell is to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Open a stream, and report by [`Machine::connected`] or [`Machine::failed`].
    Connect,
    /// Nothing before this time.
    WaitUntil(Duration),
    /// Nothing before an event.
    Wait,
}

/// What becomes of a stream just opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Kept under this id until [`Machine::lost`].
    Keep(StreamId),
    /// Kept under the first id; the second one's stream is to be retired.
    Replace(StreamId, StreamId),
    /// To be closed: there is one to this server already.
    Duplicate,
    /// To be closed: the agent drains.
    Unwanted,
}

/// The rules' state.
#[derive(Debug)]
pub struct Machine<J> {
    settings: SyncSettings,
    /// Yields numbers from 0 up to, and not including, 1.
    jitter: J,
    /// Kept streams by server: never two of one.
    open: HashMap<Arc<str>, Kept>,
    /// Streams on their way out, with their servers.
    retired: HashMap<StreamId, Arc<str>>,
    next_id: u64,
    /// The last new server's word; 0 before there was one.
    told: usize,
    /// The leases' count, where they are counted.
    leases: Option<usize>,
    phase: Phase,
    /// Errors in a row.
    failures: u32,
    /// Duplicates since the last news.
    duplicates: usize,
}

/// A kept stream, and what speaks for another one in its place.
#[derive(Debug, Clone, Copy)]
struct Kept {
    id: StreamId,
    /// It may be dead.
    suspect: bool,
    /// What was shown for it is about to expire.
    aged: bool,
}

impl Kept {
    fn wants_successor(&self) -> bool {
        self.suspect || self.aged
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No try before this time.
    Waiting(Duration),
    Connecting,
    Draining,
}

impl<J: FnMut() -> f64> Machine<J> {
    /// A set without streams, whose first try is due at once.
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

    /// How many servers there are, as far as is known; at least 1.
    pub fn server_count(&self) -> usize {
        let count = match (self.settings.count_source, self.leases) {
            (CountSource::Default, Some(leases)) => leases,
            (CountSource::Max, Some(leases)) => leases.max(self.told),
            (_, None) => self.told,
        };
        count.max(1)
    }

    /// To how many servers there is a stream.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Whether the set drains: no stream is opened any more.
    pub fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// What to do at `now`. After [`Step::Connect`] a report is due before anything else comes of it.
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

    /// The stream asked for is open: `server` with its word on how many there are, which counts only from a
    /// server that is new.
    pub fn connected(&mut self, now: Duration, server: &Arc<str>, count: usize) -> Verdict {
        if self.is_draining() {
            return Verdict::Unwanted;
        }
        self.failures = 0;
        let incumbent = self.open.get(server).copied();
        if incumbent.is_some_and(|kept| !kept.wants_successor() || !self.may_retire(server)) {
            self.duplicates = self.duplicates.saturating_add(1);
            let beyond = self.duplicates.saturating_sub(PATIENCE.saturating_mul(self.server_count()));
            let shorter = if beyond > 0 { SPREAD * (self.jitter)() } else { 0.0 };
            self.wait_for(now, u32::try_from(beyond).unwrap_or(u32::MAX), 1.0 - shorter);
            return Verdict::Duplicate;
        }
        let id = StreamId(self.next_id);
        self.next_id += 1;
        self.open.insert(server.clone(), Kept { id, suspect: false, aged: false });
        self.duplicates = 0;
        self.wait(now, 0);
        match incumbent {
            Some(Kept { id: old, .. }) => {
                self.retired.insert(old, server.clone());
                Verdict::Replace(id, old)
            }
            None => {
                self.told = count;
                Verdict::Keep(id)
            }
        }
    }

    /// A kept stream may be dead, or is not after all.
    pub fn suspect(&mut self, now: Duration, id: StreamId, suspect: bool) {
        self.mark(now, id, |kept| kept.suspect = suspect);
    }

    /// What was shown for a kept stream is about to expire. Returns whether that is news.
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

    /// Whether a server would take one stream more beside those on their way out. What goes on in them ends some day.
    fn may_retire(&self, server: &Arc<str>) -> bool {
        self.retired.values().filter(|retired| *retired == server).count() < MOST_RETIRED
    }

    /// Whether a kept stream is to have a successor, and its server would take it.
    fn lacks_successor(&self) -> bool {
        self.open.iter().any(|(server, kept)| kept.wants_successor() && self.may_retire(server))
    }

    /// The stream asked for could not be opened. Returns the pause, for the log.
    pub fn failed(&mut self, now: Duration) -> Duration {
        let steps = self.failures;
        self.failures = self.failures.saturating_add(1);
        self.wait(now, steps)
    }

    /// A kept stream has ended. The next try is not due at once: a server's restart loses it all its agents at
    /// the same moment, and they must not come back in step.
    pub fn lost(&mut self, now: Duration, id: StreamId) {
        if self.retired.remove(&id).is_some() {
            if self.lacks_successor() {
                // There was no room for it beside the one that has ended.
                self.seek_successor(now);
            }
            return;
        }
        self.open.retain(|_, kept| kept.id != id);
        self.duplicates = 0;
        if let Phase::Waiting(due) = self.phase {
            let spread = self.settings.interval.mul_f64((self.jitter)());
            // Behind what an error or a recent try demands, but not behind a balancer given up on.
            let latest = if self.failures > 0 { due } else { due.min(now + self.settings.interval) };
            self.phase = Phase::Waiting(latest.max(now + spread));
        }
    }

    /// The leases were counted anew; `None` if they are not (or not yet) counted.
    pub fn leases_counted(&mut self, now: Duration, leases: Option<usize>) {
        let before = self.server_count();
        self.leases = leases;
        if self.server_count() != before {
            self.duplicates = 0;
            self.hurry(now);
        }
    }

    /// The next try is due within an interval, unless an error demands a longer pause.
    fn hurry(&mut self, now: Duration) {
        if let Phase::Waiting(due) = self.phase
            && self.failures == 0
        {
            self.phase = Phase::Waiting(due.min(now + self.settings.interval));
        }
    }

    /// No stream is opened from now on; a try under way comes to nothing.
    pub fn drain(&mut self) {
        self.phase = Phase::Draining;
    }

    fn wants_more(&self) -> bool {
        self.settings.forever || self.open.len() < self.server_count() || self.lacks_successor()
    }

    /// The next try is due after the interval, grown `steps` times, with jitter.
    fn wait(&mut self, now: Duration, steps: u32) -> Duration {
        self.wait_for(now, steps, 1.0)
    }

    /// The same, with a share of the pause.
    fn wait_for(&mut self, now: Duration, steps: u32, share: f64) -> Duration {
        // Growth beyond this many steps is far above any cap, and stays finite.
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
