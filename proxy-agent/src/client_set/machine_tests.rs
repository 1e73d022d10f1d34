use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::addresses::LATE_ANSWER;
use super::super::backoff::MAX_BURST_PER_SERVER;
use super::super::simulation::{balancer, poll, telling};
use super::super::streams::MAX_RETIRED;
use super::*;

fn settings() -> SyncSettings {
    SyncSettings {
        interval: Duration::from_secs(1),
        cap: Duration::from_secs(10),
        forever: false,
        count_source: CountSource::Default,
        lanes: 1,
    }
}

fn machine(settings: SyncSettings) -> Machine<fn() -> f64> {
    Machine::new(settings, || 0.0)
}

fn server(name: &str) -> Arc<str> {
    name.into()
}

/// Longer than a pause of a burst, shorter than the interval.
const SOON: Duration = Duration::from_millis(100);

/// Waits until the next attempt is due and starts it; returns the time that passed.
fn next_try<J: FnMut() -> f64>(machine: &mut Machine<J>, now: &mut Duration) -> Duration {
    let began = *now;
    loop {
        match poll(machine, *now) {
            Step::Connect(_) => return *now - began,
            Step::Resolve => panic!("resolved"),
            Step::WaitUntil(due) => *now = due,
            Step::Wait => panic!("no try is ever due"),
        }
    }
}

fn millis(durations: &[Duration]) -> Vec<u128> {
    durations.iter().map(Duration::as_millis).collect()
}

#[test]
fn tries_until_there_is_a_stream_to_every_server() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    assert_eq!(machine.server_count(), 1);
    assert_eq!(next_try(&mut machine, &mut now), Duration::ZERO);
    assert_eq!(poll(&mut machine, now), Step::WaitUntil(LATE_ANSWER), "one try at a time");
    assert!(matches!(machine.connected(now, &balancer(), &server("a"), telling(2)), Decision::Keep(_)));
    assert!(next_try(&mut machine, &mut now) < SOON);
    assert_eq!(machine.connected(now, &balancer(), &server("a"), telling(2)), Decision::Duplicate);
    assert!(next_try(&mut machine, &mut now) < SOON);
    assert!(matches!(machine.connected(now, &balancer(), &server("b"), telling(2)), Decision::Keep(_)));
    assert_eq!(poll(&mut machine, now + Duration::from_secs(3600)), Step::Wait);
    assert_eq!(machine.open_count(), 2);
}

#[test]
fn a_number_that_all_connected_servers_tell_starts_a_search() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    let mut open = |now: &mut Duration, name| {
        next_try(&mut machine, now);
        let Decision::Keep(id) = machine.connected(*now, &balancer(), &server(name), telling(2)) else {
            panic!("unwanted")
        };
        id
    };
    let (a, b) = (open(&mut now, "a"), open(&mut now, "b"));
    machine.server_count_announced(now, a, 3);
    assert_eq!((machine.server_count(), poll(&mut machine, now)), (2, Step::Wait), "b tells another number");
    machine.server_count_announced(now, b, 3);
    assert_eq!(machine.server_count(), 3);
    assert!(next_try(&mut machine, &mut now) <= settings().interval);
    machine.connected(now, &balancer(), &server("c"), telling(3));
    assert_eq!(poll(&mut machine, now), Step::Wait);
}

#[test]
fn errors_back_off_to_the_cap_and_success_resets() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        next_try(&mut machine, &mut now);
        pauses.push(machine.failed(now, &balancer(), true));
    }
    assert_eq!(millis(&pauses), [1000, 1500, 2250, 3375, 5062, 7593, 10_000, 10_000, 10_000]);
    next_try(&mut machine, &mut now);
    machine.connected(now, &balancer(), &server("a"), telling(2));
    assert!(next_try(&mut machine, &mut now) < SOON);
    assert_eq!(machine.failed(now, &balancer(), true), Duration::from_secs(1));
}

#[test]
fn a_stuck_balancer_is_asked_less_and_less() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    next_try(&mut machine, &mut now);
    machine.connected(now, &balancer(), &server("a"), telling(2));
    let mut pauses = Vec::new();
    for _ in 0..19 {
        pauses.push(next_try(&mut machine, &mut now));
        machine.connected(now, &balancer(), &server("a"), telling(2));
    }
    let burst = [25; 6].into_iter().chain([1000; 6]);
    let expected = burst.chain([1500, 2250, 3375, 5062, 7593, 10_000, 10_000]);
    assert_eq!(millis(&pauses), expected.collect::<Vec<u128>>());
    machine.leases_counted(now, Some(3));
    assert_eq!(next_try(&mut machine, &mut now), Duration::from_secs(1), "another count resets it");
    machine.connected(now, &balancer(), &server("b"), telling(2));
    assert!(next_try(&mut machine, &mut now) < SOON, "so does a new server");
}

