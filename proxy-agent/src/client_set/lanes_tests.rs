//! Lanes in a simulated network: a mesh of agent and servers behind one balancer, and lists of addresses.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::machine::{Machine, Step};
use super::streams::{Decision, StreamId};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// TCP and TLS handshake, and the server's answer.
const HANDSHAKE: Duration = Duration::from_millis(10);

/// Where an attempt leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One address of a balancer that chooses a server at random.
    Balancer,
    /// An address for each server.
    Addresses,
    /// One address that always leads to the first server.
    Stuck,
}

struct World {
    machine: Machine<Box<dyn FnMut() -> f64>>,
    random: StdRng,
    now: Duration,
    way: Way,
    servers: usize,
    /// The lanes that servers accept.
    accepted: usize,
    /// The first server is of another implementation, without lanes.
    is_mixed: bool,
    open: HashMap<String, Vec<StreamId>>,
    attempts: usize,
    /// How long an attempt takes.
    handshake: Duration,
    /// No attempt at this address while every server has a stream.
    paced: HashMap<Address, Duration>,
}

impl World {
    /// An agent with this `--lanes`, a minute after its start.
    fn new(seed: u64, way: Way, servers: usize, lanes: usize, accepted: usize) -> Self {
        let settings = SyncSettings {
            interval: SECOND,
            cap: SECOND * 10,
            forever: false,
            count_source: CountSource::Default,
            lanes,
        };
        let mut jitter = StdRng::seed_from_u64(!seed);
        let machine: Machine<Box<dyn FnMut() -> f64>> =
            Machine::new(settings, Box::new(move || jitter.random::<f64>()));
        let (random, open) = (StdRng::seed_from_u64(seed), HashMap::new());
        let mut world = Self {
            machine,
            random,
            now: Duration::ZERO,
            way,
            servers,
            accepted,
            open,
            attempts: 0,
            is_mixed: false,
            handshake: HANDSHAKE,
            paced: HashMap::new(),
        };
        world.run(SECOND * 60);
        world
    }

    fn addresses(&self) -> Vec<Address> {
        let count = if self.way == Way::Addresses { self.servers } else { 1 };
        let dial = |host: usize| ServerAddress { host: host.to_string(), port: 8091 };
        (0..count).map(|host| Address { dial: dial(host), entry: 0 }).collect()
    }

    fn attempt(&mut self, address: &Address) {
        self.attempts += 1;
        let is_paced = self.paced.get(address).is_some_and(|end| self.now < *end);
        assert!(!is_paced || self.open.len() < self.servers, "too soon");
        self.now += self.handshake;
        self.paced.insert(address.clone(), self.now + self.handshake * 10);
        let server = match self.way {
            Way::Balancer => self.random.random_range(0..self.servers).to_string(),
            Way::Addresses => address.dial.host.clone(),
            Way::Stuck => "0".to_owned(),
        };
        let lanes = if self.is_mixed && server == "0" { 1 } else { self.accepted };
        let told = ServerInfo { servers: self.servers, lanes };
        match self.machine.connected(self.now, address, &server.as_str().into(), told) {
            Decision::Keep(id) => assert!(self.open.insert(server, vec![id]).is_none()),
            Decision::KeepLane(id) => self.open.get_mut(&server).expect("a lane beside another").push(id),
            Decision::Replace(id, old) => {
                let lanes = self.open.get_mut(&server).expect("a replaced stream");
                *lanes.iter_mut().find(|lane| **lane == old).expect("kept") = id;
            }
            Decision::Duplicate => {}
            Decision::Unwanted => panic!("not draining"),
        }
    }

