//! Several addresses, by the rules of the whole machine.

use std::collections::{BTreeSet, HashMap, HashSet};

use proptest::prelude::*;

use super::super::machine::{CountSource, Machine, Step, SyncSettings};
use super::super::simulation::telling;
use super::super::streams::{Decision, StreamId};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn address(entry: usize, host: &str) -> Address {
    Address { dial: ServerAddress { host: host.into(), port: 8091 }, entry }
}

fn entry(index: usize, hosts: &[&str]) -> Resolved {
    Resolved { addresses: hosts.iter().map(|host| address(index, host)).collect(), error: None }
}

/// A machine, and the network that it dials: the server of each address; an address without a server refuses.
struct World {
    machine: Machine<fn() -> f64>,
    now: Duration,
    entries: Vec<Resolved>,
    servers: HashMap<String, String>,
    /// The servers to which the address `balancer` leads in turns; if there are none, it is an address as any other.
    balanced: Vec<String>,
    told: usize,
    kept: HashMap<String, StreamId>,
    /// The hosts that were dialed, in order.
    dialed: Vec<String>,
}

impl World {
    fn new(entries: Vec<Resolved>, servers: &[(&str, &str)], told: usize) -> Self {
        let settings = SyncSettings {
            interval: SECOND,
            cap: SECOND * 10,
            forever: false,
            count_source: CountSource::Default,
            lanes: 1,
        };
        let servers = servers.iter().map(|(host, server)| ((*host).into(), (*server).into())).collect();
        let machine: Machine<fn() -> f64> = Machine::new(settings, || 0.5);
        let (now, kept, dialed) = (Duration::ZERO, HashMap::new(), Vec::new());
        Self { machine, now, entries, servers, balanced: Vec::new(), told, kept, dialed }
    }

    /// Starts what is due at this moment; returns the addresses.
    fn start(&mut self) -> Vec<Address> {
        let mut started = Vec::new();
        loop {
            match self.machine.poll(self.now) {
                Step::Resolve => self.machine.resolved(self.now, self.entries.clone()),
                Step::Connect(address) => {
                    self.dialed.push(address.dial.host.clone());
                    started.push(address);
                }
                Step::Wait | Step::WaitUntil(_) => return started,
            }
        }
    }

    fn answer(&mut self, address: &Address) {
        let host = &address.dial.host;
        let balanced = self.balanced.first().filter(|_| host == "balancer");
        let Some(server) = balanced.or_else(|| self.servers.get(host)).cloned() else {
            self.machine.failed(self.now, address, true);
            return;
        };
        if balanced.is_some() {
            self.balanced.rotate_left(1);
        }
        match self.machine.connected(self.now, address, &server.as_str().into(), telling(self.told)) {
            Decision::Keep(id) | Decision::Replace(id, _) => {
                self.kept.insert(server, id);
            }
            Decision::Duplicate => {}
            Decision::KeepLane(_) | Decision::Unwanted => panic!("no lanes, not draining"),
        }
    }

    /// Runs for this time; returns the hosts that were dialed.
    fn run(&mut self, time: Duration) -> Vec<String> {
        let end = self.now + time;
        self.dialed.clear();
        loop {
            let started = self.start();
            started.iter().for_each(|address| self.answer(address));
            if started.is_empty() {
                match self.machine.poll(self.now) {
                    Step::WaitUntil(due) if due <= end => self.now = due,
                    _ => break,
                }
            }
        }
        self.now = end;
        std::mem::take(&mut self.dialed)
    }

    fn lose(&mut self, server: &str) {
        let id = self.kept.remove(server).expect("a stream");
        self.machine.lost(self.now, id);
    }
}

fn sorted(mut hosts: Vec<String>) -> Vec<String> {
    hosts.sort_unstable();
    hosts
}

#[test]
fn each_address_is_dialed_once_and_then_nothing() {
    let servers = [("a", "s1"), ("b", "s2"), ("c", "s3")];
    let mut world = World::new(vec![entry(0, &["a"]), entry(1, &["b", "c"])], &servers, 3);
    assert_eq!(sorted(world.run(SECOND * 3_600)), ["a", "b", "c"]);
    assert_eq!(world.machine.open_count(), 3);
    world.lose("s2");
    assert_eq!(world.run(SECOND * 3_600), ["b"], "only the address of the lost stream");
}