/// Time until two agents that start half an interval apart behind a round-robin balancer have a stream to both servers.
fn time_to_get_out_of_step(seed: u64) -> Duration {
    let random = RefCell::new(StdRng::seed_from_u64(seed));
    let mut agents = [(); 2].map(|()| Machine::new(settings(), || random.borrow_mut().random::<f64>()));
    let mut due = [Duration::ZERO, settings().interval / 2];
    let mut turn = 0;
    loop {
        let next = usize::from(due[1] < due[0]);
        let now = due[next];
        let agent = &mut agents[next];
        if matches!(poll(agent, now), Step::Connect(_)) {
            agent.connected(now, &balancer(), &server(["a", "b"][turn % 2]), telling(2));
            turn += 1;
        }
        due[next] = match poll(agent, now) {
            Step::WaitUntil(due) => due,
            Step::Connect(_) | Step::Resolve => now,
            Step::Wait => Duration::MAX,
        };
        if due == [Duration::MAX; 2] {
            return now;
        }
    }
}

/// With a tenth of jitter alone a quarter of the runs took longer than four minutes.
#[test]
fn agents_in_step_behind_a_balancer_get_out_of_it() {
    let mut times: Vec<Duration> = (0..500).map(time_to_get_out_of_step).collect();
    times.sort_unstable();
    let (most, all) = (times[times.len() * 95 / 100], times[times.len() - 1]);
    assert!(most < Duration::from_secs(60) && all < Duration::from_secs(180), "{most:?}, {all:?}");
}

#[test]
fn counts_come_from_leases_or_servers() {
    for (source, leases, told, expected) in [
        (CountSource::Default, None, 0, 1),
        (CountSource::Default, None, 3, 3),
        (CountSource::Default, Some(0), 3, 3),
        (CountSource::Default, Some(0), 0, 1),
        (CountSource::Default, Some(2), 3, 2),
        (CountSource::Max, None, 3, 3),
        (CountSource::Max, Some(2), 3, 3),
        (CountSource::Max, Some(4), 3, 4),
        (CountSource::Max, Some(0), 0, 1),
    ] {
        let mut machine = machine(SyncSettings { count_source: source, ..settings() });
        machine.leases_counted(Duration::ZERO, leases);
        assert_eq!(poll(&mut machine, Duration::ZERO), Step::Connect(balancer()));
        machine.connected(Duration::ZERO, &balancer(), &server("a"), telling(told));
        assert_eq!(machine.server_count(), expected, "{source:?} {leases:?} {told}");
    }
}

#[test]
fn leases_that_vanish_lower_no_count() {
    let (mut machine, mut now, ids) = at_rest(|| 0.0, &["a", "b"]);
    machine.leases_counted(now, Some(0));
    assert_eq!(machine.server_count(), 2);
    machine.lost(now, ids[1]);
    next_try(&mut machine, &mut now);
}

/// As many leases as these holders, with or without an answer of the API.
fn held(holders: &[&str], stale: bool) -> Leased {
    let count = holders.len();
    Leased {
        count,
        holders: holders.iter().map(|holder| server(holder)).collect(),
        stale,
        ..Leased::default()
    }
}

/// The kube-apiserver of a is down, and b returns.
#[test]
fn a_server_with_a_lease_is_sought_although_the_number_of_streams_is_right() {
    let (mut machine, mut now, ids) = at_rest(|| 0.5, &["a", "b"]);
    machine.leased(now, held(&["a", "b"], false));
    machine.lost(now, ids[1]);
    machine.leased(now, held(&["b"], false));
    assert_eq!((machine.server_count(), machine.wanted_count()), (1, 2));
    assert!(next_try(&mut machine, &mut now) <= settings().interval);
    machine.connected(now, &balancer(), &server("b"), telling(2));
    assert_eq!(poll(&mut machine, now + Duration::from_secs(3_600)), Step::Wait);
}

#[test]
fn other_leases_of_the_same_number_begin_a_search() {
    let (mut machine, mut now, _) = at_rest(|| 0.5, &["a", "b"]);
    machine.leased(now, held(&["a", "b"], false));
    assert_eq!(poll(&mut machine, now), Step::Wait);
    machine.leased(now, held(&["a", "c"], false));
    assert_eq!(next_try(&mut machine, &mut now), Duration::from_millis(500), "not in step with others");
}

