use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cluster::{Client, Config, Moment};
use fake_apiserver::{FakeApi, Fault};
use serde_json::json;
use serve::metrics::{Exposition, Registry};
use tokio::time::timeout;

use super::*;
use crate::captured_log::CapturedLog;

const SPEEDUP: u32 = 20;

struct World {
    api: FakeApi,
    client: Client,
    /// Offset of our wall clock in seconds.
    skew: Arc<AtomicI64>,
    exposition: Exposition,
    metrics: Metrics,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let (api, folder) = (FakeApi::start().await.unwrap(), tempfile::tempdir().unwrap());
        let kubeconfig = api.kubeconfig(folder.path(), "{token: canary}").unwrap();
        let client = Client::new(Config::load(Some(&kubeconfig)).unwrap(), "test", 0.0, 0);
        let mut registry = Registry::default();
        let metrics = crate::metrics::register(&mut registry);
        let exposition = Exposition::new(registry);
        World { api, client, skew: Arc::default(), exposition, metrics, _folder: folder }
    }

    fn count(&self) -> watch::Receiver<Option<Leased>> {
        let skew = Arc::clone(&self.skew);
        let clock = Clock::new(move || moment(skew.load(Ordering::Relaxed)));
        let selector = LabelSelector::parse("k8s-app=konnectivity-server").unwrap();
        let leases = self.client.leases("kube-system");
        let (mut counter, counted) = LeaseCounter::new(leases, &selector, self.metrics.clone());
        (counter.clock, counter.speedup) = (clock, SPEEDUP);
        tokio::spawn(counter.run());
        counted
    }

    fn put(&self, name: &str, seconds: i64) {
        put(&self.api, name, seconds, 0);
    }
}

fn moment(skew: i64) -> Moment {
    let since = Clock::system().now().since(Moment::from_seconds(0));
    Moment::from_seconds(skew).plus(since)
}

/// Puts a lease of that many seconds, renewed now by a clock that is off by `skew`.
fn put(api: &FakeApi, name: &str, seconds: i64, skew: i64) {
    let spec = json!({"holderIdentity": name, "leaseDurationSeconds": seconds, "renewTime": moment(skew).to_string()});
    api.put_lease("kube-system", name, json!({"k8s-app": "konnectivity-server"}), spec);
}

/// The number of servers that a count means.
fn number(leased: &Option<Leased>) -> Option<usize> {
    leased.as_ref().map(|leased| leased.count.max(1))
}

async fn becomes(counted: &mut watch::Receiver<Option<Leased>>, want: usize) {
    let seen = counted.wait_for(|count| number(count) == Some(want));
    let seen = timeout(Duration::from_secs(20), seen).await.map(|seen| seen.map(|seen| number(&seen)));
    assert!(matches!(seen, Ok(Ok(_))), "wanted {want}, have {:?}", *counted.borrow());
}

/// Checks that the count does not change during `during`.
async fn holds(counted: &mut watch::Receiver<Option<Leased>>, want: usize, during: impl Future<Output = ()>) {
    let mut watched = counted.clone();
    tokio::select! {
        _ = watched.wait_for(|count| number(count) != Some(want)) => panic!("the count became {:?} instead of {want}", *counted.borrow()),
        () = during => assert_eq!(number(&counted.borrow()), Some(want)),
    }
}

#[tokio::test]
async fn the_count_follows_servers_that_come_and_go() {
    let world = World::new().await;
    world.put("a", 600);
    let log = CapturedLog::new();
    let mut counted = world.count();
    becomes(&mut counted, 1).await;
    world.put("b", 600);
    world.put("c", 600);
    becomes(&mut counted, 3).await;
    world.api.delete_lease("kube-system", "b");
    becomes(&mut counted, 2).await;
    world.api.put_lease("kube-system", "unrelated", json!({}), json!({"leaseDurationSeconds": 600}));
    world.api.put_lease("other", "d", json!({"k8s-app": "konnectivity-server"}), json!({}));
    world.put("e", 600);
    becomes(&mut counted, 3).await;
    world.api.delete_lease("kube-system", "a");
    world.api.delete_lease("kube-system", "c");
    world.api.delete_lease("kube-system", "e");
    becomes(&mut counted, 1).await;
    assert!(log.text().contains("No valid leases found, assuming server count of 1"), "{}", log.text());
    assert_eq!(world.api.count("GET"), 2, "one list and one watch");
    let scrape = world.exposition.scrape();
    let line = "konnectivity_network_proxy_agent_lease_lists_total{http_response_code=\"200\",reason=\"\"} 2";
    assert!(scrape.contains(line), "{scrape}");
    assert!(scrape.contains("lease_list_latency_seconds_count{http_response_code=\"200\"} 1"), "{scrape}");
}

