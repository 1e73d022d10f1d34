//! Many agents behind one balancer lose all their streams at once: how long they need, and how many attempts.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::backoff::MAX_BURST_PER_SERVER;
use super::machine::{Machine, Step};
use super::streams::{Decision, ServerInfo, StreamId};
use super::*;

/// The only address.
pub(super) fn balancer() -> Address {
    Address { dial: ServerAddress { host: "balancer".into(), port: 8091 }, entry: 0 }
}

/// What a server without lanes tells.
pub(super) fn telling(servers: usize) -> ServerInfo {
    ServerInfo { servers, lanes: 1 }
}

impl<J: FnMut() -> f64> Machine<J> {
    /// Takes this many leases without holders; `None` if leases are not counted.
    pub(super) fn leases_counted(&mut self, now: Duration, count: Option<usize>) {
        self.leased(now, Leased { count: count.unwrap_or_default(), ..Leased::default() });
    }
}

/// Asks for the next step, and answers lookups.
pub(super) fn poll<J: FnMut() -> f64>(machine: &mut Machine<J>, now: Duration) -> Step {
    match machine.poll(now) {
        Step::Resolve => {
            machine.resolved(now, vec![Resolved { addresses: vec![balancer()], error: None }]);
            machine.poll(now)
        }
        step => step,
    }
}

/// TCP and TLS handshake, and the server's answer.
const HANDSHAKE: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Balancer {
    Random,
    RoundRobin,
}

#[derive(Debug)]
struct Figures {
    /// The first agent at the last server.
    first_everywhere: Duration,
    /// When half, 99 % and all of the agents have every stream.
    half: Duration,
    most: Duration,
    all: Duration,
    /// Attempts for each needed stream: on average, and of the agent with the most.
    attempts: f64,
    most_attempts: f64,
}

fn settings(lanes: usize) -> SyncSettings {
    let (interval, cap) = (Duration::from_secs(1), Duration::from_secs(10));
    SyncSettings { interval, cap, forever: false, count_source: CountSource::Default, lanes }
}

/// `agents` connect to `servers`, and lose all streams at `lost_at`; the figures count from then.
fn simulate(seed: u64, policy: Balancer, agents: usize, servers: usize) -> Figures {
    let random = RefCell::new(StdRng::seed_from_u64(seed));
    let jitter = || random.borrow_mut().random::<f64>();
    let mut set: Vec<_> = (0..agents).map(|_| Machine::new(settings(1), jitter)).collect();
    let lost_at = Duration::from_secs(3_600);
    for agent in &mut set {
        agent.leases_counted(Duration::ZERO, Some(servers));
        let ids: Vec<_> = (0..servers).map(|index| keep(agent, index, telling(0))).collect();
        ids.into_iter().for_each(|id| agent.lost(lost_at, id));
    }
    let mut events: BinaryHeap<_> = (0..agents).map(|index| Reverse((lost_at, index, false))).collect();
    let (mut turn, mut reached) = (0, vec![None; servers]);
    let (mut done, mut attempts) = (vec![], vec![0_usize; agents]);
    while let Some(Reverse((now, index, answered))) = events.pop() {
        let agent = &mut set[index];
        if answered {
            let server = match policy {
                Balancer::Random => random.borrow_mut().random_range(0..servers),
                Balancer::RoundRobin => turn % servers,
            };
            turn += 1;
            reached[server].get_or_insert(now - lost_at);
            agent.connected(now, &balancer(), &name(server), telling(servers));
        }
        match poll(agent, now) {
            Step::Connect(_) => {
                attempts[index] += 1;
                events.push(Reverse((now + HANDSHAKE, index, true)));
            }
            Step::Resolve => panic!("resolved"),
            Step::WaitUntil(due) => events.push(Reverse((due, index, false))),
            Step::Wait => done.push(now - lost_at),
        }
    }
    let needed = servers as f64;
    Figures {
        first_everywhere: reached.into_iter().map(|first| first.unwrap()).max().unwrap(),
        half: done[agents / 2],
        most: done[(agents * 99).div_ceil(100) - 1],
        all: done[agents - 1],
        attempts: attempts.iter().sum::<usize>() as f64 / (needed * agents as f64),
        most_attempts: *attempts.iter().max().unwrap() as f64 / needed,
    }
}

fn name(index: usize) -> Arc<str> {
    index.to_string().into()
}