/// While the API does not answer, b has restarted with another id.
#[test]
fn holders_are_not_sought_while_the_leases_are_out_of_date() {
    let (mut machine, mut now, _) = at_rest(|| 0.5, &["a", "c"]);
    machine.leased(now, held(&["a", "b"], true));
    assert_eq!(poll(&mut machine, now + Duration::from_secs(3_600)), Step::Wait);
    machine.leased(now, held(&["a", "b"], false));
    assert!(next_try(&mut machine, &mut now) <= settings().interval);
}

/// Leases of another implementation.
#[test]
fn holders_that_are_no_server_ids_are_not_sought_for_ever() {
    for forever in [false, true] {
        let (mut machine, mut now) = (machine(SyncSettings { forever, ..settings() }), Duration::ZERO);
        machine.leased(now, held(&["x", "y"], false));
        let mut tries = 0;
        while poll(&mut machine, now) != Step::Wait {
            next_try(&mut machine, &mut now);
            machine.connected(now, &balancer(), &server(["a", "b"][tries % 2]), telling(2));
            tries += 1;
            assert!(tries < 40, "{tries}");
        }
        assert!(tries > 2 * PROVING_DUPLICATES_PER_SERVER);
        machine.leased(now, held(&["b", "x"], false));
        assert!(next_try(&mut machine, &mut now) <= settings().interval, "b is a server");
    }
}

#[test]
fn a_falling_count_closes_nothing_and_a_rising_one_tries_again() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    machine.leases_counted(now, Some(2));
    for name in ["a", "b"] {
        next_try(&mut machine, &mut now);
        machine.connected(now, &balancer(), &server(name), telling(2));
    }
    machine.leases_counted(now, Some(1));
    assert_eq!((machine.open_count(), poll(&mut machine, now)), (2, Step::Wait));
    machine.leases_counted(now, Some(3));
    assert_eq!(next_try(&mut machine, &mut now), Duration::from_secs(1));
}

#[test]
fn a_lost_stream_is_replaced_within_an_interval() {
    let mut now = Duration::ZERO;
    let mut machine = Machine::new(settings(), || 0.5);
    next_try(&mut machine, &mut now);
    let Decision::Keep(id) = machine.connected(now, &balancer(), &server("a"), telling(1)) else {
        panic!("kept")
    };
    now += Duration::from_secs(60);
    machine.lost(now, id);
    assert_eq!(machine.open_count(), 0);
    assert_eq!(next_try(&mut machine, &mut now), Duration::from_millis(500), "not in step with others");
    let Decision::Keep(second) = machine.connected(now, &balancer(), &server("a"), telling(1)) else {
        panic!("kept")
    };
    machine.lost(now, id);
    assert_eq!(machine.open_count(), 1, "an id of the past tears nothing down");
    assert_ne!(id, second);
}

/// A machine with `--sync-forever` that has a stream to each of these servers, which tell these counts.
fn forever(leases: Option<usize>, servers: &[(&str, usize)]) -> (Machine<fn() -> f64>, Duration) {
    let mut machine = machine(SyncSettings { forever: true, ..settings() });
    let mut now = Duration::ZERO;
    for (name, told) in servers {
        next_try(&mut machine, &mut now);
        assert!(matches!(
            machine.connected(now, &balancer(), &server(name), telling(*told)),
            Decision::Keep(_)
        ));
    }
    machine.leases_counted(now, leases);
    (machine, now)
}

#[test]
fn sync_forever_rests_once_the_leases_agree() {
    let (mut machine, mut now) = forever(Some(2), &[("a", 1), ("b", 7)]);
    assert_eq!(poll(&mut machine, now + Duration::from_secs(36_000)), Step::Wait);
    machine.leases_counted(now, Some(3));
    assert!(next_try(&mut machine, &mut now) <= Duration::from_secs(1));
}

#[test]
fn sync_forever_looks_rarely_while_the_leases_are_out_of_date() {
    let (mut machine, mut now) = forever(Some(2), &[("a", 1), ("b", 7)]);
    now += Duration::from_secs(36_000);
    machine.leased(now, Leased { count: 2, stale: true, ..Leased::default() });
    assert_eq!(next_try(&mut machine, &mut now), Duration::from_secs(450));
    machine.connected(now, &balancer(), &server("a"), telling(1));
    machine.leases_counted(now, Some(2));
    assert_eq!(poll(&mut machine, now + Duration::from_secs(36_000)), Step::Wait);
}