    /// Runs for this time, or until nothing is due any more; returns the number of attempts.
    fn run(&mut self, time: Duration) -> usize {
        let (end, before) = (self.now + time, self.attempts);
        loop {
            match self.machine.poll(self.now) {
                Step::Resolve => {
                    let addresses = self.addresses();
                    self.machine.resolved(self.now, vec![Resolved { addresses, error: None }]);
                }
                Step::Connect(address) => self.attempt(&address),
                Step::WaitUntil(due) if due <= end => self.now = due,
                Step::WaitUntil(_) => break,
                Step::Wait => return self.attempts - before,
            }
        }
        self.now = end;
        self.attempts - before
    }

    fn is_at_rest(&mut self) -> bool {
        self.machine.poll(self.now) == Step::Wait
    }

    /// The lanes to each server, in order.
    fn lanes(&self) -> Vec<usize> {
        let mut lanes: Vec<usize> = self.open.values().map(Vec::len).collect();
        lanes.sort_unstable();
        lanes
    }

    /// Loses a stream to this server.
    fn lose(&mut self, server: usize) {
        let lanes = self.open.get_mut(&server.to_string()).expect("a stream");
        let id = lanes.pop().expect("a lane");
        self.open.retain(|_, lanes| !lanes.is_empty());
        self.machine.lost(self.now, id);
    }
}

#[test]
fn every_server_gets_its_lanes_and_then_nothing_is_dialed() {
    for servers in [1, 2, 3, 8] {
        for lanes in 1..=4 {
            for seed in 0..20 {
                let mut world = World::new(seed, Way::Balancer, servers, lanes, 4);
                world.run(SECOND * 600);
                assert_eq!(world.lanes(), vec![lanes; servers], "{servers} servers, seed {seed}");
                assert!(world.is_at_rest());
                assert!(world.attempts <= 10 * servers * lanes, "{} attempts", world.attempts);
                let mut world = World::new(seed, Way::Addresses, servers, lanes, 4);
                assert_eq!((world.lanes(), world.attempts), (vec![lanes; servers], servers * lanes));
                assert!(world.is_at_rest());
            }
        }
    }
}

#[test]
fn servers_decide_how_many_lanes_they_accept() {
    for (accepted, lanes) in [(1, 1), (2, 2), (4, 3), (100, 3)] {
        let mut world = World::new(1, Way::Balancer, 2, 3, accepted);
        assert_eq!(world.lanes(), [lanes, lanes]);
        assert!(world.is_at_rest());
    }
    // It has no room any more when the second lane arrives.
    let mut world = World::new(1, Way::Balancer, 1, 2, 2);
    world.accepted = 1;
    world.lose(0);
    world.run(SECOND * 60);
    assert_eq!((world.lanes(), world.is_at_rest()), (vec![1], true));
}

/// A balancer that prefers the server with the fewest connections would otherwise send every agent to the one without lanes.
#[test]
fn no_server_has_lanes_while_one_accepts_none() {
    let mut world = World::new(1, Way::Addresses, 3, 2, 4);
    assert_eq!(world.lanes(), [2, 2, 2]);
    world.is_mixed = true;
    for server in [0, 0, 1, 1, 2] {
        world.lose(server);
    }
    world.run(SECOND * 60);
    assert_eq!((world.lanes(), world.is_at_rest()), (vec![1, 1, 1], true));
    world.is_mixed = false;
    world.lose(0);
    world.run(SECOND * 60);
    assert_eq!((world.lanes(), world.is_at_rest()), (vec![2, 2, 2], true));
}

#[test]
fn lost_lane_is_back_within_two_seconds() {
    for (way, servers) in [(Way::Balancer, 1), (Way::Balancer, 2), (Way::Addresses, 3)] {
        for seed in 0..50 {
            let mut world = World::new(seed, way, servers, 2, 4);
            let began = world.now + SECOND * 3_600;
            world.now = began;
            world.lose(0);
            assert_eq!(world.machine.open_count(), servers, "the server is connected");
            world.run(SECOND * 60);
            assert_eq!(world.lanes(), vec![2; servers]);
            assert!(world.now - began < SECOND * 2, "{way:?} {servers} seed {seed}: {:?}", world.now - began);
        }
    }
}

