//! Compares the tables with a naive model, under random sequences of registrations, drains and choices.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use proptest::prelude::{Strategy as Generator, *};
use proptest::sample::Index;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::Instant;

use serve::metrics::Registry;

use super::Strategy;
use super::table::Health;
use super::*;

const AGENTS: [&str; 4] = ["a", "b", "c", "d"];
const HOSTS: [&str; 6] = ["node-1", "Node-1", "10.0.0.1", "10.0.7.7", "::ffff:10.0.0.1", ""];
const ANNOUNCED: [&str; 8] = [
    "",
    "default-route=true",
    "host=node-1&ipv4=10.0.0.1",
    "ipv4=10.0.0.1&host=10.0.0.1&default-route=true",
    "host=Node-1",
    "cidr=10.0.0.0/8",
    "cidr=10.0.0.0/16&cidr=10.0.0.0/8&cidr=::/0&default-route=1",
    "host=",
];

#[derive(Debug, Clone)]
enum Step {
    Register(usize, usize),
    Unregister(Index),
    Drain(Index),
    Unresponsive(Index, bool),
    Choose(usize, Vec<Index>, u64),
}

fn step() -> impl Generator<Value = Step> {
    prop_oneof![
        4 => (0..AGENTS.len(), 0..ANNOUNCED.len()).prop_map(|(a, i)| Step::Register(a, i)),
        2 => any::<Index>().prop_map(Step::Unregister),
        2 => any::<Index>().prop_map(Step::Drain),
        2 => (any::<Index>(), any::<bool>()).prop_map(|(at, on)| Step::Unresponsive(at, on)),
        6 => (0..HOSTS.len(), prop::collection::vec(any::<Index>(), 0..3), any::<u64>())
            .prop_map(|(host, exclude, seed)| Step::Choose(host, exclude, seed)),
    ]
}

fn strategies() -> impl Generator<Value = Vec<Strategy>> {
    let all = [Strategy::Default, Strategy::DestHost, Strategy::DefaultRoute];
    prop::collection::vec(prop::sample::select(all.to_vec()), 1..4)
}

fn metrics() -> RouteMetrics {
    RouteMetrics::register(&mut Registry::default())
}

/// A registered stream in the model.
struct Stream {
    id: LinkId,
    agent: &'static str,
    announced: Identifiers,
    /// Whether it drains, and whether it is unresponsive.
    state: (bool, bool),
    registration: Registration<u64>,
}

impl Stream {
    fn identifiers(&self, strategy: Strategy) -> Vec<String> {
        match strategy {
            Strategy::Default => vec![self.agent.to_owned()],
            Strategy::DefaultRoute if self.announced.default_route => vec![self.agent.to_owned()],
            Strategy::DefaultRoute => vec![],
            Strategy::DestHost => {
                let hosts = self.announced.hosts.iter().map(|host| format!("host {host}"));
                hosts.chain(self.announced.networks.iter().map(|n| format!("net {n}"))).collect()
            }
        }
    }

    fn health(&self) -> Health {
        match self.state {
            (false, false) => Health::Ready,
            (true, false) => Health::Fallback,
            (_, true) => Health::Unresponsive,
        }
    }
}

/// Every stream that the rules allow; empty if none can be chosen.
fn allowed(
    streams: &[&Stream],
    strategies: &[Strategy],
    selection: Selection,
    host: &str,
) -> HashSet<LinkId> {
    for health in Health::ALL {
        let of_health: Vec<&Stream> = streams.iter().filter(|s| s.health() == health).copied().collect();
        for strategy in strategies {
            let found = match strategy {
                Strategy::DestHost if selection == Selection::Random => {
                    by_host(&of_health, host).into_iter().take(1).collect()
                }
                Strategy::DestHost => by_host(&of_health, host).into_iter().collect(),
                random => first_of_each_agent(&of_health, *random),
            };
            if !found.is_empty() {
                return found;
            }
        }
    }
    HashSet::new()
}

fn first_of_each_agent(streams: &[&Stream], strategy: Strategy) -> HashSet<LinkId> {
    let mut seen = HashSet::new();
    let known = streams.iter().filter(|s| !s.identifiers(strategy).is_empty());
    known.filter(|s| seen.insert(s.agent)).map(|s| s.id).collect()
}