/// Such a lease expires at a moment that the clock cannot represent.
#[tokio::test]
async fn an_absurd_duration_does_not_end_the_counting() {
    let world = World::new().await;
    world.put("absurd", i64::MAX);
    let mut counted = world.count();
    becomes(&mut counted, 1).await;
    // Renewed: it now expires by our own clock.
    world.put("absurd", i64::MAX);
    world.put("b", 600);
    becomes(&mut counted, 2).await;
    world.api.delete_lease("kube-system", "absurd");
    world.put("c", 600);
    world.put("d", 600);
    becomes(&mut counted, 3).await;
}

#[tokio::test]
async fn a_lease_ends_without_an_event_and_the_api_is_asked_once_before() {
    let world = World::new().await;
    world.put("a", 600);
    world.put("b", 1);
    let mut counted = world.count();
    becomes(&mut counted, 2).await;
    becomes(&mut counted, 1).await;
    assert_eq!(world.api.count("GET"), 3, "list, watch, list");
    // An expired lease causes no further list.
    world.put("c", 600);
    becomes(&mut counted, 2).await;
    assert_eq!(world.api.count("GET"), 3);
}

/// The API stalled for less than the time limit of a call: its first answer may be older than the renewals that wait for it.
#[tokio::test]
async fn outdated_answer_of_a_slow_api_is_requested_again() {
    let world = World::new().await;
    world.put("a", 600);
    world.put("b", 1);
    let mut counted = world.count();
    becomes(&mut counted, 2).await;
    world.api.set_fault("/leases", Fault::Slow(Duration::from_secs(3)));
    let asked = async { assert!(world.api.wait(|api| api.count("GET") >= 3).await) };
    holds(&mut counted, 2, asked).await;
    world.api.heal();
    becomes(&mut counted, 1).await;
    assert!(world.api.count("GET") > 3, "list, watch, a slow list, another one");
}

#[tokio::test]
async fn the_last_count_holds_while_the_api_is_away_and_until_servers_could_renew() {
    for fault in [None, Some(Fault::Status(500, "InternalError")), Some(Fault::Close)] {
        let world = World::new().await;
        for name in ["a", "b", "c"] {
            world.put(name, 1);
        }
        let mut counted = world.count();
        becomes(&mut counted, 3).await;
        match &fault {
            None => world.api.down(),
            Some(fault) => {
                world.api.set_fault("/leases", fault.clone());
                world.api.end_watches();
            }
        }
        // Three times the duration of the leases.
        holds(&mut counted, 3, sleep(Duration::from_secs(3))).await;
        let requests = world.api.count("GET");
        assert!(counted.borrow().as_ref().unwrap().stale);
        println!("{fault:?}: {requests} requests, pauses {SPEEDUP} times shorter than in production");
        assert!(requests < 40, "{requests} requests in 3 s, {fault:?}");
        world.api.heal();
        world.api.up();
        let before = world.api.count("watch=true");
        let back = async {
            assert!(world.api.wait(|api| api.count("watch=true") > before).await);
            for name in ["a", "b", "c"] {
                put(&world.api, name, 600, 0);
            }
            sleep(Duration::from_millis(1_500)).await;
        };
        holds(&mut counted, 3, back).await;
        assert!(!counted.borrow().as_ref().unwrap().stale);
    }
}

/// Such as an etcd that stands still for longer than leases last: the API server's cache keeps the watch alive.
#[tokio::test]
async fn leases_are_listed_after_a_failed_check_although_all_are_renewed() {
    let world = World::new().await;
    world.put("a", 1);
    let mut counted = world.count();
    becomes(&mut counted, 1).await;
    assert!(world.api.wait(|api| api.count("watch=true") > 0).await);
    world.api.set_fault("/leases", Fault::Status(500, "InternalError"));
    let stale = async |counted: &mut watch::Receiver<Option<Leased>>, want: bool| {
        let seen = counted.wait_for(|leased| leased.as_ref().is_some_and(|leased| leased.stale == want));
        assert!(matches!(timeout(Duration::from_secs(20), seen).await, Ok(Ok(_))), "stale: {}", !want);
    };
    stale(&mut counted, true).await;
    world.put("a", 600);
    // Its event is the second one.
    world.put("b", 600);
    becomes(&mut counted, 2).await;
    world.api.heal();
    stale(&mut counted, false).await;
}