/// A server that lacks CPU has other agents without a stream.
#[test]
fn slow_server_gets_lanes_and_replacements_late() {
    for (way, servers) in [(Way::Balancer, 1), (Way::Addresses, 3)] {
        let mut world = World::new(1, way, servers, 2, 4);
        world.now += SECOND * 3_600;
        world.handshake = SECOND * 2;
        world.lose(0);
        world.lose(0);
        assert_eq!(world.run(SECOND * 3), 1, "a missing server is not late");
        let first = world.open["0"][0];
        world.machine.set_unresponsive(world.now, first, true);
        assert_eq!(world.run(SECOND * 18), 0, "{way:?}");
        assert_eq!(world.run(SECOND * 4), 1);
        assert_ne!(world.open["0"], [first], "replaced");
        world.handshake = HANDSHAKE;
        world.run(SECOND * 60);
        assert_eq!(world.lanes(), vec![2; servers]);
    }
}

#[test]
fn failed_lane_is_late_only_if_the_server_was_reached() {
    for (reached, pause) in [(true, 100), (false, 2)] {
        let mut world = World::new(1, Way::Balancer, 1, 2, 4);
        world.now += SECOND * 3_600;
        world.lose(0);
        let address = world.addresses().remove(0);
        while world.machine.poll(world.now) != Step::Connect(address.clone()) {
            world
                .machine
                .resolved(world.now, vec![Resolved { addresses: vec![address.clone()], error: None }]);
            world.now += SECOND / 10;
        }
        world.now += SECOND * 10;
        world.machine.failed(world.now, &address, reached);
        let failed = world.now;
        world.run(SECOND * 200);
        assert_eq!(world.lanes(), [2]);
        let took = (world.now - failed).as_secs();
        assert!((pause / 2..=pause).contains(&took), "{reached}: {took} s");
    }
}

#[test]
fn few_servers_get_their_lanes_soon() {
    for (servers, limit) in [(1, 3), (3, 15)] {
        for seed in 0..20 {
            let world = World::new(seed, Way::Balancer, servers, 2, 4);
            assert!(world.now < SECOND * limit, "{servers} servers, seed {seed}: {:?}", world.now);
        }
    }
}

/// Other agents behind the same balancer may still seek their first streams.
#[test]
fn lanes_are_sought_slowly_once_every_server_has_a_stream() {
    for seed in 0..20 {
        let mut world = World::new(seed, Way::Balancer, 20, 2, 2);
        for server in 0..20 {
            while world.open.contains_key(&server.to_string()) {
                world.lose(server);
            }
        }
        while world.open.len() < 20 {
            world.run(SECOND / 50);
        }
        let attempts = world.run(SECOND * 5);
        assert!((1..=14).contains(&attempts) || world.is_at_rest(), "seed {seed}: {attempts}");
        world.run(SECOND * 2_000);
        assert!(world.lanes().iter().all(|lanes| *lanes == 2), "seed {seed}: {:?}", world.lanes());
    }
}

#[test]
fn lost_server_comes_before_its_lanes() {
    let mut world = World::new(3, Way::Addresses, 2, 2, 4);
    world.now += SECOND * 3_600;
    world.lose(1);
    world.lose(1);
    assert_eq!(world.machine.open_count(), 1);
    assert_eq!(world.run(SECOND * 60), 2);
    assert_eq!(world.lanes(), [2, 2]);
}

#[test]
fn attempts_for_a_lane_that_no_attempt_reaches_are_bounded() {
    let mut world = World::new(1, Way::Balancer, 2, 2, 4);
    world.now += SECOND * 3_600;
    world.way = Way::Stuck;
    world.lose(1);
    let attempts = world.run(SECOND * 36_000);
    assert!(attempts <= 20 && world.is_at_rest(), "{attempts}");
}