/// The best matches in the order of registration.
fn by_host(streams: &[&Stream], host: &str) -> Vec<LinkId> {
    if host.is_empty() {
        return Vec::new();
    }
    let is_exact = |s: &&&Stream| s.announced.hosts.iter().any(|h| **h == *host);
    let exact: Vec<LinkId> = streams.iter().filter(is_exact).map(|s| s.id).collect();
    if !exact.is_empty() {
        return exact;
    }
    let Ok(address) = host.parse::<IpAddr>().map(|address| address.to_canonical()) else { return Vec::new() };
    let longest = |s: &Stream| {
        let matching = s.announced.networks.iter().filter(|n| n.contains(&address));
        matching.map(|n| n.prefix_len()).max()
    };
    let best = streams.iter().filter_map(|s| longest(s)).max();
    streams.iter().filter(|s| best.is_some() && longest(s) == best).map(|s| s.id).collect()
}

fn play(strategies: &[Strategy], selection: Selection, steps: Vec<Step>) {
    let gauges = metrics();
    let manager = BackendManager::with_selection(strategies, selection, None, gauges.clone());
    let mut streams: Vec<Stream> = Vec::new();
    let mut serial = 0;
    for step in steps {
        match step {
            Step::Register(agent, announced) => {
                serial += 1;
                let identifiers = Identifiers::parse(ANNOUNCED[announced]).unwrap();
                let backend = Backend {
                    agent_id: AGENTS[agent].into(),
                    identifiers: identifiers.clone(),
                    process: None,
                    owner: None,
                    handle: serial,
                };
                let incumbents = streams.iter().filter(|s| s.agent == AGENTS[agent]).count();
                match manager.register(backend) {
                    Ok(registration) => {
                        assert!(incumbents < MAX_STREAMS_PER_AGENT);
                        let (id, agent) = (registration.id, AGENTS[agent]);
                        let (announced, state) = (identifiers, (false, false));
                        streams.push(Stream { id, agent, announced, state, registration });
                    }
                    Err(error) => {
                        assert_eq!(
                            (error, incumbents),
                            (RegisterError::TooManyStreams, MAX_STREAMS_PER_AGENT)
                        );
                    }
                }
            }
            Step::Unregister(at) if !streams.is_empty() => {
                let gone = streams.remove(at.index(streams.len()));
                drop(gone.registration);
                manager.set_draining(gone.id); // too late: changes nothing
            }
            Step::Drain(at) if !streams.is_empty() => {
                let stream = at.index(streams.len());
                streams[stream].state.0 = true;
                manager.set_draining(streams[stream].id);
            }
            Step::Unresponsive(at, unresponsive) if !streams.is_empty() => {
                let stream = at.index(streams.len());
                streams[stream].state.1 = unresponsive;
                manager.set_unresponsive(streams[stream].id, unresponsive);
            }
            Step::Choose(host, exclude, seed) => {
                let exclude: Vec<LinkId> = exclude
                    .iter()
                    .filter(|_| !streams.is_empty())
                    .map(|at| streams[at.index(streams.len())].id)
                    .chain([LinkId(0)]) // an unknown one
                    .collect();
                let left: Vec<&Stream> = streams.iter().filter(|s| !exclude.contains(&s.id)).collect();
                let allowed = allowed(&left, strategies, selection, HOSTS[host]);
                let mut rng = StdRng::seed_from_u64(seed);
                match manager.choose_of(HOSTS[host], (&Health::ALL, None), &exclude, &mut rng) {
                    None => assert!(allowed.is_empty(), "none chosen of {allowed:?}"),
                    Some(choice) => {
                        assert!(allowed.contains(&choice.link), "{choice:?} is none of {allowed:?}");
                        let stream = streams.iter().find(|s| s.id == choice.link).unwrap();
                        assert_eq!(stream.agent, &*choice.agent_id);
                    }
                }
            }
            _ => {}
        }
        check_counts(&manager, &gauges, strategies, &streams);
    }
    streams.clear();
    check_counts(&manager, &gauges, strategies, &streams);
}

