//! Which agent is slow; when an agent whose own failures stand out gets no dials, and for how long; as data.
//!
//! ```text
//!          blamed too often                 time is up
//!   Serving ───────────────▶ Ejected{until} ──────────▶ Trial
//!      ▲                          ▲                       │
//!      │                          └──── blamed again ─────┤
//!      └──────────────────── a dial reached its endpoint ─┘
//! ```
//!
//! An agent is blamed for a failed dial only if another agent then connected to the same endpoint, or if it gave no answer. So a
//! target that no agent reaches ejects none.

use std::time::Duration;

use tokio::time::Instant;

use super::AgentView;

/// An agent is slow if its expected dial time is above this, and above [`SLOW_FACTOR`] times the median.
const MIN_SLOW_DIAL_TIME: Duration = Duration::from_millis(25);
const SLOW_FACTOR: u32 = 4;

/// Dials are counted in two periods of this length: the current and the one before.
const PERIOD: Duration = Duration::from_secs(15);
/// An agent with fewer failures is not ejected.
const MIN_FAILURES: u32 = 3;
/// The agent is ejected if more than one in this many of its dials fails for its own reasons.
const MAX_FAILING_DIVISOR: u32 = 4;
/// The time of the first ejection; each further one is twice as long.
const BASE_EJECTION_TIME: Duration = Duration::from_secs(5);
/// The longest time of an ejection. After an agent has served for this long, its next ejection takes [`BASE_EJECTION_TIME`] again.
const MAX_EJECTION_TIME: Duration = Duration::from_secs(300);

/// What an agent's dials say about the agent itself.
#[derive(Debug)]
pub(super) struct Outlier {
    state: State,
    counts: [Counts; 2],
    /// When the current period began.
    period_since: Instant,
    /// Ejections without a long time of service between them.
    ejections: u32,
    /// When the state last changed. Verdicts about earlier dials do not change it.
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Serving,
    Ejected {
        until: Instant,
    },
    /// One dial at a time tries the agent.
    Trial,
    /// The trial failed; the next sweep ejects the agent again.
    Failed,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    dials: u32,
    failures: u32,
}

/// A change that the tables must follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// No dials for this long.
    Ejected {
        /// How long.
        time: Duration,
        /// Its own failures in the window.
        failures: u32,
        /// Its dials in the window.
        dials: u32,
    },
    /// The time is up: the next dial tries the agent.
    Trial,
}

impl Outlier {
    /// An agent that serves.
    pub(super) fn new(now: Instant) -> Self {
        let counts = [Counts::default(); 2];
        Self { state: State::Serving, counts, period_since: now, ejections: 0, since: now }
    }

    /// A dial reached its endpoint, or failed for a reason that is not the agent's.
    pub(super) fn reached(&mut self, now: Instant, began: Instant) {
        self.count(now, false);
        if self.state == State::Trial && began >= self.since {
            (self.state, self.since) = (State::Serving, now);
            self.counts = [Counts::default(); 2];
        }
    }

    /// A dial failed for a reason of the agent's.
    pub(super) fn blame(&mut self, now: Instant, began: Instant) {
        self.count(now, true);
        if self.state == State::Trial && began >= self.since {
            (self.state, self.since) = (State::Failed, now);
        }
    }

    /// Whether a dial may use the agent now, if it has this many dials in flight. An ejected agent is used only if there is no
    /// other.
    pub(super) fn admits(&self, in_flight: u32) -> bool {
        match self.state {
            State::Serving => true,
            State::Trial => in_flight == 0,
            State::Ejected { .. } | State::Failed => false,
        }
    }

    /// How long the agent is still ejected; `None` if it is not.
    pub(super) fn ejected_for(&self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Ejected { until } if now < until => Some(until - now),
            _ => None,
        }
    }

    /// Called about once a second. `may_eject`: few enough agents are ejected.
    pub(super) fn sweep(&mut self, now: Instant, may_eject: bool) -> Option<Change> {
        self.turn(now);
        if self.state == State::Serving && now.saturating_duration_since(self.since) >= MAX_EJECTION_TIME {
            self.ejections = 0;
        }
        match self.state {
            State::Ejected { until } if now >= until => {
                (self.state, self.since) = (State::Trial, now);
                Some(Change::Trial)
            }
            State::Serving if may_eject && self.stands_out() => Some(self.eject(now)),
            State::Failed if may_eject => Some(self.eject(now)),
            State::Failed => {
                (self.state, self.since) = (State::Trial, now);
                None
            }
            _ => None,
        }
    }

    fn eject(&mut self, now: Instant) -> Change {
        let time =
            BASE_EJECTION_TIME.saturating_mul(2_u32.saturating_pow(self.ejections)).min(MAX_EJECTION_TIME);
        self.ejections = self.ejections.saturating_add(1);
        (self.state, self.since) = (State::Ejected { until: now + time }, now);
        let Counts { dials, failures } = self.sum();
        self.counts = [Counts::default(); 2];
        Change::Ejected { time, failures, dials }
    }

    fn stands_out(&self) -> bool {
        let Counts { dials, failures } = self.sum();
        failures >= MIN_FAILURES && failures.saturating_mul(MAX_FAILING_DIVISOR) > dials
    }

    fn sum(&self) -> Counts {
        let [one, two] = self.counts;
        Counts { dials: one.dials + two.dials, failures: one.failures + two.failures }
    }

    fn count(&mut self, now: Instant, failed: bool) {
        self.turn(now);
        self.counts[0].dials += 1;
        self.counts[0].failures += u32::from(failed);
    }

    /// Begins a new period if the current one is over.
    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.period_since);
        if age >= PERIOD {
            let before = if age < 2 * PERIOD { self.counts[0] } else { Counts::default() };
            (self.counts, self.period_since) = ([Counts::default(), before], now);
        }
    }
}