#[test]
fn sync_forever_looks_rarely_once_every_server_tells_the_number_of_streams() {
    let (mut machine, mut now) = forever(None, &[("a", 2), ("b", 2)]);
    for pause in [450, 1, 1, 450, 1, 1] {
        assert_eq!(next_try(&mut machine, &mut now), Duration::from_secs(pause));
        assert_eq!(machine.connected(now, &balancer(), &server("a"), telling(2)), Decision::Duplicate);
    }
    next_try(&mut machine, &mut now);
    assert_eq!(machine.failed(now, &balancer(), true), Duration::from_secs(450), "an error changes nothing");
    next_try(&mut machine, &mut now);
    assert!(
        matches!(machine.connected(now, &balancer(), &server("c"), telling(2)), Decision::Keep(_)),
        "a server nobody told of"
    );
    assert_eq!(next_try(&mut machine, &mut now), Duration::from_secs(1), "the number is evidently wrong");
}

#[test]
fn sync_forever_replaces_a_lost_stream_although_the_next_look_is_far_away() {
    let (mut machine, mut now) = forever(None, &[("a", 2), ("b", 2)]);
    now += Duration::from_secs(60);
    machine.lost(now, StreamId(1));
    assert!(next_try(&mut machine, &mut now) < SOON);
}

#[test]
fn sync_forever_goes_on_where_the_number_is_evidently_wrong() {
    let table = [
        (None, &[("a", 1), ("b", 1), ("c", 1)][..]),
        (None, &[("a", 3), ("b", 2)]),
        (Some(1), &[("a", 1), ("b", 1)]),
        // No lease at all.
        (Some(0), &[("a", 1)]),
        // The default of servers.
        (None, &[("a", 1)]),
    ];
    for (leases, servers) in table {
        let (mut machine, mut now) = forever(leases, servers);
        assert_eq!(next_try(&mut machine, &mut now), Duration::from_secs(1), "{leases:?} {servers:?}");
    }
}

#[test]
fn sync_forever_believes_the_default_count_after_many_duplicates() {
    let (mut machine, mut now) = forever(None, &[("a", 1)]);
    for _ in 0..PROVING_DUPLICATES_PER_SERVER {
        assert!(next_try(&mut machine, &mut now) <= Duration::from_secs(10));
        machine.connected(now, &balancer(), &server("a"), telling(1));
    }
    assert_eq!(next_try(&mut machine, &mut now), Duration::from_secs(450));
}

#[test]
fn servers_that_disagree_are_not_doubted_for_ever() {
    let (mut machine, mut now) = forever(None, &[("a", 3), ("b", 2), ("c", 1)]);
    for tries in 0..30 {
        assert!(next_try(&mut machine, &mut now) <= Duration::from_secs(10), "{tries}");
        machine.connected(now, &balancer(), &server("b"), telling(2));
    }
    assert_eq!(next_try(&mut machine, &mut now), Duration::from_secs(450));
    machine.connected(now, &balancer(), &server("b"), telling(2));
    machine.leases_counted(now, Some(4));
    machine.leases_counted(now, None);
    assert!(next_try(&mut machine, &mut now) <= Duration::from_secs(10), "news");
}

#[test]
fn a_stream_that_ends_again_and_again_does_not_cause_burst_after_burst() {
    let (mut machine, mut now, mut tries) = (machine(settings()), Duration::ZERO, 0);
    let hour = Duration::from_secs(3_600);
    while now < hour {
        next_try(&mut machine, &mut now);
        tries += 1;
        match machine.connected(now, &balancer(), &server(["a", "b"][tries % 2]), telling(3)) {
            Decision::Keep(id) => machine.lost(now, id),
            other => assert_eq!(other, Decision::Duplicate),
        }
    }
    assert!(tries <= 3_600 + 3 * MAX_BURST_PER_SERVER + 1, "{tries}");
}

#[test]
fn a_count_that_is_far_too_high_costs_no_long_burst() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    for name in ["a", "b", "c"] {
        next_try(&mut machine, &mut now);
        machine.connected(now, &balancer(), &server(name), telling(usize::MAX));
    }
    let mut tries = 0;
    while next_try(&mut machine, &mut now) < SOON {
        assert_eq!(
            machine.connected(now, &balancer(), &server("a"), telling(usize::MAX)),
            Decision::Duplicate
        );
        tries += 1;
    }
    assert!(tries <= 31, "{tries}");
    let began = now;
    for _ in 0..300 {
        machine.connected(now, &balancer(), &server("a"), telling(usize::MAX));
        next_try(&mut machine, &mut now);
    }
    assert!(now - began > Duration::from_secs(1_500), "{:?}", now - began);
}

