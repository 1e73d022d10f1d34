//! What was observed around a fault, and the figures of it.

use std::time::Duration;

use tokio::time::Instant;

use super::balancer::Flow;
use super::load::{Exchange, Load};
use super::report::{Curve, Panel, Value};
use super::world::{Sample, World};

/// A dial that takes longer went to an agent that does not answer.
const SLOW: Duration = Duration::from_secs(1);

/// The servers' counts are read within this time.
const SAMPLED: Duration = Duration::from_millis(500);

/// The width of a point of a curve, in seconds.
const BIN: f64 = 0.5;

/// The time of the curves before the fault, in seconds.
const BEFORE: f64 = 2.0;

/// The observations of one run.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) fault: Instant,
    /// The time of observation after the fault.
    pub(super) window: Duration,
    pub(super) agents: usize,
    /// By server: its number of agents over time.
    pub(super) samples: Vec<Vec<Sample>>,
    pub(super) dials: Vec<Exchange>,
    pub(super) calls: Vec<Exchange>,
    /// By agent: the connections that it made to the endpoint.
    pub(super) reached: Vec<Vec<Instant>>,
    pub(super) flows: Vec<Flow>,
}

impl Observed {
    pub(super) fn collect(world: &World<'_>, load: &Load, fault: Instant) -> Self {
        let reached = world.network.far.iter().map(|side| world.endpoint.accepted(side.address));
        Self {
            fault,
            window: fault.elapsed(),
            agents: world.agents.len(),
            samples: world.samples(),
            dials: load.dials.all(),
            calls: load.calls.all(),
            reached: reached.collect(),
            flows: world.balancer.flows(),
        }
    }

    /// Seconds from the fault, in which all streams were lost, until each server has at least this number of agents for the rest
    /// of the observation. The whole window is too short for a server that told no number.
    pub(super) fn until_servers_have(&self, agents: usize) -> Value {
        let until = self.samples.iter().enumerate().map(|(server, samples)| {
            let mut after = samples.iter().filter(|sample| sample.at >= self.fault).peekable();
            let more = Value::more_than(self.window.as_secs_f64());
            if after.peek().is_none() {
                return more;
            }
            let enough = |time: Value, sample: &Sample| match (sample.agents >= agents, time.more) {
                (false, _) => more,
                (true, true) => Value::is(self.seconds(sample.at)),
                (true, false) => time,
            };
            // A gap between two samples shows only in the flows: the server had at most as many agents as new flows.
            let mut flows =
                self.flows.iter().filter(|flow| flow.server == server && flow.opened >= self.fault);
            let flows = flows.nth(agents.saturating_sub(1)).map_or(0.0, |flow| self.seconds(flow.opened));
            let sampled = after.fold(Value::is(0.0), enough);
            Value { number: sampled.number.max(flows), ..sampled }
        });
        until.max_by(Value::compare).unwrap_or(Value::is(f64::NAN))
    }

    /// Flows since the fault for each of them that carries a stream, when every server has all agents or the observation ends.
    pub(super) fn flows_for_each_stream(&self) -> Value {
        let until = self.until_servers_have(self.agents);
        let back = self.fault + Duration::from_secs_f64(until.number) + SAMPLED;
        let flows = self.flows.iter().filter(|flow| (self.fault..=back).contains(&flow.opened));
        let streams = flows.clone().filter(|flow| flow.closed.is_none_or(|closed| closed > back));
        Value { number: flows.count() as f64 / streams.count() as f64, ..until }
    }

    /// Seconds of the longest call that was under way at the fault or began later; NaN without such a call.
    pub(super) fn longest_call(&self) -> Value {
        let affected = self.calls.iter().filter(|call| call.ended_after(self.fault));
        Value::is(affected.map(|call| call.took().as_secs_f64()).fold(f64::NAN, f64::max))
    }

    /// The dials since a time after the fault.
    fn dials_since(&self, later: Duration) -> impl Iterator<Item = &Exchange> + Clone {
        self.dials.iter().filter(move |dial| dial.began >= self.fault + later)
    }

    /// The share of dials that failed, in percent.
    pub(super) fn failed_dials(&self) -> Value {
        let dials = self.dials_since(Duration::ZERO);
        percent(dials.clone().filter(|dial| dial.failed()).count(), dials.count())
    }

    /// When the last dial began that took longer than a second, in seconds after the fault; NaN without any dial.
    pub(super) fn last_dial_without_answer(&self) -> Value {
        if self.dials_since(Duration::ZERO).next().is_none() {
            return Value::is(f64::NAN);
        }
        let slow = self.dials_since(Duration::ZERO).filter(|dial| dial.took() > SLOW);
        let last = slow.map(|dial| (dial.began - self.fault).as_secs_f64()).fold(0.0, f64::max);
        // Later dials may still become slow ones.
        let known = self.window.saturating_sub(2 * SLOW).as_secs_f64();
        if last > known { Value::more_than(last) } else { Value::is(last) }
    }

    /// The share of dials that took longer, since a time after the fault, in percent.
    pub(super) fn dials_longer_than(&self, limit: Duration, later: Duration) -> Value {
        let dials = self.dials_since(later);
        percent(dials.clone().filter(|dial| dial.took() > limit).count(), dials.count())
    }

    /// The share of connections that the first agent made, since a time after the fault, in percent.
    pub(super) fn share_of_first_agent(&self, later: Duration) -> Value {
        let since = |reached: &Vec<Instant>| reached.iter().filter(|at| **at >= self.fault + later).count();
        percent(self.reached.first().map_or(0, since), self.reached.iter().map(since).sum())
    }

    /// The curves: dials by agent, streams by the servers' counts, and failed dials.
    pub(super) fn panels(&self) -> Vec<Panel> {
        let dials = match self.reached.len() {
            0..=5 => self.reached.iter().map(|reached| self.rate(reached)).collect(),
            _ => vec![self.rate(&self.reached.concat())],
        };
        let failed: Vec<Instant> =
            self.dials.iter().filter(|dial| dial.failed()).map(|dial| dial.began).collect();
        vec![
            Panel { title: "dials by agent, per second", curves: dials },
            Panel { title: "streams, as servers count them", curves: vec![self.streams()] },
            Panel { title: "failed dials, per second", curves: vec![self.rate(&failed)] },
        ]
    }

    fn bins(&self) -> impl Iterator<Item = f64> + use<> {
        let count = ((BEFORE + self.window.as_secs_f64()) / BIN) as u32;
        (0..count).map(|bin| f64::from(bin) * BIN - BEFORE)
    }

    /// Seconds since the fault.
    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.fault).as_secs_f64()
            - self.fault.saturating_duration_since(at).as_secs_f64()
    }

    fn rate(&self, moments: &[Instant]) -> Curve {
        let seconds: Vec<f64> = moments.iter().map(|at| self.seconds(*at)).collect();
        let count = |bin: f64| seconds.iter().filter(|at| (bin..bin + BIN).contains(*at)).count();
        self.bins().map(|bin| (bin, count(bin) as f64 / BIN)).collect()
    }

    fn streams(&self) -> Curve {
        let at = |bin: f64| {
            let last = |samples: &Vec<Sample>| {
                samples.iter().take_while(|sample| self.seconds(sample.at) <= bin).last().map(|s| s.agents)
            };
            self.samples.iter().filter_map(last).sum::<usize>() as f64
        };
        self.bins().map(|bin| (bin, at(bin))).collect()
    }
}

fn percent(part: usize, of: usize) -> Value {
    Value::is(part as f64 * 100.0 / of as f64)
}