#[test]
fn two_addresses_of_one_server_cost_one_duplicate() {
    let servers = [("v4", "s1"), ("v6", "s1"), ("other", "s2")];
    let mut world = World::new(vec![entry(0, &["v4", "v6"]), entry(1, &["other"])], &servers, 2);
    assert_eq!(sorted(world.run(SECOND * 3_600)), ["other", "v4", "v6"]);
    world.lose("s1");
    assert_eq!(world.run(SECOND * 3_600).len(), 1, "one of its addresses is enough");
}

#[test]
fn a_dead_address_delays_no_other_and_is_tried_less_and_less() {
    let mut world =
        World::new(vec![entry(0, &["dead", "b"]), entry(1, &["c"])], &[("b", "s2"), ("c", "s3")], 3);
    assert_eq!(world.start().len(), 3, "side by side");
    world = World::new(world.entries, &[("b", "s2"), ("c", "s3")], 3);
    let soon = world.run(SECOND * 2);
    assert_eq!(sorted(soon), ["b", "c", "dead", "dead"], "the others are left alone");
    let later = world.run(SECOND * 58).into_iter().filter(|host| host == "dead").count();
    assert!((6..=10).contains(&later), "{later}");
    assert_eq!(world.machine.open_count(), 2);
    world.servers.insert("dead".into(), "s1".into());
    world.run(SECOND * 60);
    assert_eq!(world.machine.open_count(), 3);
    assert_eq!(world.run(SECOND * 3_600), [""; 0]);
}

/// An IPv6 address that nothing answers beside the IPv4 address of a load balancer.
#[test]
fn a_dead_address_beside_a_balancer_does_not_end_the_search() {
    let mut world = World::new(vec![entry(0, &["v6", "v4"])], &[("v4", "s1")], 2);
    world.run(SECOND * 10);
    world.servers.insert("v4".into(), "s2".into());
    world.run(SECOND * 20);
    assert_eq!(world.machine.open_count(), 2);
    assert_eq!(world.run(SECOND * 3_600), [""; 0]);
}

#[test]
fn several_balancers_are_searched() {
    let mut world = World::new(vec![entry(0, &["a"]), entry(1, &["b"])], &[("a", "s1"), ("b", "s2")], 4);
    world.run(SECOND / 2);
    for server in ["s3", "s4"] {
        world.servers.insert("b".into(), server.into());
        assert!(world.run(SECOND * 60).len() > 1);
    }
    assert_eq!(world.machine.open_count(), 4);
    assert_eq!(world.run(SECOND * 3_600), [""; 0]);
}

#[test]
fn an_address_that_is_gone_keeps_its_stream_and_is_not_dialed_again() {
    let mut world = World::new(vec![entry(0, &["a", "b"])], &[("a", "s1"), ("b", "s2"), ("c", "s3")], 2);
    world.run(SECOND * 10);
    world.entries = vec![entry(0, &["b", "c"])];
    assert_eq!(world.run(SECOND * 60), [""; 0]);
    assert_eq!(world.machine.open_count(), 2);
    world.lose("s1");
    assert_eq!(world.run(SECOND * 60), ["c"], "names are looked up again");
}

#[test]
fn a_failed_lookup_changes_nothing() {
    let mut world = World::new(vec![entry(0, &["a", "b"]), entry(1, &["c"])], &[("a", "s1"), ("b", "s2")], 3);
    world.run(SECOND * 10);
    world.entries[0] = Resolved { addresses: vec![address(0, "name")], error: Some("timeout".into()) };
    let dialed: HashSet<String> = world.run(SECOND * 60).into_iter().collect();
    assert_eq!(dialed, HashSet::from(["a", "b", "c"].map(str::to_owned)), "never the name");
    let mut world = World::new(world.entries, &[("name", "s1")], 1);
    assert!(world.run(SECOND).contains(&"name".to_owned()), "without addresses the name is dialed");
}

#[test]
fn the_name_is_dialed_if_its_lookups_and_all_its_addresses_fail() {
    let mut world = World::new(vec![entry(0, &["a", "b"])], &[("a", "s1"), ("b", "s2")], 2);
    world.run(SECOND * 10);
    // The servers move while the name server is silent.
    world.entries = vec![Resolved { addresses: vec![address(0, "name")], error: Some("timeout".into()) }];
    world.servers = HashMap::from([("name".into(), "s1".into()), ("b".into(), "s2".into())]);
    world.lose("s1");
    assert!(!world.run(SECOND * 60).contains(&"name".to_owned()), "the stream to b is open");
    world.servers.remove("b");
    world.lose("s2");
    assert!(world.run(SECOND * 120).contains(&"name".to_owned()));
    world.servers.insert("name".into(), "s2".into());
    world.run(SECOND * 60);
    assert_eq!(world.machine.open_count(), 2);
    world.entries = vec![entry(0, &["c", "d"])];
    world.servers = HashMap::from([("c".into(), "s1".into()), ("d".into(), "s2".into())]);
    ["s1", "s2"].iter().for_each(|server| world.lose(server));
    assert_eq!(sorted(world.run(SECOND * 60)), ["c", "d"]);
}

