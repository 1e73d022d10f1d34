//! The recent traffic of one agent stream, by which dials choose among the lanes of an agent.

use std::sync::Arc;

use mux::LaneLoad;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The traffic of one agent stream, and whether the agent has kept it. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub struct LaneTraffic(Arc<Mutex<Traffic>>);

#[derive(Debug)]
struct Traffic {
    /// Bytes at `at`. They fall to a third in a second.
    moved: f64,
    at: Instant,
    /// Open connections that moved bytes, as in [`LaneLoad`].
    bulk: usize,
    small: usize,
    connections: usize,
    /// See [`LaneTraffic::answered`].
    answered: bool,
}

impl Traffic {
    fn moved(&self, now: Instant) -> f64 {
        self.moved * (-now.saturating_duration_since(self.at).as_secs_f64()).exp()
    }
}

impl LaneTraffic {
    pub(crate) fn new(now: Instant) -> Self {
        let traffic = Traffic { moved: 0.0, at: now, bulk: 0, small: 0, connections: 0, answered: false };
        Self(Arc::new(Mutex::new(traffic)))
    }

    /// The agent has answered a packet on this stream, so it has kept the stream.
    pub fn answered(&self) {
        self.0.lock().answered = true;
    }

    /// The stream moved this many bytes of payload, and these numbers of its connections are bulk and small now.
    pub fn moved(&self, now: Instant, bytes: u64, (bulk, small): (usize, usize)) {
        let mut traffic = self.0.lock();
        let moved = traffic.moved(now) + bytes as f64;
        *traffic = Traffic { moved, at: now, bulk, small, ..*traffic };
    }

    /// Counts one more dial or connection.
    pub fn enter(&self) -> LaneGuard {
        self.0.lock().connections += 1;
        LaneGuard(self.clone())
    }

    /// `None` while the agent has not answered on this stream: it may be about to close it.
    pub(super) fn load(&self, now: Instant) -> Option<LaneLoad> {
        let traffic = self.0.lock();
        let Traffic { bulk, small, connections, answered, .. } = *traffic;
        answered.then(|| LaneLoad { moved: traffic.moved(now) as u64, bulk, small, connections })
    }
}

/// One dial without an answer, or one connection, of a stream.
#[derive(Debug)]
#[must_use = "it counts until it is dropped"]
pub struct LaneGuard(LaneTraffic);

