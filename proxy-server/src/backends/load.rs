//! How long a dial through an agent is expected to take, as data.

use std::time::Duration;

use tokio::time::Instant;

/// The expected dial time falls to a third of itself in this time, unless new samples confirm it. So an agent that was slow once
/// is tried again after half a minute.
const DECAY: Duration = Duration::from_secs(15);

/// A shorter expected dial time counts as this one. Users do not notice the difference, and a short delay on a busy machine must
/// not keep dials from an agent.
const MIN_EXPECTED_DIAL_TIME: Duration = Duration::from_millis(15);

/// The largest sample. A lost SYN between the agent and an endpoint costs 1 s and more, and is no fault of the agent. An agent
/// that takes longer by itself soon counts as unresponsive.
const MAX_SAMPLE: Duration = Duration::from_secs(1);

/// An agent loses against another only if it costs more than this many times as much. The ratio is less than 2, so that an idle
/// agent wins against one with a dial in flight.
const MIN_COST_RATIO: f64 = 1.5;

/// The recent dial times of one agent, and the dials in flight.
///
/// A sample above the expectation replaces it, one below it lowers it (the "peak EWMA" of load balancers): what matters is to
/// notice a slow agent at its first dial.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// In seconds, at `at`.
    expected: f64,
    at: Instant,
    in_flight: u32,
    /// Bytes that wait at this server for the agent's clients, when two agents are compared.
    pub(super) waiting: usize,
}

impl Load {
    /// An agent without dials: dials explore it.
    pub(super) fn new(now: Instant) -> Self {
        Self { expected: 0.0, at: now, in_flight: 0, waiting: 0 }
    }

    /// A dial begins.
    pub(super) fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// A dial is over, by whatever outcome.
    pub(super) fn end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// The dials in flight.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A dial or a probe took this long. Failed and canceled dials are no samples: the endpoint may have been silent.
    pub(super) fn sample(&mut self, now: Instant, took: Duration) {
        let (took, weight) = (took.min(MAX_SAMPLE).as_secs_f64(), self.weight(now));
        self.expected = if took > self.expected { took } else { took + (self.expected - took) * weight };
        self.at = now;
    }

    /// The expected dial time.
    pub(super) fn expected(&self, now: Instant) -> Duration {
        Duration::from_secs_f64(self.expected * self.weight(now))
    }

    /// The cost of one more dial: its expected time, multiplied by the dials in flight.
    fn cost(&self, now: Instant) -> f64 {
        self.expected(now).max(MIN_EXPECTED_DIAL_TIME).as_secs_f64() * (f64::from(self.in_flight) + 1.0)
    }

    /// Whether this agent should get a dial rather than the other; `None` if both are alike.
    pub(super) fn is_less_than(&self, other: &Self, now: Instant) -> Option<bool> {
        let (one, two) = (self.cost(now), other.cost(now));
        if one > two * MIN_COST_RATIO || two > one * MIN_COST_RATIO {
            return Some(one < two);
        }
        let (one, two) = (class(self.waiting), class(other.waiting));
        (one != two).then_some(one < two)
    }

    fn weight(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.at);
        (-age.as_secs_f64() / DECAY.as_secs_f64()).exp()
    }
}

/// Waiting bytes in steps of four times, from 64 KiB.
fn class(bytes: usize) -> u32 {
    mux::class(bytes as u64 >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn load(now: Instant, took: &[Duration]) -> Load {
        let mut load = Load::new(now);
        took.iter().for_each(|took| load.sample(now, *took));
        load
    }

    #[test]
    fn the_slower_agent_loses_until_it_is_forgotten() {
        let now = Instant::now();
        let (quick, slow) = (load(now, &[MS]), load(now, &[MS, 100 * MS]));
        assert_eq!(quick.is_less_than(&slow, now), Some(true));
        assert_eq!(slow.is_less_than(&quick, now), Some(false));
        assert_eq!(slow.is_less_than(&quick, now + DECAY), Some(false));
        assert_eq!(slow.is_less_than(&quick, now + 4 * DECAY), None, "it is explored again");
    }

    #[test]
    fn quick_answers_lower_the_expectation_with_time() {
        let now = Instant::now();
        let mut agent = load(now, &[100 * MS]);
        agent.sample(now, MS);
        assert!(agent.expected(now) > 99 * MS, "samples of one moment count as one");
        agent.sample(now + DECAY, MS);
        assert!(agent.expected(now + DECAY) < 40 * MS);
    }

    #[test]
    fn among_quick_agents_the_idle_one_wins_then_the_one_with_less_waiting() {
        let now = Instant::now();
        let (mut one, mut two) = (load(now, &[MS]), load(now, &[4 * MS]));
        assert_eq!(one.is_less_than(&two, now), None);
        two.waiting = 1 << 20;
        assert_eq!(one.is_less_than(&two, now), Some(true));
        one.begin();
        assert_eq!(one.is_less_than(&two, now), Some(false));
        one.end();
        one.end();
        assert_eq!(one.in_flight(), 0);
    }

    #[test]
    fn one_sample_excludes_an_agent_for_less_than_a_minute() {
        let now = Instant::now();
        let (quick, slow) = (load(now, &[MS]), load(now, &[Duration::from_secs(30)]));
        assert_eq!(quick.is_less_than(&slow, now + Duration::from_secs(60)), None);
    }
}