/// The median of the agents' expected dial times; of an even number the lower one, so that one of two agents can be slow.
pub(crate) fn median_dial_time(agents: &[AgentView], now: Instant) -> Duration {
    let mut expected: Vec<Duration> = agents.iter().map(|agent| agent.stats.expected(now)).collect();
    match expected.len() {
        0 => Duration::ZERO,
        len => *expected.select_nth_unstable((len - 1) / 2).1,
    }
}

/// Whether an agent is slow.
pub(crate) fn is_slow(expected: Duration, median: Duration) -> bool {
    expected > MIN_SLOW_DIAL_TIME.max(median * SLOW_FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn fail(agent: &mut Outlier, now: Instant) {
        (0..MIN_FAILURES).for_each(|_| agent.blame(now, now));
    }

    #[test]
    fn failures_that_stand_out_eject_for_a_time_that_doubles() {
        let mut now = Instant::now();
        let mut agent = Outlier::new(now);
        let mut times = Vec::new();
        fail(&mut agent, now);
        for _ in 0..8 {
            let Some(Change::Ejected { time, .. }) = agent.sweep(now, true) else { panic!("not ejected") };
            assert!(!agent.admits(0));
            assert_eq!(agent.sweep(now + time - S, true), None);
            now += time;
            assert_eq!(agent.sweep(now, true), Some(Change::Trial));
            assert!(agent.admits(0) && !agent.admits(1), "one dial tries it");
            agent.blame(now, now);
            assert!(!agent.admits(0), "a failed trial admits no other dial before the sweep");
            times.push(time.as_secs());
        }
        assert_eq!(times, [5, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_dial_that_succeeds_ends_the_trial() {
        let mut now = Instant::now();
        let mut agent = Outlier::new(now);
        fail(&mut agent, now);
        agent.sweep(now, true);
        now += BASE_EJECTION_TIME;
        agent.sweep(now, true);
        agent.reached(now, now);
        assert!(agent.admits(9));
        assert_eq!(agent.sweep(now, true), None, "old failures are forgotten");
        fail(&mut agent, now);
        assert!(
            matches!(agent.sweep(now, true), Some(Change::Ejected { time, .. }) if time == 2 * BASE_EJECTION_TIME)
        );
        now += 2 * BASE_EJECTION_TIME;
        agent.sweep(now, true);
        agent.reached(now, now);
        agent.sweep(now + MAX_EJECTION_TIME, true);
        fail(&mut agent, now + MAX_EJECTION_TIME);
        let change = agent.sweep(now + MAX_EJECTION_TIME, true);
        assert!(matches!(change, Some(Change::Ejected { time: BASE_EJECTION_TIME, .. })), "{change:?}");
    }

    #[test]
    fn few_failures_or_a_small_share_or_old_failures_eject_no_agent() {
        let now = Instant::now();
        let mut few = Outlier::new(now);
        (1..MIN_FAILURES).for_each(|_| few.blame(now, now));
        assert_eq!(few.sweep(now, true), None);
        let mut share = Outlier::new(now);
        (0..40).for_each(|dial| {
            if dial % MAX_FAILING_DIVISOR == 0 { share.blame(now, now) } else { share.reached(now, now) }
        });
        assert_eq!(share.sweep(now, true), None);
        let mut old = Outlier::new(now);
        fail(&mut old, now);
        assert_eq!(old.sweep(now + 2 * PERIOD, true), None);
        let mut held = Outlier::new(now);
        fail(&mut held, now);
        assert_eq!(held.sweep(now, false), None, "too many others are ejected");
        assert!(matches!(held.sweep(now + S, true), Some(Change::Ejected { .. })));
    }
}