impl Drop for LaneGuard {
    fn drop(&mut self) {
        self.0.0.lock().connections -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Barrier;
    use std::time::Duration;

    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use serve::metrics::{Live, Registry};

    use super::super::table::Health;
    use super::super::*;
    use super::*;
    use crate::limits::MAX_LANES_PER_AGENT;

    fn manager(strategy: Strategy) -> BackendManager<u64> {
        BackendManager::new(&[strategy], RouteMetrics::register(&mut Registry::default()))
    }

    fn lane(agent: &str, process: u64, handle: u64) -> Backend<u64> {
        let identifiers = Identifiers::parse("host=n").unwrap();
        Backend { agent_id: agent.into(), identifiers, process: Some(process), owner: None, handle }
    }

    /// How often each stream is chosen in a thousand choices, by its handle.
    fn picks(manager: &BackendManager<u64>) -> BTreeMap<u64, usize> {
        let (mut rng, mut picks) = (StdRng::seed_from_u64(7), BTreeMap::new());
        for _ in 0..1_000 {
            let healths = &[Health::Ready, Health::Fallback];
            let choice = manager.choose_of("n", (healths, None), &[], &mut rng).expect("an agent");
            *picks.entry(choice.handle).or_default() += 1;
        }
        picks
    }

    #[test]
    fn traffic_is_forgotten_within_seconds() {
        let now = Instant::now();
        let lane = LaneTraffic::new(now);
        let load = |seconds| lane.load(now + Duration::from_secs(seconds)).expect("answered");
        lane.answered();
        lane.moved(now, 1 << 20, (1, 0));
        lane.moved(now, 1 << 20, (1, 2));
        assert_eq!((load(0).moved, load(0).bulk, load(0).small), (2 << 20, 1, 2));
        assert!(load(1).moved < 1 << 20 && load(1).moved > 1 << 19, "{:?}", load(1));
        assert_eq!(load(20).moved, 0);
        let open = lane.enter();
        assert_eq!(load(0).connections, 1);
        drop(open);
        assert_eq!(load(0).connections, 0);
    }

    #[test]
    fn agent_with_lanes_is_one_agent() {
        for strategy in [Strategy::Default, Strategy::DestHost] {
            let manager = manager(strategy);
            let lanes = [1, 2, 3].map(|handle| manager.register(lane("a", 7, handle)).unwrap());
            let other = manager.register(lane("b", 8, 9)).unwrap();
            assert_eq!(manager.counts()[0].1, if strategy == Strategy::Default { 2 } else { 1 });
            assert_eq!((manager.agent_count(), manager.agents().len()), (2, 2));
            let picked = picks(&manager);
            // 80 is five standard deviations.
            assert!(picked[&9].abs_diff(500) < 80 && picked.len() == 2, "{strategy:?} {picked:?}");
            let of = lanes[0].id;
            assert_eq!((manager.siblings(of).len(), manager.rivals(of).len()), (2, 0));
            assert_eq!(manager.lanes(of), [2, 3]);
            let twin = manager.register(lane("a", 6, 4)).unwrap();
            assert_eq!(manager.rivals(lanes[0].id), [4], "another process with this id");
            drop(twin);
            drop(other);
            assert_eq!(picks(&manager).len(), 1);
        }
    }

    #[test]
    fn dial_takes_the_quietest_lane_that_answers() {
        let manager = manager(Strategy::DestHost);
        let lanes = [1, 2, 3].map(|handle| manager.register(lane("a", 7, handle)).unwrap());
        lanes.iter().for_each(|lane| lane.lane.answered());
        let chosen = || manager.choose("n", &[]).unwrap().handle;
        assert_eq!(chosen(), 1);
        lanes[0].lane.moved(Instant::now(), 1 << 30, (1, 0));
        let open = lanes[1].lane.enter();
        assert_eq!(chosen(), 3);
        assert!(manager.set_unresponsive(lanes[2].id, true), "the first");
        assert_eq!(chosen(), 2);
        manager.set_draining(lanes[1].id);
        assert_eq!(chosen(), 1, "bulk is better than a lane that drains");
        manager.set_draining(lanes[0].id);
        assert_eq!(chosen(), 2, "a lane that drains is better than one that does not answer");
        assert!(lanes[..2].iter().all(|lane| !manager.set_unresponsive(lane.id, true)), "not the first");
        assert_eq!(chosen(), 3, "none answers");
        drop(open);
    }

    #[test]
    fn dial_takes_no_lane_that_the_agent_may_not_keep() {
        let manager = manager(Strategy::DestHost);
        let first = manager.register(lane("a", 7, 1)).unwrap();
        first.lane.moved(Instant::now(), 1 << 30, (1, 0));
        let second = manager.register(lane("a", 7, 2)).unwrap();
        let chosen = |tried: &[LinkId]| manager.choose("n", tried).map(|choice| choice.handle);
        assert_eq!(chosen(&[]), Some(1), "neither has answered: the older one");
        first.lane.answered();
        assert_eq!(chosen(&[]), Some(1));
        assert_eq!(chosen(&[first.id]), Some(2), "better than none");
        second.lane.answered();
        assert_eq!(chosen(&[]), Some(2));
        drop(second);
        assert_eq!(chosen(&[]), Some(1));
    }

    #[test]
    fn another_agent_is_tried_before_another_lane() {
        let manager = manager(Strategy::Default);
        let lanes = [1, 2].map(|handle| manager.register(lane("a", 7, handle)).unwrap());
        let other = manager.register(lane("b", 8, 9)).unwrap();
        let again = || manager.choose_another("n", lanes[0].id, "a").map(|choice| choice.handle);
        assert_eq!(again(), Some(9));
        manager.set_draining(other.id);
        assert_eq!(again(), Some(2));
        manager.set_draining(lanes[1].id);
        assert!(again().is_some_and(|handle| handle != 1));
    }

    #[test]
    fn lanes_of_one_agent_id_are_bounded() {
        let manager = manager(Strategy::Default);
        let register = |process, handle| manager.register(lane("a", process, handle));
        let mut kept: Vec<_> = (0..4).map(|process| register(process, process).unwrap()).collect();
        assert_eq!(register(4, 0).err(), Some(RegisterError::TooManyStreams), "a fifth process");
        let impostor = Backend { identifiers: Identifiers::default(), ..lane("a", 3, 0) };
        assert_eq!(manager.register(impostor).err(), Some(RegisterError::TooManyStreams), "no lane of it");
        kept.extend((4..MAX_LANES_PER_AGENT as u64).map(|handle| register(3, handle).unwrap()));
        assert_eq!(register(3, 0).err(), Some(RegisterError::TooManyStreams));
        drop(kept.pop());
        assert!(register(3, 0).is_ok());
    }

    #[test]
    fn lanes_count_once_until_the_last_one_ends() {
        let (manager, gauge) = (manager(Strategy::Default), Live::default());
        let open = |backend| manager.register_counted(backend, gauge.enter()).unwrap();
        let lanes = [1, 2, 3].map(|handle| open(lane("a", 7, handle)));
        let [twin, other] = [open(lane("a", 6, 4)), open(lane("b", 7, 5))];
        assert_eq!(gauge.count(), 3, "two processes of one agent, and another agent");
        let [first, second, last] = lanes;
        drop((first, second));
        assert_eq!(gauge.count(), 3);
        drop(last);
        assert_eq!(gauge.count(), 2);
        drop((twin, other));
        assert_eq!(gauge.count(), 0);
    }

    #[test]
    fn lanes_that_open_at_the_same_time_count_once() {
        let (manager, gauge) = (manager(Strategy::Default), Live::default());
        let together = Barrier::new(2);
        let open = |handle| {
            let open = gauge.enter();
            together.wait();
            manager.register_counted(lane("a", 7, handle), open).unwrap()
        };
        for _ in 0..2_000 {
            let lanes = std::thread::scope(|scope| {
                let other = scope.spawn(|| open(2));
                [open(1), other.join().unwrap()]
            });
            assert_eq!(gauge.count(), 1);
            drop(lanes);
        }
    }
}