/// Opens a stream before the simulation begins.
fn keep<J: FnMut() -> f64>(agent: &mut Machine<J>, index: usize, info: ServerInfo) -> StreamId {
    let now = Duration::from_secs(2 * index as u64);
    assert_eq!(poll(agent, now), Step::Connect(balancer()));
    match agent.connected(now, &balancer(), &name(index), info) {
        Decision::Keep(id) => id,
        other => panic!("{other:?}"),
    }
}

/// `cargo test -p proxy-agent simulation -- --nocapture` prints the figures.
#[test]
fn agents_return_to_every_server_soon() {
    println!(
        "balancer, agents x servers: first agent everywhere, 50 %, 99 %, all agents; attempts for each stream (most)"
    );
    for (agents, servers) in [(100, 20), (3, 5), (100, 3), (2_000, 3)] {
        for balancer in [Balancer::Random, Balancer::RoundRobin] {
            let runs: Vec<_> = (0..5).map(|seed| simulate(seed, balancer, agents, servers)).collect();
            let Figures { first_everywhere, half, most, all, attempts, most_attempts } = &runs[0];
            println!(
                "{balancer:?}, {agents} x {servers}: {first_everywhere:.2?}, {half:.2?}, {most:.2?}, {all:.2?}; {attempts:.2} ({most_attempts:.1})"
            );
            for run in runs {
                assert!(agents < 100 || run.first_everywhere < Duration::from_secs(1), "{run:?}");
                assert!(run.half < Duration::from_secs(5) && run.all < Duration::from_secs(20), "{run:?}");
                // One attempt in each interval beside the burst, and one before the loss.
                let limit = MAX_BURST_PER_SERVER as f64 + (run.all.as_secs_f64() + 2.0) / servers as f64;
                assert!(run.attempts < 4.5 && run.most_attempts <= limit, "{run:?}");
            }
        }
    }
}

/// The time of a handshake on a server that has 2 % of a CPU.
const SLOW_HANDSHAKE: Duration = Duration::from_millis(55);
/// An agent gives up an attempt after this time.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// A server that lacks CPU loses all agents: how long until each has a stream, and until each has all its lanes. The server
/// handles the attempts that are not given up in order.
fn storm(seed: u64, agents: usize, lanes: usize) -> (Duration, Duration) {
    let random = RefCell::new(StdRng::seed_from_u64(seed));
    let info = ServerInfo { servers: 1, lanes: 4 };
    let jitter = || random.borrow_mut().random::<f64>();
    let mut set: Vec<_> = (0..agents).map(|_| Machine::new(settings(lanes), jitter)).collect();
    let lost_at = Duration::from_secs(3_600);
    for agent in &mut set {
        let id = keep(agent, 0, info);
        agent.lost(lost_at, id);
    }
    let mut events: BinaryHeap<_> = (0..agents).map(|index| Reverse((lost_at, index, None))).collect();
    let (mut free, mut connected, mut lanes_left) = (lost_at, vec![], agents * lanes);
    while let Some(Reverse((now, index, answered))) = events.pop() {
        let agent = &mut set[index];
        match answered {
            Some(true) => match agent.connected(now, &balancer(), &name(0), info) {
                Decision::Duplicate => {}
                decision => {
                    connected.extend(matches!(decision, Decision::Keep(_)).then_some(now - lost_at));
                    lanes_left -= 1;
                }
            },
            Some(false) => drop(agent.failed(now, &balancer(), true)),
            None => {}
        }
        if lanes_left == 0 {
            return (connected[agents - 1], now - lost_at);
        }
        match poll(agent, now) {
            Step::Connect(_) => {
                let end = free.max(now) + SLOW_HANDSHAKE;
                let is_answered = end <= now + GIVEN_UP;
                free = if is_answered { end } else { free };
                events.push(Reverse((end.min(now + GIVEN_UP), index, Some(is_answered))));
            }
            Step::WaitUntil(due) => events.push(Reverse((due, index, None))),
            Step::Wait | Step::Resolve => {}
        }
    }
    panic!("{lanes_left} lanes are missing");
}

#[test]
fn agents_without_a_stream_come_before_lanes() {
    for agents in [50, 300, 1_000] {
        for seed in 0..3 {
            let (alone, _) = storm(seed, agents, 1);
            let (all, lanes) = storm(seed, agents, 2);
            println!("{agents} agents: {alone:.1?} with one lane; with two {all:.1?}, all lanes {lanes:.1?}");
            assert!(all < alone.mul_f64(1.2), "{agents} agents: {all:?}, with one lane {alone:?}");
        }
    }
}
