use cluster::Clock;
use fake_apiserver::{FakeApi, Fault};
use serde_json::{Value, json};
use serve::metrics::{Exposition, Registry};

use super::*;

const EVERY: Duration = Duration::from_millis(50);

struct World {
    api: FakeApi,
    client: Client,
    metrics: Metrics,
    exposition: Exposition,
}

impl World {
    async fn new() -> Self {
        let api = FakeApi::start().await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = api.kubeconfig(folder.path(), "{token: canary}").unwrap();
        let client = Client::new(cluster::Config::load(Some(&kubeconfig)).unwrap(), "test", 0.0, 0);
        let mut registry = Registry::default();
        let metrics = crate::metrics::register(&mut registry);
        World { api, client, metrics, exposition: Exposition::new(registry) }
    }

    fn start(&self, id: &str) -> LeaseController {
        self.start_with(settings(id))
    }

    fn start_with(&self, settings: LeaseSettings) -> LeaseController {
        LeaseController::start(&Handle::current(), &self.client, settings, self.metrics.clone())
    }

    fn renewed(&self, id: &str) -> Option<String> {
        let lease = self.api.lease("kube-system", &format!("konnectivity-proxy-server-{id}"))?;
        Some(lease["spec"]["renewTime"].as_str()?.to_owned())
    }

    async fn wait(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        assert!(self.api.wait(|_| condition(self)).await, "{what}: {:?}", self.api.leases("kube-system"));
    }
}

fn settings(id: &str) -> LeaseSettings {
    let labels = BTreeMap::from([("k8s-app".to_owned(), "konnectivity-server".to_owned())]);
    let (namespace, server_id) = ("kube-system".into(), id.into());
    LeaseSettings { namespace, labels, server_id, advertise_address: None, every: EVERY }
}

#[tokio::test]
async fn a_lease_is_created_as_go_writes_it_renewed_and_deleted() {
    let world = World::new().await;
    let controller = world.start("one");
    world.wait("a lease", |world| world.renewed("one").is_some()).await;
    let lease = world.api.lease("kube-system", "konnectivity-proxy-server-one").unwrap();
    assert_eq!(lease["metadata"]["labels"], json!({"k8s-app": "konnectivity-server"}));
    assert_eq!(lease["spec"]["holderIdentity"], "one");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 30);
    assert_eq!(lease["spec"]["acquireTime"], Value::Null);
    let first = lease["spec"]["renewTime"].as_str().unwrap().to_owned();
    assert_eq!(first.len(), "2026-11-21T19:52:54.000001Z".len(), "microseconds: {first}");
    world.wait("a renewal", |world| world.renewed("one").is_some_and(|now| now > first)).await;
    controller.stop().await;
    assert_eq!(world.renewed("one"), None);
}

#[tokio::test]
async fn a_lease_tells_the_address_of_its_server() {
    let world = World::new().await;
    let annotations = |world: &World, id: &str| {
        let lease = world.api.lease("kube-system", &format!("konnectivity-proxy-server-{id}"))?;
        Some(lease["metadata"]["annotations"]["konnectivity-server/agent-address"].clone())
    };
    let (plain, told) = (
        settings("plain"),
        LeaseSettings { advertise_address: Some("10.0.0.1:8091".into()), ..settings("one") },
    );
    let controllers = [world.start_with(plain), world.start_with(told.clone())];
    world.wait("the address", |world| annotations(world, "one") == Some(json!("10.0.0.1:8091"))).await;
    world.wait("no address", |world| annotations(world, "plain") == Some(Value::Null)).await;
    drop(controllers);
    // A successor without the flag takes the lease over.
    let controller = world.start_with(settings("one"));
    world.wait("no address any more", |world| annotations(world, "one") == Some(Value::Null)).await;
    controller.stop().await;
}

/// The time of the last renewal in the metrics; `None` while the metric is absent.
fn last_renewal(world: &World) -> Option<f64> {
    let scrape = world.exposition.scrape();
    scrape.lines().find_map(|line| {
        let (name, at) = line.split_once(' ')?;
        name.ends_with("_lease_last_renewal_timestamp_seconds").then(|| at.parse().unwrap())
    })
}

#[tokio::test]
async fn metrics_show_a_lease_that_is_not_renewed() {
    let world = World::new().await;
    assert_eq!(last_renewal(&world), None, "no lease is kept");
    world.api.set_fault("POST", Fault::Status(403, "Forbidden"));
    let controller = world.start("one");
    world.wait("a try", |world| world.api.count("POST") > 0).await;
    assert_eq!(last_renewal(&world), Some(0.0));
    world.api.heal();
    world.wait("a renewal", |world| last_renewal(world) > Some(1.7e9)).await;
    controller.stop().await;
}