type Resting = (Machine<fn() -> f64>, Duration, Vec<StreamId>);

/// A machine in whose leases these servers are, with a stream to each, a minute later.
fn at_rest(jitter: fn() -> f64, names: &[&str]) -> Resting {
    let (mut machine, mut now) = (Machine::new(settings(), jitter), Duration::ZERO);
    machine.leases_counted(now, Some(names.len()));
    let mut keep = |name: &&str| {
        next_try(&mut machine, &mut now);
        match machine.connected(now, &balancer(), &server(name), telling(names.len())) {
            Decision::Keep(id) => id,
            other => panic!("{other:?}"),
        }
    };
    let ids = names.iter().map(&mut keep).collect();
    (machine, now + Duration::from_secs(60), ids)
}

#[test]
fn agents_at_rest_do_not_search_in_step() {
    let (mut machine, mut now, _) = at_rest(|| 0.5, &["a", "b"]);
    machine.leases_counted(now, Some(3));
    assert_eq!(next_try(&mut machine, &mut now), Duration::from_millis(500));
    let (mut machine, mut now, ids) = at_rest(|| 0.5, &["a", "b"]);
    machine.set_unresponsive(now, ids[0], true);
    assert_eq!(next_try(&mut machine, &mut now), Duration::from_millis(125));
}

#[test]
fn one_missing_server_costs_one_fast_attempt_for_each_known_one() {
    let (mut machine, mut now, ids) = at_rest(|| 0.0, &["a", "b", "c", "d"]);
    machine.lost(now, ids[3]);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        pauses.push(next_try(&mut machine, &mut now));
        machine.connected(now, &balancer(), &server("a"), telling(4));
    }
    assert_eq!(millis(&pauses), [0, 25, 25, 25, 25, 1000, 1000]);
}

/// The number in a file falls from five to three, and two servers are removed.
#[test]
fn another_number_is_believed_once_every_connected_server_tells_it() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    for name in ["a", "b", "c"] {
        next_try(&mut machine, &mut now);
        machine.connected(now, &balancer(), &server(name), telling(5));
    }
    for (name, known) in [("a", 5), ("b", 5), ("a", 5), ("c", 3)] {
        next_try(&mut machine, &mut now);
        assert_eq!(machine.connected(now, &balancer(), &server(name), telling(3)), Decision::Duplicate);
        assert_eq!(machine.server_count(), known);
    }
    assert_eq!(poll(&mut machine, now + Duration::from_secs(3_600)), Step::Wait);
}

/// Behind a balancer that chooses at random among `count` servers, one of which nobody announced.
fn looks_until_found(seed: u64, count: usize) -> usize {
    let random = RefCell::new(StdRng::seed_from_u64(seed));
    let draw = || random.borrow_mut().random::<f64>();
    let mut machine = Machine::new(SyncSettings { forever: true, ..settings() }, draw);
    let (mut now, mut looks, told) = (Duration::ZERO, 0, count - 1);
    for index in 0..told {
        next_try(&mut machine, &mut now);
        machine.connected(now, &balancer(), &server(&index.to_string()), telling(told));
    }
    while machine.open_count() < count {
        looks += usize::from(next_try(&mut machine, &mut now) > Duration::from_secs(60));
        let led_to = random.borrow_mut().random_range(0..count).to_string();
        machine.connected(now, &balancer(), &server(&led_to), telling(told));
    }
    looks
}

#[test]
fn most_looks_find_an_added_server() {
    for count in [3, 6] {
        let looks: usize = (0..200).map(|seed| looks_until_found(seed, count)).sum();
        assert!(looks < 350, "{looks} looks of 200 agents, {count} servers");
    }
}

/// An agent that looks does not need a new server to learn a raised number.
#[test]
fn a_raised_number_reaches_agents_that_look() {
    let (mut machine, mut now) = forever(None, &[("a", 2), ("b", 2)]);
    for name in ["a", "b"] {
        next_try(&mut machine, &mut now);
        machine.connected(now, &balancer(), &server(name), telling(3));
    }
    assert_eq!(machine.server_count(), 3);
    assert!(next_try(&mut machine, &mut now) < SOON);
}

