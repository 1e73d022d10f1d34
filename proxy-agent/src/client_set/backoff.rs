//! The pauses between attempts, as data.
//!
//! | last attempt | pause |
//! |---|---|
//! | an error | `--sync-interval`, growing to `--sync-interval-cap` with each further error |
//! | a stream, while servers are missing and the burst lasts | [`BURST_PAUSE`], down to [`LAST_PAUSE`] of it for the last of many servers |
//! | a stream to a known server, too often in a row | `--sync-interval`, growing likewise |
//! | any other | `--sync-interval` |
//!
//! A load balancer may lead every attempt to a server that is already known. Such a duplicate causes no backoff, because it says
//! nothing about the missing servers, unless so many follow each other that the balancer is evidently stuck.
//!
//! A burst is limited in attempts. They are earned at the rate of one in each interval, so that a server that ends its streams
//! again and again does not cause one burst after another.

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
pub(super) const PATIENCE: usize = 3;

/// The shortest pause of a burst, and its largest random lengthening. Chosen by the simulation in `machine_tests.rs`.
const BURST_PAUSE: Duration = Duration::from_millis(25);
const BURST_SPREAD: Duration = Duration::from_millis(25);

/// The pause is shorter, down to this share, while less than one in [`FEW`] of the servers is missing: most attempts lead to
/// connected servers then, and most other agents have finished.
const LAST_PAUSE: f64 = 0.4;
const FEW: f64 = 4.0;

/// Attempts of a burst for each known server: this many for each missing server, but at most the second number. Of a million
/// agents behind a balancer that chooses at random and leads to 20 servers, six do not find all of them in the second number.
const BURST: usize = 3;
pub(super) const LONGEST_BURST: usize = 15;

/// Attempts that a burst for several servers still has for further lanes, with more servers than the second number: other agents
/// may still seek their first streams.
const LANE_BURST: usize = 8;
const LANE_BURST_ABOVE: usize = 8;

/// Servers that are believed to be missing: a count may be wrong, and nothing limits it.
pub(super) const MOST_MISSING: usize = 16;

/// Duplicates in a row that end a burst, whatever the count is: this many for each server with a stream, but at most the second
/// number. Of 4,000 agents that miss the last of 20 servers one does not find it in that many.
const FRUITLESS: usize = 10;
const MOST_FRUITLESS: usize = 160;

/// Interval of the attempts of an agent that has no reason to expect another server; a quarter shorter or longer at random.
const LOOK: Duration = Duration::from_secs(600);

/// The pauses. Times are since the set's start.
#[derive(Debug)]
pub(super) struct Backoff<J> {
    /// `--sync-interval`.
    interval: Duration,
    /// `--sync-interval-cap`.
    cap: Duration,
    /// Returns random numbers from 0 up to, and not including, 1.
    jitter: J,
    /// Duplicates in a row after the burst.
    duplicates: usize,
    /// Attempts that are left of the burst.
    burst: usize,
    /// Several servers were missing at the last news.
    for_several: bool,
    /// Duplicates in a row in the burst.
    fruitless: usize,
    /// Until when the attempts so far would have lasted without bursts.
    earned: Duration,
}

impl<J: FnMut() -> f64> Backoff<J> {
    pub(super) fn new(interval: Duration, cap: Duration, jitter: J) -> Self {
        let (duplicates, burst, fruitless, earned) = (0, 0, 0, Duration::ZERO);
        let cap = cap.max(interval);
        Self { interval, cap, jitter, duplicates, burst, for_several: false, fruitless, earned }
    }

    /// The duplicates in a row, not counting those of bursts.
    pub(super) fn duplicates(&self) -> usize {
        self.duplicates
    }

    /// A reason to look for servers: `missing` of `known`. `shared`: probably other agents have it, too.
    pub(super) fn news(&mut self, known: usize, missing: usize, shared: bool) {
        (self.duplicates, self.fruitless, self.for_several) = (0, 0, missing > 1);
        self.burst = match shared && missing == 1 && known > 1 {
            // The server itself may be gone, and duplicates of the others cannot tell that.
            true => known,
            false => BURST.saturating_mul(missing).min(LONGEST_BURST).saturating_mul(known),
        };
    }