fn check_counts(
    manager: &BackendManager<u64>,
    gauges: &RouteMetrics,
    strategies: &[Strategy],
    streams: &[Stream],
) {
    assert_eq!(manager.links(), streams.len());
    for (strategy, count) in manager.counts() {
        let distinct: HashSet<String> = streams.iter().flat_map(|s| s.identifiers(strategy)).collect();
        assert_eq!(count, distinct.len(), "{strategy:?}");
        assert_eq!(gauges.ready_backends.get_or_create(&strategy).get(), i64::try_from(count).unwrap());
        if strategy == strategies[0] {
            assert_eq!(manager.lacking(ReadinessPolicy::FirstStrategy).is_empty(), count > 0);
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_the_model(
        strategies in strategies(),
        selection in prop::sample::select(vec![Selection::LeastLoaded, Selection::Random]),
        steps in prop::collection::vec(step(), 0..60),
    ) {
        play(&strategies, selection, steps);
    }
}

fn backend(agent: &str, identifiers: &str) -> Backend<u64> {
    Backend {
        agent_id: agent.into(),
        identifiers: Identifiers::parse(identifiers).unwrap(),
        process: None,
        owner: None,
        handle: 0,
    }
}

fn manager(strategies: &[Strategy]) -> BackendManager<u64> {
    BackendManager::new(strategies, metrics())
}

/// How often each agent is chosen in `n` choices.
fn picks(manager: &BackendManager<u64>, exclude: &[LinkId], n: usize) -> BTreeMap<String, usize> {
    let mut rng = StdRng::seed_from_u64(7);
    let mut picks = BTreeMap::new();
    for _ in 0..n {
        let choice =
            manager.choose_of("", (&Health::ALL, None), exclude, &mut rng).expect("there are agents");
        *picks.entry(choice.agent_id.to_string()).or_default() += 1;
    }
    picks
}

#[test]
fn agents_are_equally_likely() {
    let manager = manager(&[Strategy::Default]);
    let mut kept = Vec::new();
    for (agent, streams) in [("a", 1), ("b", 4), ("c", 2), ("d", 1), ("e", 1)] {
        kept.extend((0..streams).map(|_| manager.register(backend(agent, "")).unwrap()));
    }
    let even = |picks: &BTreeMap<String, usize>, agents: usize| {
        assert_eq!(picks.len(), agents, "{picks:?}");
        // 300 is more than five standard deviations of 20,000 choices.
        assert!(picks.values().all(|n| n.abs_diff(20_000 / agents) < 300), "{picks:?}");
    };
    even(&picks(&manager, &[], 20_000), 5);
    even(&picks(&manager, &[kept[0].id], 20_000), 4);
    even(&picks(&manager, &[kept[1].id, kept[0].id, kept[8].id], 20_000), 3);
    for registration in &kept {
        manager.set_draining(registration.id);
    }
    even(&picks(&manager, &[], 20_000), 5);
    even(&picks(&manager, &[kept[7].id, kept[7].id], 20_000), 4);
}

#[test]
fn few_ready_agents_of_many_equals_share_the_dials() {
    let manager = manager(&[Strategy::DestHost]);
    let kept: Vec<_> =
        (0..400).map(|n| manager.register(backend(&n.to_string(), "host=n")).unwrap()).collect();
    kept.iter().take(398).for_each(|registration| manager.set_draining(registration.id));
    let mut rng = StdRng::seed_from_u64(7);
    let mut choose = || manager.choose_of("n", (&Health::ALL, None), &[], &mut rng).unwrap().link;
    let last = (0..1_000).filter(|_| choose() == kept[399].id).count();
    assert!((400..600).contains(&last), "{last} of 1,000");
}

#[test]
fn a_stale_stream_cannot_evict_its_successor() {
    let manager = manager(&[Strategy::DestHost, Strategy::Default]);
    let stale = manager.register(backend("a", "host=n")).unwrap();
    let successor = manager.register(backend("a", "host=n")).unwrap();
    assert_eq!(manager.choose("n", &[]).unwrap().link, stale.id, "an incumbent goes first");
    manager.set_unresponsive(stale.id, true);
    assert_eq!(manager.choose("n", &[]).unwrap().link, successor.id, "unless it is half dead");
    manager.set_unresponsive(stale.id, false);
    drop(stale);
    assert_eq!(manager.choose("n", &[]).unwrap().link, successor.id);
    assert_eq!(manager.counts(), [(Strategy::DestHost, 1), (Strategy::Default, 1)]);
}

#[test]
fn a_healthy_agent_of_a_later_strategy_beats_a_draining_match() {
    let manager = manager(&[Strategy::DestHost, Strategy::DefaultRoute]);
    let matching = manager.register(backend("a", "host=n")).unwrap();
    let other = manager.register(backend("b", "default-route=true")).unwrap();
    manager.set_draining(matching.id);
    assert_eq!(manager.choose("n", &[]).unwrap().link, other.id);
    manager.set_draining(other.id);
    let choice = manager.choose("n", &[]).unwrap();
    assert_eq!((choice.link, choice.strategy), (matching.id, Strategy::DestHost));
    drop((matching, other));
    assert!(manager.choose("n", &[]).is_none());
}

#[test]
fn networks_come_after_exact_hosts_longest_prefix_first() {
    let manager = manager(&[Strategy::DestHost]);
    let wide = manager.register(backend("a", "cidr=10.0.0.0/8&cidr=fd00::/8")).unwrap();
    let narrow = manager.register(backend("b", "cidr=10.1.2.3/16")).unwrap();
    let exact = manager.register(backend("c", "ipv4=10.1.0.9")).unwrap();
    let chosen = |host: &str| manager.choose(host, &[]).map(|choice| choice.link);
    assert_eq!(chosen("10.1.0.9"), Some(exact.id));
    assert_eq!(chosen("10.1.0.8"), Some(narrow.id));
    assert_eq!(chosen("::ffff:10.1.0.8"), Some(narrow.id));
    assert_eq!(chosen("10.2.0.8"), Some(wide.id));
    assert_eq!(chosen("fd12::1"), Some(wide.id));
    assert_eq!(chosen("11.0.0.1"), None);
    assert_eq!(chosen("node-1"), None);
    assert!(manager.lacking(ReadinessPolicy::FirstStrategy).is_empty());
    drop(narrow);
    assert_eq!(chosen("10.1.0.8"), Some(wide.id));
}

#[test]
fn a_zone_comes_first_while_it_has_a_ready_agent() {
    let zone: Arc<str> = "z1".into();
    let strategies = [Strategy::DestHost, Strategy::Default];
    let manager = BackendManager::with_selection(&strategies, Selection::LeastLoaded, Some(&zone), metrics());
    let near = manager.register(backend("near", "zone=z1&zone=z2")).unwrap();
    let far = manager.register(backend("far", "zone=z2&host=n&default-route=true")).unwrap();
    let _nowhere = manager.register(backend("nowhere", "zone=")).unwrap();
    assert_eq!(picks(&manager, &[], 100), BTreeMap::from([("near".to_owned(), 100)]));
    assert_eq!(manager.choose("n", &[]).unwrap().link, far.id, "an announced host counts more");
    assert_eq!(manager.lacking(ReadinessPolicy::All), []);
    manager.set_unresponsive(near.id, true);
    assert_eq!(picks(&manager, &[], 100).len(), 2, "the other zones serve");
    drop((near, far));
    assert_eq!(manager.lacking(ReadinessPolicy::FirstStrategy), [Strategy::DestHost]);
    assert_eq!(manager.lacking(ReadinessPolicy::Any), []);
}

#[test]
fn the_deprecated_gauge_follows_the_strategy_that_changed_last() {
    let gauges = metrics();
    let manager = BackendManager::new(&[Strategy::DestHost, Strategy::DefaultRoute], gauges.clone());
    assert_eq!(gauges.ready_backend_connections.get(), 0, "present from the start");
    let both = manager.register(backend("a", "host=n&host=m&default-route=true")).unwrap();
    assert_eq!(gauges.ready_backend_connections.get(), 1, "agents with a default route");
    let hosts = manager.register(backend("b", "host=x")).unwrap();
    assert_eq!(gauges.ready_backend_connections.get(), 3, "hosts");
    let neither = manager.register(backend("c", "")).unwrap();
    assert_eq!(gauges.ready_backend_connections.get(), 3, "nothing changed");
    drop(both);
    assert_eq!(gauges.ready_backend_connections.get(), 0);
    drop((hosts, neither));
    assert_eq!(gauges.ready_backend_connections.get(), 0);
}

#[test]
fn agents_are_limited_and_incumbents_stay() {
    let manager = manager(&[Strategy::Default]);
    let mut kept: Vec<_> =
        (0..MAX_AGENTS).map(|n| manager.register(backend(&format!("agent-{n}"), "")).unwrap()).collect();
    assert_eq!(manager.register(backend("late", "")).err(), Some(RegisterError::TooManyAgents));
    kept.push(manager.register(backend("agent-0", "")).expect("a known agent may have another stream"));
    drop(kept.swap_remove(7));
    assert!(manager.register(backend("late", "")).is_ok());
}

#[test]
fn ejection_does_not_reach_an_agent_that_has_registered_again() {
    let manager = manager(&[Strategy::Default]);
    let first = manager.register(backend("a", "")).unwrap();
    let other = manager.register(backend("b", "")).unwrap();
    let now = Instant::now();
    (0..3).for_each(|_| first.stats.blame(now, now));
    let before = manager.agents();
    drop((first, other));
    let again = manager.register(backend("a", "")).unwrap();
    assert_eq!(manager.sweep(&before, now), 1);
    let ready = manager.choose_ready("", Strategy::Default, &[]).unwrap();
    assert_eq!(ready.link, again.id);
}

#[test]
fn waiting_bytes_of_the_streams_of_an_agent_are_added() {
    let manager = manager(&[Strategy::Default]);
    let (one, two) =
        (manager.register(backend("a", "")).unwrap(), manager.register(backend("b", "")).unwrap());
    one.stats.waiting_changed(0, 1 << 30);
    one.stats.waiting_changed(0, 5);
    one.stats.waiting_changed(5, 0);
    assert!(one.stats.loses_to(&two.stats, Instant::now()));
    one.stats.waiting_changed(1 << 30, 0);
    assert!(!one.stats.loses_to(&two.stats, Instant::now()));
}

#[test]
fn siblings_share_an_agent_id_and_nothing_else() {
    let manager = manager(&[Strategy::Default]);
    let one = manager.register(backend("a", "")).unwrap();
    let other = manager.register(backend("b", "")).unwrap();
    assert_eq!(manager.siblings(one.id), [0; 0]);
    let twin = manager.register(backend("a", "")).unwrap();
    assert_eq!(manager.siblings(twin.id).len(), 1);
    assert_eq!(manager.siblings(one.id).len(), 1);
    assert_eq!(manager.siblings(other.id), [0; 0]);
    let id = one.id;
    drop(one);
    assert_eq!(manager.siblings(twin.id), [0; 0]);
    assert_eq!(manager.siblings(id), [0; 0], "gone");
}

#[test]
fn dial_on_a_draining_stream_moves_once_the_stream_is_unresponsive() {
    let manager = manager(&[Strategy::Default]);
    let first = manager.register(backend("a", "")).unwrap();
    manager.set_draining(first.id);
    let _other = manager.register(backend("b", "")).unwrap();
    assert!(!manager.is_another_better(first.id, ""));
    manager.set_unresponsive(first.id, true);
    assert!(manager.is_another_better(first.id, ""));
}

#[test]
fn another_stream_is_better_if_it_answers_for_the_host_and_the_dials_own_does_not() {
    let manager = manager(&[Strategy::DestHost]);
    let first = manager.register(backend("a", "host=n")).unwrap();
    let other = manager.register(backend("b", "host=n")).unwrap();
    assert!(!manager.is_another_better(first.id, "n"), "the dial's agent answers pings");
    manager.set_unresponsive(other.id, true);
    manager.set_unresponsive(first.id, true);
    assert!(!manager.is_another_better(first.id, "n"), "the other agent does not answer");
    let _elsewhere = manager.register(backend("c", "host=m")).unwrap();
    assert!(!manager.is_another_better(first.id, "n"));
    let _third = manager.register(backend("d", "host=n")).unwrap();
    assert!(manager.is_another_better(first.id, "n"));
}