#[tokio::test]
async fn foreign_changes_to_the_lease_are_corrected_and_kept() {
    let world = World::new().await;
    let spec = json!({"holderIdentity": "x", "leaseDurationSeconds": 5, "leaseTransitions": 4});
    world.api.put_lease("kube-system", "konnectivity-proxy-server-one", json!({"stray": "label"}), spec);
    let controller = world.start("one");
    world.wait("a renewal", |world| world.renewed("one").is_some()).await;
    let lease = world.api.lease("kube-system", "konnectivity-proxy-server-one").unwrap();
    assert_eq!(lease["metadata"]["labels"], json!({"k8s-app": "konnectivity-server"}));
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 30);
    assert_eq!(lease["spec"]["leaseTransitions"], 4);
    // Another client deletes or changes the lease: the next renewal restores it.
    world.api.delete_lease("kube-system", "konnectivity-proxy-server-one");
    world.wait("a new one", |world| world.renewed("one").is_some()).await;
    world.api.put_lease("kube-system", "konnectivity-proxy-server-one", json!({}), json!({}));
    world.wait("its labels", |world| world.renewed("one").is_some()).await;
    controller.stop().await;
}

/// An API that stalls for less than the time limit of a call also delays the renewals of live servers.
#[tokio::test]
async fn lease_from_a_slow_api_is_not_deleted_for_its_age() {
    let world = World::new().await;
    let now = Clock::system().now().to_string();
    let spec = json!({"holderIdentity": "two", "leaseDurationSeconds": 2, "renewTime": now});
    let labels = json!({"k8s-app": "konnectivity-server"});
    world.api.put_lease("kube-system", "konnectivity-proxy-server-two", labels, spec);
    let controller = world.start("one");
    let lists = |world: &World| world.api.count("leases?");
    world.wait("a look", |world| lists(world) > 1).await;
    world.api.set_fault("leases?", Fault::Slow(Duration::from_secs(3)));
    let before = lists(&world);
    // The next list is requested after the slow one has been judged.
    world.wait("a slow list", |world| lists(world) > before + 1).await;
    assert!(world.renewed("two").is_some(), "deleted after a standstill");
    world.api.heal();
    world.wait("its end", |world| world.renewed("two").is_none()).await;
    controller.stop().await;
}

#[tokio::test]
async fn an_outage_is_outlived_without_a_storm() {
    let world = World::new().await;
    let controller = world.start("one");
    world.wait("a lease", |world| world.renewed("one").is_some()).await;
    for fault in [Fault::Status(500, "InternalError"), Fault::Close, Fault::Status(429, "TooManyRequests")] {
        world.api.set_fault("/leases", fault);
        let (before, began) = (world.api.count("/leases"), tokio::time::Instant::now());
        world.wait("retries", |world| world.api.count("/leases") > before + 8).await;
        let rate = 9.0 / began.elapsed().as_secs_f64();
        assert!(rate < 60.0, "{rate} requests a second, with a period of 50 ms");
        world.api.heal();
        let then = world.renewed("one").unwrap();
        world.wait("a renewal", |world| world.renewed("one").is_some_and(|now| now > then)).await;
    }
    world.api.restart().await;
    let then = world.renewed("one").unwrap();
    world.wait("a renewal", |world| world.renewed("one").is_some_and(|now| now > then)).await;
    controller.stop().await;
    assert_eq!(world.renewed("one"), None);
}

/// As in Go, calls without an answer have no status to count under; they are counted in a separate metric.
#[tokio::test]
async fn calls_without_an_answer_are_counted() {
    let world = World::new().await;
    world.api.set_fault("/leases", Fault::Close);
    let controller = world.start("one");
    let line = "lease_calls_unanswered_total{call=\"list\",reason=\"unreachable\"} ";
    world.wait("a count", |world| world.exposition.scrape().contains(line)).await;
    assert!(!world.exposition.scrape().contains("lease_list_total"));
    world.api.heal();
    controller.stop().await;
}

/// In two minutes at the real intervals: at most 8 renewals and 8 lists (and the first read).
#[tokio::test]
async fn requests_are_few() {
    let world = World::new().await;
    let controller = world.start("one");
    let began = tokio::time::Instant::now();
    world.wait("forty requests", |world| world.api.seen().len() >= 40).await;
    let (intervals, requests) = (began.elapsed().as_secs_f64() / EVERY.as_secs_f64(), world.api.seen().len());
    let each = requests as f64 / intervals;
    println!("{each:.2} requests a period, {:.1} a minute at the pace of 15 s", each * 4.0);
    assert!(each < 2.5, "{each} requests a period");
    controller.stop().await;
}

#[tokio::test]
async fn a_successors_lease_is_left_alone() {
    let world = World::new().await;
    let slow = LeaseSettings { every: Duration::from_secs(3_600), ..settings("one") };
    let old = world.start_with(slow.clone());
    world.wait("a lease", |world| world.renewed("one").is_some()).await;
    let first = world.renewed("one").unwrap();
    let new = world.start_with(slow);
    world.wait("the successor's renewal", |world| world.renewed("one").is_some_and(|now| now > first)).await;
    old.stop().await;
    assert!(world.renewed("one").is_some(), "the successor's lease was deleted");
    new.stop().await;
    assert_eq!(world.renewed("one"), None);
}