#[test]
fn a_slow_lookup_does_not_delay_attempts_at_known_addresses() {
    let mut world = World::new(vec![entry(0, &["a", "b"])], &[("a", "s1"), ("b", "s2")], 2);
    world.run(SECOND * 60);
    world.lose("s1");
    while let Step::WaitUntil(due) = world.machine.poll(world.now) {
        world.now = due;
    }
    // The poll above began a lookup.
    let began = world.now;
    let Step::WaitUntil(due) = world.machine.poll(began) else { panic!("attempts wait for the lookup") };
    assert_eq!(due, began + SECOND);
    let connect = Step::Connect(address(0, "a"));
    assert_eq!(world.machine.poll(due), connect);
    assert!(matches!(world.machine.poll(due), Step::WaitUntil(_)), "one lookup at a time");
    world.machine.failed(due, &address(0, "a"), true);
    world.machine.resolved(due, vec![entry(0, &["b", "c"])]);
    assert_eq!(world.machine.poll(due), Step::Connect(address(0, "c")));
}

#[test]
fn an_address_whose_stream_was_lost_is_dialed_although_the_count_is_too_low() {
    let mut world = World::new(vec![entry(0, &["a", "b"])], &[("a", "s1"), ("b", "s2")], 1);
    world.run(SECOND * 10);
    assert_eq!(world.machine.open_count(), 2);
    world.lose("s2");
    assert_eq!(world.run(SECOND * 10), ["b"]);
    world.machine.leases_counted(world.now, Some(1));
    world.lose("s2");
    assert_eq!(world.run(SECOND * 10), [""; 0], "unless leases tell the number");
}

#[test]
fn a_replaced_certificate_is_presented_at_the_same_address() {
    let mut world = World::new(vec![entry(0, &["a", "b"])], &[("a", "s1"), ("b", "s2")], 2);
    world.run(SECOND * 10);
    assert!(world.machine.certificate_expiring(world.now, world.kept["s2"]));
    assert_eq!(world.run(SECOND * 60), ["b"]);
}

/// Leases of these servers, with these addresses; an empty address is none.
fn leased(servers: &[(&str, &str)]) -> Leased {
    let told = |(server, host): &(&str, &str)| Advertised {
        dial: ServerAddress { host: (*host).into(), port: 8091 },
        server_id: (*server).into(),
    };
    let advertised = servers.iter().filter(|(_, host)| !host.is_empty()).map(told).collect();
    let holders = servers.iter().map(|(server, _)| (*server).into()).collect();
    Leased { count: servers.len(), holders, advertised, stale: false }
}

fn advertise(world: &mut World, servers: &[(&str, &str)]) {
    let leased = leased(servers);
    world.machine.leased(world.now, leased);
}

#[test]
fn servers_that_advertise_their_addresses_cost_one_dial_each() {
    let servers = [("balancer", "s1"), ("a", "s1"), ("b", "s2"), ("c", "s3")];
    let mut world = World::new(vec![entry(0, &["balancer"])], &servers, 1);
    assert_eq!(world.run(SECOND), ["balancer"]);
    advertise(&mut world, &[("s1", "a"), ("s2", "b"), ("s3", "c")]);
    assert!(world.start().is_empty(), "not at once");
    assert_eq!(sorted(world.run(SECOND * 3_600)), ["b", "c"]);
    assert_eq!(world.machine.open_count(), 3);
    world.lose("s1");
    assert_eq!(world.run(SECOND * 3_600), ["a"], "not by the balancer");
    advertise(&mut world, &[("s2", "b")]);
    assert_eq!((world.run(SECOND * 60).len(), world.machine.open_count()), (0, 3), "streams stay");
}

#[test]
fn if_a_lease_has_no_address_the_configured_one_is_searched_too() {
    let mut world = World::new(vec![entry(0, &["balancer"])], &[("balancer", "s1"), ("b", "s2")], 1);
    world.run(SECOND);
    advertise(&mut world, &[("s1", ""), ("s2", "b"), ("s3", "")]);
    let dialed = world.run(SECOND * 10);
    assert!(dialed.iter().filter(|host| *host == "balancer").count() > 5, "{dialed:?}");
    assert_eq!(dialed.iter().filter(|host| *host == "b").count(), 1);
    world.servers.insert("balancer".into(), "s3".into());
    world.run(SECOND * 20);
    assert_eq!(world.machine.open_count(), 3);
    assert_eq!(world.run(SECOND * 3_600), [""; 0]);
}