#[test]
fn lanes_that_soon_end_are_given_up() {
    let mut world = World::new(1, Way::Addresses, 1, 2, 4);
    let mut losses = 0;
    while world.lanes() == [2] {
        world.lose(0);
        losses += 1;
        world.run(SECOND * 5);
        assert!(losses < 20, "a lane that ends again and again");
    }
    assert!(world.is_at_rest() && world.machine.open_count() == 1);
    world.now += SECOND * 60;
    world.lose(0);
    world.run(SECOND * 10);
    assert_eq!(world.lanes(), [2], "a new start");
}

#[test]
fn a_server_that_answers_again_gets_its_lanes() {
    let mut world = World::new(1, Way::Balancer, 2, 2, 4);
    world.way = Way::Stuck;
    world.lose(1);
    world.run(SECOND * 600);
    assert_eq!((world.lanes(), world.is_at_rest()), (vec![1, 2], true), "the attempts are used up");
    let last = world.open["1"][0];
    world.machine.set_unresponsive(world.now, last, true);
    world.way = Way::Balancer;
    world.run(SECOND * 60);
    assert_eq!(world.lanes(), [2, 2]);
}

#[test]
fn lanes_that_a_poor_network_loses_are_opened_again() {
    let mut world = World::new(1, Way::Balancer, 2, 2, 4);
    for loss in 0..200 {
        world.lose(loss % 2);
        world.run(SECOND * 15);
        assert_eq!(world.lanes(), [2, 2], "after {loss} losses");
        world.now += SECOND * 15;
    }
}

#[test]
fn server_with_a_high_rtt_gets_twice_as_many_lanes() {
    for (lanes, with_high_rtt) in [(1, 1), (2, 4), (3, 4), (4, 4)] {
        let mut world = World::new(1, Way::Balancer, 1, lanes, 100);
        let id = world.open["0"][0];
        world.machine.set_high_rtt(world.now, id);
        world.run(SECOND * 60);
        assert_eq!(world.lanes(), [with_high_rtt]);
        world.machine.set_high_rtt(world.now, id);
        assert!(world.is_at_rest());
    }
}

#[test]
fn only_the_marked_lane_is_replaced() {
    let mut world = World::new(1, Way::Balancer, 1, 2, 4);
    world.now += SECOND * 60;
    let before = world.open["0"].clone();
    assert!(!world.machine.has_unresponsive_sibling_lane(before[1]));
    world.machine.set_unresponsive(world.now, before[0], true);
    assert!(world.machine.has_unresponsive_sibling_lane(before[1]));
    assert_eq!(world.run(SECOND * 60), 1);
    assert!(world.open["0"][0] != before[0] && world.open["0"][1] == before[1]);
    assert!(world.machine.certificate_expiring(world.now, before[1]));
    world.run(SECOND * 60);
    assert!(world.open["0"][1] != before[1] && world.is_at_rest());
}

proptest! {
    /// Whatever is lost and found, in any order: never more lanes than wanted, and one server is one server.
    #[test]
    fn lanes_are_bounded(
        seed: u64,
        lanes in 1..5_usize,
        events in prop::collection::vec((0..5_u8, 0..3_usize, 0..5_000_u64), 1..100),
    ) {
        let mut world = World::new(seed, Way::Balancer, 3, lanes, 3);
        for (event, server, millis) in events {
            let first = world.open.get(&server.to_string()).map(|lanes| lanes[0]);
            match (event, first) {
                (0, Some(_)) => world.lose(server),
                (1, Some(id)) => world.machine.set_unresponsive(world.now, id, millis % 2 == 0),
                (2, Some(id)) => drop(world.machine.certificate_expiring(world.now, id)),
                (3, _) => world.handshake = Duration::from_millis(millis),
                _ => drop(world.run(Duration::from_millis(millis))),
            }
            prop_assert!(world.lanes().iter().all(|open| *open <= lanes.min(3)));
            prop_assert_eq!(world.machine.open_count(), world.open.len());
        }
        world.run(SECOND * 36_000);
        prop_assert_eq!(world.machine.open_count(), 3);
    }
}