/// Makes all renewals fail, stops the server, and checks that its lease is deleted.
async fn ends_without_renewals(world: &World, controller: LeaseController) {
    world.api.set_fault("PUT", Fault::Status(500, "InternalError"));
    let before = world.api.count("PUT");
    world.wait("failures", |world| world.api.count("PUT") > before + 2).await;
    controller.stop().await;
    assert_eq!(world.renewed("one"), None);
}

/// The lease contains an earlier renewal than the last one sent.
#[tokio::test]
async fn lease_with_failed_renewals_is_deleted_at_the_end() {
    let world = World::new().await;
    let controller = world.start("one");
    world.wait("a lease", |world| world.renewed("one").is_some()).await;
    ends_without_renewals(&world, controller).await;
}

/// The API stored a renewal whose answer was lost, and none of the later ones.
#[tokio::test]
async fn lease_with_an_unanswered_renewal_is_deleted_at_the_end() {
    let world = World::new().await;
    let controller = world.start("one");
    world.wait("a lease", |world| world.renewed("one").is_some()).await;
    let first = world.renewed("one").unwrap();
    world.api.set_fault("PUT", Fault::LostAnswer);
    world.wait("a renewal", |world| world.renewed("one").is_some_and(|now| now > first)).await;
    ends_without_renewals(&world, controller).await;
}

#[tokio::test]
async fn the_end_is_bounded_when_the_api_hangs() {
    let world = World::new().await;
    let controller = world.start("one");
    world.wait("a lease", |world| world.renewed("one").is_some()).await;
    world.api.set_fault("/leases", Fault::Hang);
    let began = tokio::time::Instant::now();
    controller.stop().await;
    assert!(began.elapsed() < STOP_TIMEOUT + Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn expired_leases_are_deleted_and_counted() {
    let world = World::new().await;
    let labels = json!({"k8s-app": "konnectivity-server"});
    let over = json!({"holderIdentity": "gone", "leaseDurationSeconds": 1, "renewTime": "2020-01-01T00:00:00.000000Z"});
    let ahead = json!({"holderIdentity": "ahead", "leaseDurationSeconds": 1, "renewTime": "2999-01-01T00:00:00.000000Z"});
    world.api.put_lease("kube-system", "gone", labels.clone(), over.clone());
    world.api.put_lease("kube-system", "ahead", labels, ahead);
    world.api.put_lease("kube-system", "unmarked", json!({}), over.clone());
    world.api.put_lease("other", "gone", json!({"k8s-app": "konnectivity-server"}), over);
    let controller = world.start("one");
    // The API has deleted a lease before the controller has its answer.
    world.wait("both counted", |world| world.exposition.scrape().contains("culled_leases_count 2")).await;
    controller.stop().await;
    assert_eq!(world.api.leases("kube-system").len(), 1, "unmarked");
    assert_eq!(world.api.leases("other").len(), 1);
    assert!(world.api.lease("kube-system", "unmarked").is_some());
    let scrape = world.exposition.scrape();
    let name = |rest: &str| format!("konnectivity_network_proxy_server_{rest}");
    assert!(scrape.contains(&name("culled_leases_count 2")), "{scrape}");
    assert!(scrape.contains(&name("lease_delete_total{http_status_code=\"200\",reason=\"\"} 2")), "{scrape}");
    assert!(scrape.contains(&name("lease_list_latency_seconds_count{http_status_code=\"200\"}")), "{scrape}");
}

#[tokio::test]
async fn failed_lists_and_deletions_show_in_the_status() {
    for (path, method) in [("/leases?", "list"), ("/leases/gone", "delete")] {
        let world = World::new().await;
        let over = json!({"holderIdentity": "gone", "leaseDurationSeconds": 1, "renewTime": "2020-01-01T00:00:00.000000Z"});
        world.api.put_lease("kube-system", "gone", json!({"k8s-app": "konnectivity-server"}), over);
        world.api.set_fault(path, Fault::Status(403, "Forbidden"));
        let controller = world.start("one");
        world.wait(method, |world| world.metrics.journal.api_error().contains(" leases: ")).await;
        controller.stop().await;
    }
}

#[tokio::test]
async fn a_renewal_between_the_list_and_the_deletion_saves_the_lease() {
    let world = World::new().await;
    let labels = json!({"k8s-app": "konnectivity-server"});
    let spec = json!({"leaseDurationSeconds": 1, "renewTime": "2020-01-01T00:00:00.000000Z"});
    world.api.put_lease("kube-system", "late", labels.clone(), spec.clone());
    world.api.set_fault("DELETE", Fault::Slow(Duration::from_millis(300)));
    let controller = world.start("one");
    world.wait("a deletion under way", |world| world.api.count("DELETE") > 0).await;
    world.api.put_lease("kube-system", "late", labels, spec);
    world
        .wait("another list", |world| {
            let scrape = world.exposition.scrape();
            scrape.contains("lease_delete_total{http_status_code=\"409\",reason=\"Conflict\"} 1")
        })
        .await;
    assert!(world.api.lease("kube-system", "late").is_some());
    assert_eq!(world.metrics.journal.api_error(), "", "a race is no failure");
    world.api.heal();
    controller.stop().await;
}