#[test]
fn an_attempt_at_a_removed_address_still_counts() {
    let mut world = World::new(vec![entry(0, &["balancer"])], &[("balancer", "s1")], 1);
    world.run(SECOND);
    let names: Vec<String> = (2..40).map(|index| format!("s{index}")).collect();
    let leases: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_str())).collect();
    advertise(&mut world, &leases[..16]);
    world.now += SECOND;
    let before = world.start();
    assert_eq!(before.len(), MAX_CONCURRENT_ATTEMPTS);
    advertise(&mut world, &leases[16..]);
    world.now += SECOND;
    assert_eq!(world.start(), [], "sixteen at once");
    before.iter().for_each(|address| world.answer(address));
    world.now += SECOND;
    assert_eq!(world.start().len(), MAX_CONCURRENT_ATTEMPTS);
}

#[test]
fn an_address_whose_lease_has_another_holder_leads_to_that_one() {
    let mut world = World::new(vec![entry(0, &["balancer"])], &[("balancer", "s1"), ("b", "s2")], 1);
    advertise(&mut world, &[("s1", ""), ("s2", "b")]);
    world.run(SECOND * 10);
    assert_eq!(world.machine.open_count(), 2);
    world.servers.insert("b".into(), "s3".into());
    advertise(&mut world, &[("s1", ""), ("s2", ""), ("s3", "b")]);
    assert!(world.run(SECOND * 2).contains(&"b".to_owned()));
    assert_eq!(world.machine.open_count(), 3);
}

/// The kube-apiserver of s2 is down: s2 cannot renew its lease, and keeps its streams. s3 restarts.
#[test]
fn a_server_with_a_lease_is_found_while_a_connected_server_has_none() {
    for hosts in [["", "", ""], ["a", "b", "c"]] {
        let servers = [("balancer", "s1"), ("a", "s1"), ("b", "s2"), ("c", "s3")];
        let mut world = World::new(vec![entry(0, &["balancer"])], &servers, 1);
        let [first, second, third] = [("s1", hosts[0]), ("s2", hosts[1]), ("s3", hosts[2])];
        advertise(&mut world, &[first, second, third]);
        world.balanced = ["s1", "s2", "s3"].map(Into::into).into();
        world.run(SECOND * 60);
        assert_eq!(world.machine.open_count(), 3);
        advertise(&mut world, &[first, third]);
        assert_eq!(world.run(SECOND * 3_600), [""; 0]);
        world.lose("s3");
        advertise(&mut world, &[first]);
        assert_eq!(world.run(SECOND * 60), [""; 0]);
        advertise(&mut world, &[first, third]);
        world.run(SECOND * 60);
        assert_eq!(world.machine.open_count(), 3, "{hosts:?}");
        assert_eq!(world.run(SECOND * 3_600), [""; 0]);
        advertise(&mut world, &[first, second, third]);
        assert_eq!(world.run(SECOND * 3_600), [""; 0]);
    }
}

#[test]
fn errors_of_an_address_are_remembered_while_a_name_tells_others() {
    let (some, others) = (vec![entry(0, &["a", "dead"])], vec![entry(0, &["a", "b"])]);
    let mut world = World::new(some.clone(), &[("a", "s1")], 2);
    world.run(SECOND * 30);
    let mut dead = 0;
    for turn in 0..30 {
        world.entries = if turn % 2 == 0 { others.clone() } else { some.clone() };
        dead += world.run(SECOND * 2).iter().filter(|host| *host == "dead").count();
    }
    assert!((1..=8).contains(&dead), "{dead}");
}

#[test]
fn addresses_are_limited_and_configured_ones_come_first() {
    let mut addresses = Addresses::default();
    let leases: Vec<_> = (0..100).map(|index| format!("lease{index}")).collect();
    let leases: Vec<_> = leases.iter().map(|name| (name.as_str(), name.as_str())).collect();
    addresses.advertised(Duration::ZERO, SECOND, &leased(&leases), || Duration::ZERO);
    addresses.resolved(Duration::ZERO, SECOND, vec![entry(0, &["a", "b"])]);
    let configured = addresses.present().filter(|route| !route.advertised).count();
    assert_eq!((addresses.routes.len(), configured), (MAX_ADDRESSES, 2));
    for turn in 0..100 {
        addresses.resolved(Duration::ZERO, SECOND, vec![entry(0, &[format!("{turn}").as_str(), "b"])]);
        assert!(addresses.routes.len() <= MAX_ADDRESSES);
    }
}