#[test]
fn an_unresponsive_server_is_sought_in_a_burst_and_a_renewal_is_not() {
    for (unresponsive, pause) in [(true, 25), (false, 1000)] {
        let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
        machine.leases_counted(now, Some(2));
        let ids = ["a", "b"].map(|name| {
            next_try(&mut machine, &mut now);
            let Decision::Keep(id) = machine.connected(now, &balancer(), &server(name), telling(2)) else {
                panic!("kept")
            };
            id
        });
        now += Duration::from_secs(60);
        match unresponsive {
            true => machine.set_unresponsive(now, ids[1], true),
            false => assert!(machine.certificate_expiring(now, ids[1])),
        }
        next_try(&mut machine, &mut now);
        assert_eq!(machine.connected(now, &balancer(), &server("a"), telling(2)), Decision::Duplicate);
        assert_eq!(next_try(&mut machine, &mut now).as_millis(), pause);
    }
}

#[test]
fn several_servers_that_do_not_answer_are_sought_until_all_are_found() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    let names = ["a", "b", "c", "d", "e"];
    machine.leases_counted(now, Some(names.len()));
    let ids = names.map(|name| {
        next_try(&mut machine, &mut now);
        let kept = machine.connected(now, &balancer(), &server(name), telling(names.len()));
        let Decision::Keep(id) = kept else { panic!("{kept:?}") };
        id
    });
    now += Duration::from_secs(60);
    ids.into_iter().for_each(|id| machine.set_unresponsive(now, id, true));
    next_try(&mut machine, &mut now);
    for name in &names[..4] {
        let replaces = machine.connected(now, &balancer(), &server(name), telling(names.len()));
        assert!(matches!(replaces, Decision::Replace(..)), "{replaces:?}");
        assert!(next_try(&mut machine, &mut now) < SOON);
    }
    // One of a thousand agents needs more attempts for the last one of five.
    for attempt in 0..30 {
        let again = machine.connected(now, &balancer(), &server("a"), telling(names.len()));
        assert_eq!(again, Decision::Duplicate);
        let pause = next_try(&mut machine, &mut now);
        assert!(pause < SOON, "{pause:?} after {attempt} duplicates");
    }
}

#[test]
fn a_draining_set_opens_nothing() {
    let (mut machine, now) = (machine(settings()), Duration::ZERO);
    assert_eq!(poll(&mut machine, now), Step::Connect(balancer()));
    machine.drain();
    assert_eq!(machine.connected(now, &balancer(), &server("a"), telling(3)), Decision::Unwanted);
    machine.failed(now, &balancer(), true);
    machine.leases_counted(now, Some(5));
    assert!(machine.is_draining());
    assert_eq!(poll(&mut machine, now + Duration::from_secs(3600)), Step::Wait);
}

#[derive(Debug, Clone)]
enum Event {
    Connected(u8, usize),
    Failed,
    Lost(u8),
    /// Retires without a successor.
    Retires(u8),
    Unresponsive(u8, bool),
    Aged(u8),
    /// The oldest retiring stream has ended.
    RetiredEnds,
    /// The holders, leases without a holder, and whether they are out of date.
    Leases(BTreeSet<u8>, usize, bool),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..6_u8, 0..6_usize).prop_map(|(server, count)| Event::Connected(server, count)),
        1 => Just(Event::Failed),
        1 => (0..6_u8).prop_map(Event::Lost),
        1 => (0..6_u8).prop_map(Event::Retires),
        1 => (0..6_u8, proptest::bool::ANY).prop_map(|(server, unresponsive)| Event::Unresponsive(server, unresponsive)),
        1 => (0..6_u8).prop_map(Event::Aged),
        1 => Just(Event::RetiredEnds),
        1 => (proptest::collection::btree_set(0..6_u8, 0..6), 0..2_usize, proptest::bool::ANY)
            .prop_map(|(holders, others, stale)| Event::Leases(holders, others, stale)),
        2 => (0..20_000_u64).prop_map(Event::Pass),
    ]
}

/// Whether the server would refuse another stream because of its retiring ones.
fn full(retired: &[(u8, StreamId)], name: u8) -> bool {
    retired.iter().filter(|(of, _)| *of == name).count() >= MAX_RETIRED
}

