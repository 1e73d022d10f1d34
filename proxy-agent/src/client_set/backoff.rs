//! The pauses between attempts, as data.
//!
//! | last attempt | pause |
//! |---|---|
//! | an error | `--sync-interval`, growing to `--sync-interval-cap` with each further error |
//! | a stream, while servers are missing and the burst lasts | [`BURST_PAUSE`], or less while few servers are missing |
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

/// Largest random shortening of the pause after too many duplicates, as a fraction of it. A round-robin balancer may always lead
/// two agents that try in step to the servers that they already have. With 10 % of jitter they get out of step after about forty
/// attempts, with 75 % after a few.
const DUPLICATE_JITTER: f64 = 0.75;

/// Duplicates in a row, for each known server, that cause no backoff.
pub(super) const TOLERATED_DUPLICATES_PER_SERVER: usize = 3;

/// The shortest pause of a burst, and its largest random lengthening. Chosen by the simulation in `machine_tests.rs`.
const BURST_PAUSE: Duration = Duration::from_millis(25);
const BURST_JITTER: Duration = Duration::from_millis(25);

/// A burst's pause is multiplied by this factor and the share of missing servers, if the product is less than 1. While few servers
/// are missing, most attempts lead to connected servers, and most other agents have finished.
const FEW_MISSING_FACTOR: f64 = 4.0;
/// The lower limit of that product.
const MIN_BURST_PAUSE_SHARE: f64 = 0.4;

/// Attempts of a burst for each known server and each missing server.
const BURST_PER_MISSING_SERVER: usize = 3;
/// The most attempts of a burst for each known server. Of a million agents behind a balancer that chooses at random among 20
/// servers, six do not find all of them in that many.
pub(super) const MAX_BURST_PER_SERVER: usize = 15;

/// With more servers than this no burst seeks further lanes after a loss of several: other agents may still seek their first streams.
const LANE_BURST_ABOVE: usize = 8;

/// The limit of the number of missing servers: an announced count may be wrong, and nothing else limits it.
pub(super) const MAX_MISSING: usize = 16;

/// Duplicates in a row, for each server with a stream, that end a burst.
const FRUITLESS_PER_SERVER: usize = 10;
/// The most duplicates in a row in a burst, with any number of servers. Of 4,000 agents that miss the last of 20 servers one does
/// not find it in that many attempts.
const MAX_FRUITLESS: usize = 160;

/// Mean interval of the searches of an agent that has no reason to expect another server. Each interval is up to a quarter shorter
/// or longer at random.
const UNANNOUNCED_SEARCH_INTERVAL: Duration = Duration::from_secs(600);

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
    /// Several servers were missing when the burst started.
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

    /// Starts a burst, because `missing` of `known` servers are missing. `shared`: other agents probably search at the same time.
    pub(super) fn start_burst(&mut self, known: usize, missing: usize, shared: bool) {
        (self.duplicates, self.fruitless, self.for_several) = (0, 0, missing > 1);
        self.burst = match shared && missing == 1 && known > 1 {
            // The server itself may be gone, and duplicates of the others cannot tell that.
            true => known,
            false => BURST_PER_MISSING_SERVER
                .saturating_mul(missing)
                .min(MAX_BURST_PER_SERVER)
                .saturating_mul(known),
        };
    }

    /// Only further lanes to `known` servers are missing.
    pub(super) fn only_lanes(&mut self, known: usize) {
        if known > LANE_BURST_ABOVE && self.for_several {
            self.burst = 0;
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
        let may_hit = self.fruitless <= FRUITLESS_PER_SERVER.saturating_mul(open).min(MAX_FRUITLESS);
        if let Some(pause) = self.in_burst(now, (open, known), wanted && may_hit) {
            return pause;
        }
        self.duplicates = self.duplicates.saturating_add(1);
        let beyond = self.duplicates.saturating_sub(TOLERATED_DUPLICATES_PER_SERVER.saturating_mul(known));
        let share = if beyond > 0 { 1.0 - DUPLICATE_JITTER * (self.jitter)() } else { 1.0 };
        self.grown(u32::try_from(beyond).unwrap_or(u32::MAX)).mul_f64(share)
    }

    fn in_burst(&mut self, now: Duration, (open, known): (usize, usize), wanted: bool) -> Option<Duration> {
        let longest = u32::try_from(MAX_BURST_PER_SERVER.saturating_mul(known)).unwrap_or(u32::MAX);
        let is_earned = self.earned.saturating_sub(now) <= self.interval.saturating_mul(longest);
        if !wanted || self.burst == 0 || !is_earned {
            self.burst = 0;
            return None;
        }
        self.burst -= 1;
        let missing = known.saturating_sub(open).max(1) as f64 / known.max(1) as f64;
        let share = (missing * FEW_MISSING_FACTOR).clamp(MIN_BURST_PAUSE_SHARE, 1.0);
        Some((BURST_PAUSE + BURST_JITTER.mul_f64((self.jitter)())).mul_f64(share).min(self.interval))
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

    /// The pause before the next search for servers that nobody announced.
    pub(super) fn unannounced_search_pause(&mut self) -> Duration {
        UNANNOUNCED_SEARCH_INTERVAL.mul_f64(0.75 + (self.jitter)() / 2.0)
    }

    /// The interval, grown `steps` times, with jitter: the pause after an error that follows `steps` others.
    pub(super) fn grown(&mut self, steps: u32) -> Duration {
        // The growth of more steps is far above any cap; the limit keeps it finite.
        let growth = FACTOR.powi(i32::try_from(steps.min(64)).unwrap_or(64));
        let capped = (self.interval.as_secs_f64() * growth).min(self.cap.as_secs_f64());
        Duration::from_secs_f64(capped * (1.0 + JITTER * (self.jitter)()))
    }
}
