use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cluster::api::User;
use cluster::{ApiError, Clock, Moment, TokenReview};
use http::HeaderValue;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use serve::metrics::{Exposition, Registry};
use tokio::time::{Instant, sleep, timeout};

use super::reviewer::MAX_PENDING_REVIEWS_PER_ADDRESS;
use super::*;
use crate::args::TokenAuth;
use crate::backends::{Backend, BackendManager, Identifiers, RegisterError, Registration, Strategy};
use crate::metrics::register;

const NOW: i64 = 1_000_000;
const USER: &str = "system:serviceaccount:kube-system:agent";

/// A Kubernetes API in memory.
#[derive(Debug, Default)]
struct Api {
    answers: Mutex<HashMap<String, TokenReview>>,
    down: Mutex<bool>,
    delay: Duration,
    asked: AtomicUsize,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
    last_limit: Mutex<Duration>,
}

impl Api {
    fn knows(&self, token: &str, username: &str) {
        let user = User { username: username.into(), ..User::default() };
        let review =
            TokenReview { authenticated: true, user, audiences: vec!["aud".into()], error: String::new() };
        self.answers.lock().insert(token.into(), review);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

async fn review(api: Arc<Api>, token: bearer::Token, limit: Duration) -> Result<TokenReview, ApiError> {
    *api.last_limit.lock() = limit;
    api.asked.fetch_add(1, Ordering::Relaxed);
    let now = api.at_once.fetch_add(1, Ordering::Relaxed) + 1;
    api.most_at_once.fetch_max(now, Ordering::Relaxed);
    let answered = timeout(limit, sleep(api.delay)).await;
    api.at_once.fetch_sub(1, Ordering::Relaxed);
    if answered.is_err() || *api.down.lock() {
        return Err(ApiError::Unanswered { cause: "unreachable", text: "down".into() });
    }
    Ok(api.answers.lock().get(token.reveal()).cloned().unwrap_or_default())
}

fn auth(api: &Arc<Api>, recheck: Option<Duration>) -> (AgentAuth, Exposition) {
    let mut registry = Registry::default();
    let metrics = register(&mut registry);
    let expected = TokenAuth {
        namespace: "kube-system".into(),
        service_account: "agent".into(),
        audience: "aud".into(),
        review_every: recheck,
    };
    let began = Instant::now();
    let clock = Clock::new(move || Moment::from_seconds(NOW).plus(began.elapsed()));
    let api = Arc::clone(api);
    let review: Box<Review> = Box::new(move |token, limit| Box::pin(review(Arc::clone(&api), token, limit)));
    (AgentAuth::Token(Reviewer::new(review, expected, clock, metrics)), Exposition::new(registry))
}

fn peer() -> AgentPeer {
    peer_at(1)
}

/// A connection from the address with this number.
fn peer_at(address: u32) -> AgentPeer {
    AgentPeer::new((std::net::Ipv4Addr::from_bits(address), 1).into(), None)
}

async fn admit(auth: &AgentAuth, values: &[&str]) -> Result<Admitted, Refused> {
    admit_from(&peer(), auth, values).await
}

async fn admit_from(peer: &AgentPeer, auth: &AgentAuth, values: &[&str]) -> Result<Admitted, Refused> {
    let mut metadata = HeaderMap::new();
    for value in values {
        metadata.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
    }
    let admitted = auth.admit(&mut metadata, peer).await;
    assert!(metadata.is_empty(), "the token stays in the metadata");
    admitted
}

async fn refusal(auth: &AgentAuth, values: &[&str]) -> (Code, String) {
    let Refused { code, text, .. } = admit(auth, values).await.unwrap_err();
    (code, text)
}

/// A token that expires that many seconds after the test's start.
fn jwt(name: &str, seconds: i64) -> String {
    let claims = format!("{{\"sub\":\"{name}\",\"exp\":{}}}", NOW + seconds);
    format!("e30.{}.{name}", URL_SAFE_NO_PAD.encode(claims))
}

#[tokio::test(start_paused = true)]
async fn refusals_are_gos() {
    let api = Arc::new(Api::default());
    api.knows("good", USER);
    api.knows("other", "system:serviceaccount:kube-system:other");
    let (auth, _) = auth(&api, None);
    let validate = "Failed to validate authentication token, err:lookup failed: ";
    let long = format!("Bearer {}", "x".repeat(20_000));
    let rows: [(&[&str], String); 8] = [
        (&[], "Authentication context was not found in metadata".into()),
        (&["Bearer good", "Bearer good"], "too many (2) tokens are received".into()),
        (&["bearer good"], "received token does not have \"Bearer \" prefix".into()),
        (&["good"], "received token does not have \"Bearer \" prefix".into()),
        (&["Bearer bad"], format!("{validate}service account jwt not valid")),
        (
            &["Bearer other"],
            format!("{validate}incoming request from \"other\" service account. Expected \"agent\""),
        ),
        (&["Bearer "], "Failed to validate authentication token, err:the token is empty or too long".into()),
        (&[&long], "Failed to validate authentication token, err:the token is empty or too long".into()),
    ];
    for (values, text) in rows {
        assert_eq!(refusal(&auth, values).await, (Code::Unknown, text));
    }
    assert_eq!(api.asked(), 2, "nothing else reached the API");
    assert!(admit(&auth, &["Bearer good"]).await.unwrap().identity.is_named(USER));
}

#[tokio::test(start_paused = true)]
async fn reviews_that_wait_are_limited() {
    let api = Arc::new(Api { delay: Duration::from_secs(20), ..Api::default() });
    let (auth, _) = auth(&api, None);
    let mut tries = tokio::task::JoinSet::new();
    for n in 0..MAX_PENDING_REVIEWS_PER_ADDRESS + 100 {
        let auth = auth.clone();
        tries.spawn(async move {
            let began = Instant::now();
            (refusal(&auth, &[&format!("Bearer {n}")]).await.0, began.elapsed().is_zero())
        });
    }
    let refused = tries.join_all().await;
    assert!(refused.iter().all(|(code, _)| *code == Code::Unavailable));
    assert_eq!(refused.iter().filter(|(_, at_once)| *at_once).count(), 100);
}

/// Tokens of nobody, each on its own connection from one address.
fn flood(auth: &AgentAuth, tokens: usize) -> tokio::task::JoinSet<()> {
    let mut flood = tokio::task::JoinSet::new();
    for n in 0..tokens {
        let auth = auth.clone();
        flood.spawn(async move { drop(admit(&auth, &[&format!("Bearer flood {n}")]).await) });
    }
    flood
}

/// One token from each of this many addresses.
fn from_each_address(auth: &AgentAuth, addresses: u32) -> tokio::task::JoinSet<Result<Admitted, Refused>> {
    let mut all = tokio::task::JoinSet::new();
    for n in 0..addresses {
        let auth = auth.clone();
        all.spawn(async move { admit_from(&peer_at(n), &auth, &[&format!("Bearer t{n}")]).await });
    }
    all
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_one_address_leaves_turns_to_others() {
    for tokens in [500, 2 * MAX_PENDING_REVIEWS_PER_ADDRESS] {
        let api = Arc::new(Api { delay: Duration::from_secs(6), ..Api::default() });
        api.knows("good", USER);
        let (auth, _) = auth(&api, None);
        let _flood = flood(&auth, tokens);
        sleep(Duration::from_secs(1)).await;
        let admitted = admit_from(&peer_at(2), &auth, &["Bearer good"]).await;
        assert!(admitted.is_ok(), "{tokens} tokens: {admitted:?}");
    }
}

/// An alert says that the API cannot be asked.
#[tokio::test(start_paused = true)]
async fn a_flood_of_one_address_is_no_failure_of_the_api() {
    let api = Arc::new(Api { delay: Duration::from_secs(1), ..Api::default() });
    let (auth, exposition) = auth(&api, None);
    flood(&auth, 500).join_all().await;
    assert!(api.asked() < 300, "{} were asked", api.asked());
    let scrape = exposition.scrape();
    assert!(!scrape.contains("token_reviews_total{result=\"failed\"}"), "{scrape}");
}

/// The client itself ends a call that takes too long: then it also replaces its connections.
#[tokio::test(start_paused = true)]
async fn a_wait_for_a_turn_shortens_the_call() {
    let api = Arc::new(Api { delay: Duration::from_secs(4), ..Api::default() });
    let (auth, _) = auth(&api, None);
    from_each_address(&auth, 33).join_all().await;
    assert_eq!((api.asked(), *api.last_limit.lock()), (33, Duration::from_secs(6)));
}

#[tokio::test(start_paused = true)]
async fn a_review_that_waits_ends_with_its_caller() {
    let api = Arc::new(Api { delay: Duration::from_secs(6), ..Api::default() });
    api.knows("good", USER);
    let (auth, _) = auth(&api, None);
    let mut flood = flood(&auth, 1_000);
    sleep(Duration::from_secs(4)).await;
    let running = api.asked();
    flood.shutdown().await;
    assert!(admit(&auth, &["Bearer good"]).await.is_ok(), "nothing waits any more");
    assert_eq!(api.asked(), running + 1);
}

#[tokio::test(start_paused = true)]
async fn a_flood_does_not_delay_the_next_review_of_a_stream_from_its_address() {
    let api = Arc::new(Api { delay: Duration::from_secs(6), ..Api::default() });
    api.knows("good", USER);
    let (auth, _) = auth(&api, Some(Duration::from_secs(120)));
    let recheck = admit(&auth, &["Bearer good"]).await.unwrap().recheck.unwrap();
    api.answers.lock().clear();
    let began = Instant::now();
    let flooded = async {
        sleep(Duration::from_secs(119)).await;
        flood(&auth, 500).join_all().await;
    };
    tokio::join!(recheck.refused(), flooded);
    assert!(began.elapsed() < Duration::from_secs(130), "{:?}: not the first review", began.elapsed());
}

/// As behind a load balancer that hides the agents' addresses.
#[tokio::test(start_paused = true)]
async fn a_storm_of_agents_at_one_address_gets_in() {
    let api = Arc::new(Api { delay: Duration::from_millis(100), ..Api::default() });
    let (auth, _) = auth(&api, None);
    let mut storm = tokio::task::JoinSet::new();
    for n in 0..2_000 {
        let token = format!("t{n}");
        api.knows(&token, USER);
        let auth = auth.clone();
        storm.spawn(async move { admit(&auth, &[&format!("Bearer {token}")]).await.is_ok() });
    }
    assert!(storm.join_all().await.into_iter().all(|admitted| admitted), "at the first attempt");
    assert_eq!(api.asked(), 2_000);
}

#[tokio::test(start_paused = true)]
async fn accepted_token_is_cached_for_a_minute_and_not_beyond_its_expiry() {
    let api = Arc::new(Api::default());
    let (long, short) = (jwt("long", 3_600), jwt("short", 20));
    api.knows(&long, USER);
    api.knows(&short, USER);
    let (auth, _) = auth(&api, None);
    let (long, short) = (format!("Bearer {long}"), format!("Bearer {short}"));
    for _ in 0..5 {
        admit(&auth, &[&long]).await.unwrap();
        admit(&auth, &[&short]).await.unwrap();
    }
    assert_eq!(api.asked(), 2);
    api.answers.lock().clear();
    sleep(Duration::from_secs(19)).await;
    admit(&auth, &[&short]).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    admit(&auth, &[&short]).await.unwrap_err();
    admit(&auth, &[&long]).await.unwrap();
    assert_eq!(api.asked(), 3);
    sleep(Duration::from_secs(40)).await;
    admit(&auth, &[&long]).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn refused_token_is_cached_for_five_seconds() {
    let api = Arc::new(Api::default());
    let (auth, _) = auth(&api, None);
    for _ in 0..9 {
        admit(&auth, &["Bearer soon"]).await.unwrap_err();
    }
    api.knows("soon", USER);
    sleep(Duration::from_secs(4)).await;
    admit(&auth, &["Bearer soon"]).await.unwrap_err();
    assert_eq!(api.asked(), 1);
    sleep(Duration::from_secs(2)).await;
    admit(&auth, &["Bearer soon"]).await.unwrap();
    assert_eq!(api.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_question_for_a_token_and_at_most_32_at_once() {
    let api = Arc::new(Api { delay: Duration::from_secs(1), ..Api::default() });
    for n in 0..100 {
        api.knows(&format!("t{n}"), USER);
    }
    let (auth, _) = auth(&api, None);
    let mut all = tokio::task::JoinSet::new();
    for n in 0..1_000 {
        let auth = auth.clone();
        all.spawn(async move {
            admit_from(&peer_at(n % 10), &auth, &[&format!("Bearer t{}", n % 100)]).await.is_ok()
        });
    }
    let began = Instant::now();
    assert!(all.join_all().await.into_iter().all(|admitted| admitted));
    assert_eq!(api.asked(), 100);
    assert_eq!(api.most_at_once.load(Ordering::Relaxed), 32);
    assert_eq!(began.elapsed().as_secs(), 4);
}

#[tokio::test(start_paused = true)]
async fn canceled_caller_does_not_stop_the_review() {
    let api = Arc::new(Api { delay: Duration::from_secs(5), ..Api::default() });
    api.knows("t", USER);
    let (auth, _) = auth(&api, None);
    for _ in 0..4 {
        let impatient = timeout(Duration::from_secs(1), admit(&auth, &["Bearer t"])).await;
        assert!(impatient.is_err());
    }
    sleep(Duration::from_secs(2)).await;
    admit(&auth, &["Bearer t"]).await.unwrap();
    assert_eq!(api.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_api_that_is_down_is_unavailable_and_known_agents_come_in() {
    let api = Arc::new(Api::default());
    api.knows("known", USER);
    api.knows("new", USER);
    let (auth, exposition) = auth(&api, None);
    admit(&auth, &["Bearer known"]).await.unwrap();
    *api.down.lock() = true;
    sleep(Duration::from_secs(30)).await;
    admit(&auth, &["Bearer known"]).await.unwrap();
    let (code, text) = refusal(&auth, &["Bearer new"]).await;
    assert_eq!(code, Code::Unavailable);
    assert!(text.contains("cannot be asked now") && !text.contains("down"), "{text}");
    *api.down.lock() = false;
    admit(&auth, &["Bearer new"]).await.unwrap();
    let scrape = exposition.scrape();
    for (result, count) in [("accepted", 2), ("failed", 1)] {
        let line = format!("token_reviews_total{{result=\"{result}\"}} {count}");
        assert!(scrape.contains(&line), "{line} in {scrape}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_that_hangs_is_unavailable_after_ten_seconds() {
    let api = Arc::new(Api { delay: Duration::from_secs(3_600), ..Api::default() });
    let (auth, _) = auth(&api, None);
    let began = Instant::now();
    let all = from_each_address(&auth, 100);
    sleep(Duration::from_secs(9)).await;
    assert_eq!(api.asked(), 32, "the others wait for their turn");
    let mut refused = all.join_all().await.into_iter().map(|admitted| admitted.unwrap_err().code);
    assert!(refused.all(|code| code == Code::Unavailable));
    assert_eq!(began.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_long_streams_token_is_asked_about_again() {
    let api = Arc::new(Api::default());
    api.knows("t", USER);
    let (auth, _) = auth(&api, Some(Duration::from_secs(120)));
    let recheck = admit(&auth, &["Bearer t"]).await.unwrap().recheck.unwrap();
    assert!(!format!("{recheck:?}").contains("\"t\""));
    let began = Instant::now();
    let revoke = async {
        sleep(Duration::from_secs(500)).await;
        *api.down.lock() = true;
        sleep(Duration::from_secs(500)).await;
        *api.down.lock() = false;
        api.answers.lock().clear();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        why = recheck.refused() => assert_eq!(&*why, "lookup failed: service account jwt not valid"),
        () = revoke => unreachable!(),
    }
    assert_eq!(began.elapsed().as_secs(), 1_080, "the first look behind the revocation");
    let (without, _) = self::auth(&api, None);
    api.knows("t", USER);
    assert!(admit(&without, &["Bearer t"]).await.unwrap().recheck.is_none());
}

/// The API sets `status.error` for an expired token, and also when an authenticator timed out.
#[tokio::test(start_paused = true)]
async fn a_review_that_went_wrong_once_ends_no_stream() {
    let api = Arc::new(Api::default());
    api.knows("canary", USER);
    let (auth, _) = auth(&api, Some(Duration::from_secs(120)));
    let recheck = admit(&auth, &["Bearer canary"]).await.unwrap().recheck.unwrap();
    let began = Instant::now();
    let fail = |error: &str| {
        api.answers
            .lock()
            .insert("canary".into(), TokenReview { error: error.into(), ..TokenReview::default() });
    };
    let trouble = async {
        sleep(Duration::from_secs(119)).await;
        fail("context deadline exceeded");
        sleep(Duration::from_secs(10)).await;
        // The second review, at 130 s, succeeds; the next failure counts as the first again.
        api.knows("canary", USER);
        sleep(Duration::from_secs(110)).await;
        fail("context deadline exceeded");
        sleep(Duration::from_secs(16)).await;
        // From 256 s on the token itself is refused.
        fail("service account token has expired");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        why = recheck.refused() => assert_eq!(&*why, "lookup failed: service account token has expired"),
        () = trouble => unreachable!(),
    }
    assert_eq!(began.elapsed().as_secs(), 260, "250 s went wrong, 260 s as well");
}

#[tokio::test]
async fn certificates_need_an_allowed_name() {
    let auth = AgentAuth::Certificate(AllowedNames::new(vec!["node-1".into()]));
    let with = |name: &str| {
        let certificate = PeerIdentity { common_name: Some(name.into()), ..PeerIdentity::default() };
        AgentPeer::new("127.0.0.1:1".parse().unwrap(), Some(certificate))
    };
    let admitted = auth.admit(&mut HeaderMap::new(), &with("node-1")).await.unwrap();
    assert!(admitted.identity.is_named("node-1") && admitted.recheck.is_none());
    let refused = auth.admit(&mut HeaderMap::new(), &with("node-2")).await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    assert_eq!(auth.admit(&mut HeaderMap::new(), &peer()).await.unwrap_err().code, Code::PermissionDenied);
}

/// The route tables of a server that enforces identities.
fn backends() -> BackendManager<()> {
    BackendManager::new(&[Strategy::Default], register(&mut Registry::default()).routes.clone())
}

/// Registers a stream of an agent with this identity; `None` if the agent id belongs to another one.
fn claim(backends: &BackendManager<()>, agent_id: &str, identity: &Identity) -> Option<Registration<()>> {
    let (owner, identifiers) = (Some(identity.party(agent_id)), Identifiers::default());
    let is_foreign = backends.belongs_to_another(agent_id, owner.as_ref().unwrap());
    let backend = Backend { agent_id: agent_id.into(), identifiers, process: None, owner, handle: () };
    let registered = backends.register(backend);
    assert_eq!(registered.as_ref().err(), is_foreign.then_some(&RegisterError::ForeignId));
    registered.ok()
}

#[test]
fn an_agent_id_is_its_first_partys_while_it_lives() {
    let of = |name: &str| {
        Identity::of_certificate(&PeerIdentity { common_name: Some(name.into()), ..PeerIdentity::default() })
    };
    let backends = backends();
    let first = claim(&backends, "id", &of("a")).unwrap();
    let second = claim(&backends, "id", &of("a")).unwrap();
    assert!(claim(&backends, "id", &of("b")).is_none());
    drop(first);
    assert!(claim(&backends, "id", &of("b")).is_none());
    drop(second);
    assert!(claim(&backends, "id", &of("b")).is_some());
}

#[test]
fn agent_with_the_same_identity_takes_over_its_own_id() {
    let of = |names: &[&str]| {
        let dns = names.iter().map(|name| (*name).to_owned()).collect();
        Identity::of_certificate(&PeerIdentity { dns, ..PeerIdentity::default() })
    };
    let backends = backends();
    let before = claim(&backends, "node-1", &of(&["node-1"])).unwrap();
    let renewed = claim(&backends, "node-1", &of(&["node-1", "node-1.example"]));
    assert!(renewed.is_some(), "its new certificate has one name more");
    assert!(claim(&backends, "node-1", &of(&["node-2"])).is_none());
    drop((before, renewed));
    let _other = claim(&backends, "node-1", &of(&["node-2"])).unwrap();
    assert!(
        claim(&backends, "node-1", &of(&["node-1"])).is_none(),
        "whoever came first has no right to it, and keeps it while it lives"
    );
}