proptest! {
    /// At all times: at most one kept stream for each server, no pause above the cap with its jitter, and an attempt while another
    /// one runs only if that one is late.
    #[test]
    fn invariants_hold(forever: bool, events in proptest::collection::vec(event(), 1..200)) {
        let mut machine = Machine::new(SyncSettings { forever, ..settings() }, || 0.99);
        let (mut now, mut leases) = (Duration::ZERO, Leased::default());
        // The start of the last attempt until one ends, and whether an earlier one runs.
        let (mut last, mut earlier) = (None, false);
        let mut kept: HashMap<u8, StreamId> = HashMap::new();
        // The kept streams that are unresponsive or aged, and the retiring streams.
        let (mut unresponsive, mut aged) = (HashSet::new(), HashSet::new());
        let mut retired: Vec<(u8, StreamId)> = Vec::new();
        for event in events {
            match event {
                Event::Connected(name, count) if last.is_some() || earlier => {
                    earlier &= last.take().is_some();
                    match machine.connected(now, &balancer(), &server(&name.to_string()), telling(count)) {
                        Decision::Keep(id) => prop_assert!(kept.insert(name, id).is_none()),
                        Decision::Replace(id, old) => {
                            prop_assert!(unresponsive.remove(&name) | aged.remove(&name));
                            prop_assert_eq!(kept.insert(name, id), Some(old));
                            retired.push((name, old));
                            prop_assert!(retired.iter().filter(|(of, _)| *of == name).count() <= MAX_RETIRED);
                        }
                        Decision::Duplicate => {
                            prop_assert!(kept.contains_key(&name));
                            let full = full(&retired, name);
                            prop_assert!(full || (!unresponsive.contains(&name) && !aged.contains(&name)));
                        }
                        Decision::KeepLane(_) | Decision::Unwanted => prop_assert!(false, "one lane, not draining"),
                    }
                }
                Event::Failed if last.is_some() || earlier => {
                    earlier &= last.take().is_some();
                    machine.failed(now, &balancer(), true);
                }
                Event::Lost(name) | Event::Retires(name) => {
                    if let Some(id) = kept.remove(&name) {
                        unresponsive.remove(&name);
                        aged.remove(&name);
                        if let Event::Retires(_) = event {
                            retired.push((name, id));
                            machine.retire(now, id);
                        } else {
                            machine.lost(now, id);
                        }
                    }
                }
                Event::Unresponsive(name, is) if kept.contains_key(&name) => {
                    machine.set_unresponsive(now, kept[&name], is);
                    if is { unresponsive.insert(name) } else { unresponsive.remove(&name) };
                }
                Event::Aged(name) if kept.contains_key(&name) => {
                    let news = aged.insert(name);
                    prop_assert_eq!(machine.certificate_expiring(now, kept[&name]), news);
                }
                Event::RetiredEnds if !retired.is_empty() => {
                    machine.lost(now, retired.remove(0).1);
                }
                Event::Leases(holders, others, stale) => {
                    let count = holders.len() + others;
                    let holders = holders.iter().map(|holder| server(&holder.to_string())).collect();
                    leases = Leased { count, holders, stale, ..Leased::default() };
                    machine.leased(now, leases.clone());
                }
                Event::Pass(millis) => now += Duration::from_millis(millis),
                Event::Connected(..) | Event::Failed | Event::Unresponsive(..) | Event::Aged(_) => {}
                Event::RetiredEnds => {}
            }
            let lacks = unresponsive.union(&aged).any(|name| !full(&retired, *name));
            let lacks_holder = |holder: &Arc<str>| !kept.keys().any(|name| **holder == name.to_string());
            let holders = leases.holders.iter().filter(|holder| !leases.stale && lacks_holder(holder)).count();
            let foreign = holders == leases.holders.len() && machine.is_proven();
            let missing = kept.len() < machine.server_count() || lacks || holders > 0 && !foreign;
            let wanted = missing || forever && (leases.stale || leases.count != kept.len());
            let longest = Duration::from_secs(match missing {
                true if kept.len() < machine.wanted_count() => 11,
                // Paced, see `addresses`.
                true => 100,
                false => 750,
            });
            match poll(&mut machine, now) {
                Step::Connect(_) => {
                    prop_assert!(wanted && last.is_none_or(|began| !earlier && now >= began + LATE_ANSWER));
                    earlier |= last.replace(now).is_some();
                }
                Step::WaitUntil(due) => {
                    let late = last.map_or(Duration::ZERO, |began| began + LATE_ANSWER);
                    prop_assert!(!(earlier && last.is_some()) && due <= late.max(now + longest));
                }
                Step::Resolve => prop_assert!(false, "resolved"),
                Step::Wait => prop_assert!(earlier && last.is_some() || !wanted),
            }
            prop_assert_eq!(machine.open_count(), kept.len());
            prop_assert!(machine.server_count() >= 1);
        }
    }

    /// Behind a balancer that chooses at random the set becomes complete, and then waits.
    #[test]
    fn the_set_completes(count in 1..6_usize, seed: u64) {
        let mut random = seed | 1;
        let mut machine = machine(settings());
        let (mut now, mut tries) = (Duration::ZERO, 0);
        let mut servers = HashSet::new();
        while poll(&mut machine, now) != Step::Wait {
            if let Step::WaitUntil(due) = poll(&mut machine, now) {
                now = due;
                continue;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let choice = (random >> 33) as usize % count;
            machine.connected(now, &balancer(), &server(&choice.to_string()), telling(count));
            servers.insert(choice);
            tries += 1;
            prop_assert!(tries < 500, "does not complete");
        }
        prop_assert_eq!((servers.len(), machine.open_count()), (count, count));
    }
}

#[test]
fn a_stream_that_should_be_replaced_is_kept_until_its_successor_is_there() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    next_try(&mut machine, &mut now);
    let Decision::Keep(first) = machine.connected(now, &balancer(), &server("a"), telling(1)) else {
        panic!("kept")
    };
    now += Duration::from_secs(60);
    machine.set_unresponsive(now, first, true);
    assert_eq!(machine.open_count(), 1);
    next_try(&mut machine, &mut now);
    assert!(
        matches!(machine.connected(now, &balancer(), &server("b"), telling(9)), Decision::Keep(_)),
        "the balancer chose another"
    );
    assert_eq!(machine.server_count(), 9);
    next_try(&mut machine, &mut now);
    let verdict = machine.connected(now, &balancer(), &server("a"), telling(1));
    let Decision::Replace(second, old) = verdict else { panic!("{verdict:?}") };
    assert_eq!(
        (old, machine.open_count(), machine.server_count()),
        (first, 2, 9),
        "an old server is not believed"
    );
    machine.lost(now, first);
    assert_eq!(machine.open_count(), 2, "the end of the retired one is no loss");
    machine.lost(now, second);
    assert_eq!(machine.open_count(), 1);
}