#[tokio::test]
async fn silent_watch_is_ended() {
    let world = World::new().await;
    world.put("a", 1);
    world.put("b", 1);
    let mut counted = world.count();
    becomes(&mut counted, 2).await;
    // Watches receive no events from now on, while servers renew.
    world.api.silence_watches();
    let renewing = async {
        for _ in 0..8 {
            world.put("a", 1);
            world.put("b", 1);
            sleep(Duration::from_millis(300)).await;
        }
    };
    holds(&mut counted, 2, renewing).await;
    becomes(&mut counted, 1).await;
}

#[tokio::test]
async fn an_expired_watch_is_begun_anew() {
    let world = World::new().await;
    world.put("a", 600);
    let mut counted = world.count();
    becomes(&mut counted, 1).await;
    for (step, name) in ["b", "c", "d"].into_iter().enumerate() {
        assert!(world.api.wait(|api| api.count("watch=true") > step).await);
        world.api.compact();
        world.put(name, 600);
        becomes(&mut counted, step + 2).await;
    }
    world.api.end_watches();
    world.put("e", 600);
    becomes(&mut counted, 5).await;
    assert!(world.api.count("GET") < 14, "{}", world.api.count("GET"));
}

#[tokio::test]
async fn without_the_right_to_watch_leases_are_listed() {
    let world = World::new().await;
    world.put("a", 600);
    world.api.set_fault("watch=true", Fault::Status(403, "Forbidden"));
    let log = CapturedLog::new();
    let mut counted = world.count();
    becomes(&mut counted, 1).await;
    world.put("b", 600);
    becomes(&mut counted, 2).await;
    assert!(world.metrics.journal.api_error().contains(" leases: "), "{}", world.metrics.journal.api_error());
    let (before, began) = (world.api.count("GET"), Instant::now());
    assert!(world.api.wait(|api| api.count("GET") >= before + 4).await);
    let rate = 4.0 * 60.0 / began.elapsed().as_secs_f64() / f64::from(SPEEDUP);
    println!("{rate:.1} requests a minute at the real pace");
    assert!(rate < 12.0, "{rate} requests a minute");
    assert_eq!(log.text().matches("Leases cannot be watched").count(), 1, "{}", log.text());
}

#[tokio::test]
async fn nothing_is_said_before_the_first_list() {
    let world = World::new().await;
    world.put("a", 600);
    world.api.set_fault("/leases", Fault::Status(503, "ServiceUnavailable"));
    let mut counted = world.count();
    assert!(world.api.wait(|api| api.count("GET") >= 3).await);
    assert_eq!(*counted.borrow(), None);
    assert!(world.metrics.journal.api_error().contains(" leases: "), "{}", world.metrics.journal.api_error());
    world.api.heal();
    becomes(&mut counted, 1).await;
    let scrape = world.exposition.scrape();
    assert!(
        scrape.contains("lease_lists_total{http_response_code=\"503\",reason=\"ServiceUnavailable\"}"),
        "{scrape}"
    );
}

/// As in Go, calls without an answer have no status to count under; they are counted in a separate metric.
#[tokio::test]
async fn calls_without_an_answer_are_counted() {
    let world = World::new().await;
    world.put("a", 600);
    world.api.set_fault("/leases", Fault::Close);
    let mut counted = world.count();
    let line = "lease_calls_unanswered_total{call=\"list\",reason=\"unreachable\"} ";
    assert!(
        world.api.wait(|_| world.exposition.scrape().contains(line)).await,
        "{}",
        world.exposition.scrape()
    );
    assert!(!world.exposition.scrape().contains("lease_lists_total"));
    world.api.heal();
    becomes(&mut counted, 1).await;
}

#[tokio::test]
async fn a_clock_that_is_off_is_made_good_by_a_renewal() {
    for skew in [86_400, -86_400] {
        let world = World::new().await;
        world.skew.store(skew, Ordering::Relaxed);
        world.put("a", 2);
        world.put("b", 2);
        let mut counted = world.count();
        becomes(&mut counted, if skew > 0 { 1 } else { 2 }).await;
        let renew = || ["a", "b"].map(|name| world.put(name, 2));
        renew();
        becomes(&mut counted, 2).await;
        let renewing = async {
            for _ in 0..6 {
                renew();
                sleep(Duration::from_millis(500)).await;
            }
        };
        holds(&mut counted, 2, renewing).await;
    }
}