    /// Only further lanes to `known` servers are missing.
    pub(super) fn only_lanes(&mut self, known: usize) {
        if known > LANE_BURST_ABOVE && self.for_several {
            self.burst = self.burst.min(LANE_BURST);
        }
    }

    /// An attempt starts.
    pub(super) fn attempt(&mut self, now: Duration) {
        self.earned = self.earned.max(now) + self.interval;
    }

    /// The pause after a stream to a new server. The rest as in [`Self::after_duplicate`].
    pub(super) fn after_stream(&mut self, now: Duration, servers: (usize, usize), wanted: bool) -> Duration {
        (self.duplicates, self.fruitless) = (0, 0);
        self.in_burst(now, servers, wanted).unwrap_or_else(|| self.grown(0))
    }

    /// The pause after a stream to one of the `open` servers that have one that answers, of `known` servers. `wanted`: servers are
    /// missing, so that a burst may continue.
    pub(super) fn after_duplicate(
        &mut self,
        now: Duration,
        (open, known): (usize, usize),
        wanted: bool,
    ) -> Duration {
        self.fruitless = self.fruitless.saturating_add(1);
        let may_hit = self.fruitless <= FRUITLESS.saturating_mul(open).min(MOST_FRUITLESS);
        if let Some(pause) = self.in_burst(now, (open, known), wanted && may_hit) {
            return pause;
        }
        self.duplicates = self.duplicates.saturating_add(1);
        let beyond = self.duplicates.saturating_sub(PATIENCE.saturating_mul(known));
        let share = if beyond > 0 { 1.0 - SPREAD * (self.jitter)() } else { 1.0 };
        self.grown(u32::try_from(beyond).unwrap_or(u32::MAX)).mul_f64(share)
    }

    fn in_burst(&mut self, now: Duration, (open, known): (usize, usize), wanted: bool) -> Option<Duration> {
        let longest = u32::try_from(LONGEST_BURST.saturating_mul(known)).unwrap_or(u32::MAX);
        let is_earned = self.earned.saturating_sub(now) <= self.interval.saturating_mul(longest);
        if !wanted || self.burst == 0 || !is_earned {
            self.burst = 0;
            return None;
        }
        self.burst -= 1;
        let missing = known.saturating_sub(open).max(1) as f64 / known.max(1) as f64;
        let share = (missing * FEW).clamp(LAST_PAUSE, 1.0);
        Some((BURST_PAUSE + BURST_SPREAD.mul_f64((self.jitter)())).mul_f64(share).min(self.interval))
    }

    /// When to try again after a loss at `now`, with the next attempt due at `due`. A restarted server loses all its agents at
    /// the same moment, and they must not reconnect in step. `complete`: no other server was missing.
    pub(super) fn after_loss(&mut self, now: Duration, due: Duration, complete: bool) -> Duration {
        let part = self.part_of_interval();
        match complete {
            // Not before the pause after a recent attempt.
            true => due.min(now + self.interval).max(now + part),
            // Attempts are under way, but perhaps far apart because of duplicates.
            false => due.min(now + self.interval + part),
        }
    }

    /// A random part of the interval.
    pub(super) fn part_of_interval(&mut self) -> Duration {
        self.interval.mul_f64((self.jitter)())
    }

    /// The pause before the next look for servers that nobody announced.
    pub(super) fn until_look(&mut self) -> Duration {
        LOOK.mul_f64(0.75 + (self.jitter)() / 2.0)
    }

    /// The interval, grown `steps` times, with jitter: the pause after an error that follows `steps` others.
    pub(super) fn grown(&mut self, steps: u32) -> Duration {
        // The growth of more steps is far above any cap; the limit keeps it finite.
        let growth = FACTOR.powi(i32::try_from(steps.min(64)).unwrap_or(64));
        let capped = (self.interval.as_secs_f64() * growth).min(self.cap.as_secs_f64());
        Duration::from_secs_f64(capped * (1.0 + JITTER * (self.jitter)()))
    }
}