#[test]
fn no_more_than_a_server_takes() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    next_try(&mut machine, &mut now);
    let Decision::Keep(mut id) = machine.connected(now, &balancer(), &server("a"), telling(1)) else {
        panic!("kept")
    };
    for _ in 0..MAX_RETIRED {
        assert!(machine.certificate_expiring(now, id));
        assert!(!machine.certificate_expiring(now, id), "known");
        next_try(&mut machine, &mut now);
        let Decision::Replace(next, _) = machine.connected(now, &balancer(), &server("a"), telling(1)) else {
            panic!("replaced")
        };
        id = next;
    }
    machine.set_unresponsive(now, id, true);
    assert_eq!(poll(&mut machine, now + Duration::from_secs(60)), Step::Wait, "two are on their way out");
    machine.lost(now, StreamId(0));
    // The event is reported only once.
    next_try(&mut machine, &mut now);
    assert!(matches!(machine.connected(now, &balancer(), &server("a"), telling(1)), Decision::Replace(..)));
}

/// Two servers with one id look the same as a balancer that always chooses one server.
#[test]
fn a_missing_server_that_no_attempt_reaches_is_reported_once() {
    let (mut machine, mut now) = (machine(settings()), Duration::ZERO);
    next_try(&mut machine, &mut now);
    machine.connected(now, &balancer(), &server("a"), telling(2));
    let mut attempt = |name: &str, machine: &mut Machine<fn() -> f64>| {
        next_try(machine, &mut now);
        machine.connected(now, &balancer(), &server(name), telling(2));
        machine.is_stuck()
    };
    let reports: Vec<bool> = (0..40).map(|_| attempt("a", &mut machine)).collect();
    // After the burst.
    assert!(reports.iter().position(|stuck| *stuck) >= Some(2 * TOLERATED_DUPLICATES_PER_SERVER));
    assert_eq!(reports.iter().filter(|stuck| **stuck).count(), 1);
    assert!(!attempt("b", &mut machine));
}

/// Such as a server that sends GOAWAY on every connection.
#[test]
fn successors_that_soon_want_successors_come_less_and_less_often() {
    let (mut machine, mut now, ids) = at_rest(|| 0.0, &["a"]);
    let (mut id, mut retired, mut pauses) = (ids[0], None, Vec::new());
    for _ in 0..9 {
        machine.set_unresponsive(now, id, true);
        if let Some(retired) = retired {
            machine.lost(now, retired);
        }
        pauses.push(next_try(&mut machine, &mut now));
        match machine.connected(now, &balancer(), &server("a"), telling(1)) {
            Decision::Replace(next, old) => (id, retired) = (next, Some(old)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(millis(&pauses), [0, 1000, 1500, 2250, 3375, 5062, 7593, 10_000, 10_000]);
    now += Duration::from_secs(60);
    machine.set_unresponsive(now, id, true);
    assert_eq!(next_try(&mut machine, &mut now), Duration::ZERO);
}