#[test]
fn wrong_addresses_of_leases_do_not_keep_an_agent_from_its_servers() {
    let mut world = World::new(vec![entry(0, &["balancer"])], &[("balancer", "s1")], 1);
    advertise(&mut world, &[("s1", "nowhere"), ("s2", "elsewhere")]);
    world.run(SECOND * 10);
    assert_eq!(world.machine.open_count(), 1);
    world.servers.insert("balancer".into(), "s2".into());
    world.run(SECOND * 30);
    assert_eq!(world.machine.open_count(), 2);
    assert_eq!(world.run(SECOND * 3_600), [""; 0], "addresses that nobody needs are not tried");
}

proptest! {
    /// Whatever servers do: the streams become complete, soon after the last change, and then nothing is dialed.
    #[test]
    fn all_servers_are_found_and_then_nothing_is_dialed(
        servers in 1..6_usize, twice in 0..3_usize, losses in proptest::collection::vec((0..6_usize, 0..20_000_u64), 0..30)
    ) {
        let hosts: Vec<String> = (0..servers + twice.min(servers)).map(|host| host.to_string()).collect();
        let of = |host: usize| format!("s{}", host % servers);
        let entries = hosts.iter().enumerate().map(|(index, host)| entry(index, &[host.as_str()])).collect();
        let mut world = World::new(entries, &[], servers);
        for (index, host) in hosts.iter().enumerate() {
            world.servers.insert(host.clone(), of(index));
        }
        for (server, pause) in losses {
            world.run(Duration::from_millis(pause));
            if world.kept.contains_key(&of(server)) {
                world.lose(&of(server));
            }
        }
        let dialed = world.run(SECOND * 30);
        prop_assert!(dialed.len() <= hosts.len(), "{dialed:?}");
        prop_assert_eq!(world.machine.open_count(), servers);
        prop_assert_eq!(world.run(SECOND * 3_600), Vec::<String>::new());
    }

    /// Servers cannot renew their leases for a while, and restart with the same id or with another one, whose predecessor's lease
    /// stays for a while: soon after the last change each server with a lease has a stream, and then nothing is dialed.
    #[test]
    fn each_server_with_a_lease_is_found_and_then_nothing_is_dialed(
        servers in 1..5_usize, direct: bool,
        changes in proptest::collection::vec((0..5_usize, 0..5_usize, 0..40_000_u64), 0..30)
    ) {
        let mut world = World::new(vec![entry(0, &["balancer"])], &[], 1);
        let mut ids: Vec<String> = (0..servers).map(|index| format!("s{index}")).collect();
        let mut leases: BTreeSet<(usize, String)> = ids.iter().cloned().enumerate().collect();
        let take = |world: &mut World, ids: &[String], leases: &BTreeSet<(usize, String)>| {
            world.balanced = ids.to_vec();
            world.servers = ids.iter().enumerate().map(|(index, id)| (index.to_string(), id.clone())).collect();
            let host = |index: &usize| if direct { index.to_string() } else { String::new() };
            let leases: Vec<_> = leases.iter().map(|(index, id)| (id.as_str(), host(index))).collect();
            let leases: Vec<_> = leases.iter().map(|(id, host)| (*id, host.as_str())).collect();
            advertise(world, &leases);
        };
        take(&mut world, &ids, &leases);
        for (server, change, pause) in changes {
            let server = server % servers;
            let id = ids[server].clone();
            match change {
                0 | 1 => drop(leases.remove(&(server, id))),
                2 => drop(leases.insert((server, id))),
                _ => {
                    if world.kept.contains_key(&id) {
                        world.lose(&id);
                    }
                    if change == 3 {
                        ids[server].push('*');
                    }
                    leases.insert((server, ids[server].clone()));
                }
            }
            take(&mut world, &ids, &leases);
            world.run(Duration::from_millis(pause));
        }
        leases.retain(|(index, id)| ids[*index] == *id);
        take(&mut world, &ids, &leases);
        world.run(SECOND * 90);
        for (_, id) in &leases {
            prop_assert!(world.kept.contains_key(id), "{id}: {:?} {leases:?}", world.kept);
        }
        prop_assert_eq!(world.run(SECOND * 3_600), Vec::<String>::new());
    }
}
