//! Sends tokens to the Kubernetes API: one review at a time for each token, 32 at once, 24 of them for peers at one address, 10 s
//! at most.
//!
//! ```text
//!   ask ── cached ───────────────────────────────────▶ yes / no
//!    ├─ already running: wait for its result ────────▶ the same
//!    └─ wait for a turn: first of the address, then of all
//!        └─ a new review ────────────────────────────▶ yes / no, cached; or no answer
//! ```
//!
//! Anyone can show a token. A wait belongs to its caller and ends with it, so that a lost stream leaves no wait behind. A
//! review that runs continues when its callers leave, so that an impatient agent cannot cause the same review again and again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cluster::{ApiError, Client, Clock, TokenReview};
use parking_lot::Mutex;
use serve::logs::{LogLimit, network};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use super::Identity;
use super::bearer::Token;
use super::cache::{self, Cache, Key};
use crate::args::TokenAuth;
use crate::metrics::{Metrics, ReviewResult};

/// Concurrent reviews.
const MAX_CONCURRENT_REVIEWS: usize = 32;
/// The same of peers at one address (IPv6: /64). The others' turns remain for other addresses, even while the API is slow. Many
/// agents may share an address, so it is more than half.
const MAX_CONCURRENT_REVIEWS_PER_ADDRESS: usize = 24;
/// Reviews of peers at one address that wait or run; further requests get no verdict. Each holds a token of 16 KiB at most.
pub(super) const MAX_PENDING_REVIEWS_PER_ADDRESS: usize = 2_048;
/// Time limit of a review, including its wait for a turn.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the API's review of a token within this time; the texts of its errors never contain the token. [`api_review`] in
/// production.
pub type Review = dyn Fn(Token, Duration) -> Reviewing + Send + Sync;
type Reviewing = Pin<Box<dyn Future<Output = Result<TokenReview, ApiError>> + Send>>;

/// Reviews tokens for this audience by the Kubernetes API.
pub fn api_review(client: Client, audience: String) -> Box<Review> {
    Box::new(move |token, limit| {
        let (client, audience) = (client.clone(), audience.clone());
        Box::pin(async move { client.review_token(token.reveal(), &audience, limit).await })
    })
}

/// Reviews tokens and caches the verdicts. Clones share the cache.
#[derive(Clone)]
pub struct Reviewer(Arc<Shared>);

struct Shared {
    review: Box<Review>,
    expected: TokenAuth,
    clock: Clock,
    turns: Arc<Semaphore>,
    metrics: Metrics,
    /// While the API cannot be reached every agent retries.
    logs: LogLimit,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cache: Cache,
    running: HashMap<Key, Outcome>,
    /// The turns of each address, kept by its reviews that wait or run.
    addresses: HashMap<Option<IpAddr>, Weak<Semaphore>>,
}

/// The verdict of a review, once there is one. A review without a verdict drops the sender.
type Outcome = watch::Receiver<Option<ReviewOutcome>>;

/// A turn of the address, and one of all.
type Turn = [Result<OwnedSemaphorePermit, AcquireError>; 2];

/// A review that runs. Removes its entry from the list when it is dropped.
struct RunningReview {
    shared: Arc<Shared>,
    key: Key,
    _turn: Turn,
}

impl Drop for RunningReview {
    fn drop(&mut self) {
        self.shared.state.lock().running.remove(&self.key);
    }
}

impl Reviewer {
    /// A reviewer of these service account tokens, with an empty cache.
    pub fn new(review: Box<Review>, expected: TokenAuth, clock: Clock, metrics: Metrics) -> Self {
        let turns = Arc::new(Semaphore::new(MAX_CONCURRENT_REVIEWS));
        let (logs, state) = (LogLimit::default(), Mutex::default());
        Self(Arc::new(Shared { review, expected, clock, turns, metrics, logs, state }))
    }

    /// Interval at which the tokens of open streams are reviewed again.
    pub(super) fn recheck_every(&self) -> Option<Duration> {
        self.0.expected.review_every
    }

    /// The verdict on a token, within the time limit; `None` if the API did not answer, or if too many reviews of this address
    /// wait. Admitted agents count together, without their `address`, so that no unauthenticated peer at it delays them.
    pub async fn review(&self, token: &Token, address: Option<IpAddr>) -> Option<ReviewOutcome> {
        let (shared, key) = (&self.0, cache::key(token.reveal()));
        let deadline = Instant::now() + REVIEW_TIMEOUT;
        let known = shared.state.lock().known(&key);
        let mut outcome = match known {
            Some(outcome) => outcome,
            None => {
                let own = shared.state.lock().turns_of(address.map(network))?;
                // Without a turn of its address nothing was asked: no failure of the API.
                let own = timeout_at(deadline, own.acquire_owned()).await.ok()?;
                let Ok(all) = timeout_at(deadline, Arc::clone(&shared.turns).acquire_owned()).await else {
                    shared.failed("no turn within 10 s: the reviews of other tokens take too long");
                    return None;
                };
                self.run(key, token, [own, all], deadline)
            }
        };
        timeout_at(deadline, outcome.wait_for(Option::is_some)).await.ok()?.ok()?.clone()
    }

    /// Starts a review, unless the token was reviewed during the wait for this turn.
    fn run(&self, key: Key, token: &Token, turn: Turn, deadline: Instant) -> Outcome {
        let mut state = self.0.state.lock();
        state.known(&key).unwrap_or_else(|| {
            let (tell, outcome) = watch::channel(None);
            state.running.insert(key, outcome.clone());
            let running = RunningReview { shared: Arc::clone(&self.0), key, _turn: turn };
            tokio::spawn(run_review(running, token.clone(), deadline, tell));
            outcome
        })
    }
}

async fn run_review(
    running: RunningReview,
    token: Token,
    deadline: Instant,
    tell: watch::Sender<Option<ReviewOutcome>>,
) {
    let shared = &running.shared;
    match (shared.review)(token.clone(), deadline.saturating_duration_since(Instant::now())).await {
        Ok(review) => {
            let verdict = judge(&shared.expected, &review, token.reveal());
            let left = cache::left(token.reveal(), shared.clock.now());
            shared.state.lock().cache.put(running.key, verdict.clone(), left);
            let result = if verdict.is_ok() { ReviewResult::Accepted } else { ReviewResult::Refused };
            shared.metrics.token_reviews.count(result);
            tell.send_replace(Some(verdict));
        }
        Err(error) => shared.failed(&error.to_string()),
    }
}

impl State {
    /// The verdict on this token, if it is cached or on its way.
    fn known(&self, key: &Key) -> Option<Outcome> {
        let cached = self.cache.get(key).map(|verdict| watch::channel(Some(verdict)).1);
        cached.or_else(|| self.running.get(key).cloned())
    }

    /// The turns of an address; `None` if too many of its reviews wait.
    fn turns_of(&mut self, address: Option<IpAddr>) -> Option<Arc<Semaphore>> {
        let turns = self.addresses.get(&address).and_then(Weak::upgrade).unwrap_or_else(|| {
            self.addresses.retain(|_, turns| turns.strong_count() > 0);
            let turns = Arc::new(Semaphore::new(MAX_CONCURRENT_REVIEWS_PER_ADDRESS));
            self.addresses.insert(address, Arc::downgrade(&turns));
            turns
        });
        (Arc::strong_count(&turns) <= MAX_PENDING_REVIEWS_PER_ADDRESS).then_some(turns)
    }
}

impl Shared {
    /// Counts and logs that a token could not be reviewed.
    fn failed(&self, error: &str) {
        self.metrics.token_reviews.count(ReviewResult::Failed);
        self.metrics.journal.api_failed(&format!("token review: {error}"));
        if let Some(suppressed) = self.logs.due_for("review", ()) {
            tracing::error!(
                error,
                suppressed,
                "An agent's token could not be reviewed; the agent will try again"
            );
        }
    }
}

impl std::fmt::Debug for Reviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewer").field("expected", &self.0.expected).finish_non_exhaustive()
    }
}

/// Why a token does not authenticate an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRejection {
    /// See [`super::Refused::cause`].
    pub cause: &'static str,
    /// Go's text.
    pub why: Arc<str>,
    /// Whether the API knows the token and refuses it. Otherwise the review failed, and the cause may be the token (for
    /// example, it has expired) or the API (an authenticator or its store timed out).
    pub certain: bool,
}

/// The result of a review: the agent's identity, or why there is none.
pub type ReviewOutcome = Result<Arc<Identity>, TokenRejection>;

/// Values of [`TokenRejection::cause`]: the token itself, or the user that it is for.
const TOKEN: &str = "token";
const USER: &str = "user";

/// Judges a review. `token` is the reviewed token, which is removed from the API's texts.
pub(super) fn judge(expected: &TokenAuth, review: &TokenReview, token: &str) -> ReviewOutcome {
    if !review.error.is_empty() {
        let why = format!("lookup failed: {}", review.error.replace(token, "(the token)"));
        return Err(TokenRejection { cause: TOKEN, why: why.into(), certain: false });
    }
    judge_user(expected, review).map_err(|(cause, why)| TokenRejection {
        cause,
        why: why.into(),
        certain: true,
    })
}

fn judge_user(expected: &TokenAuth, review: &TokenReview) -> Result<Arc<Identity>, (&'static str, String)> {
    if !review.authenticated {
        return Err((TOKEN, "lookup failed: service account jwt not valid".into()));
    }
    let parts: Vec<&str> = review.user.username.split(':').collect();
    let [system, kind, namespace, account] = parts.as_slice() else {
        return Err((USER, "lookup failed: unexpected username format".into()));
    };
    if (*system, *kind) != ("system", "serviceaccount") {
        return Err((USER, "lookup failed: username returned is not a service account".into()));
    }
    if *namespace != expected.namespace {
        return Err((USER, unexpected("namespace", namespace, &expected.namespace)));
    }
    if *account != expected.service_account {
        return Err((USER, unexpected("service account", account, &expected.service_account)));
    }
    // An authenticator that does not support audiences returns none: the token may be for any audience.
    if !review.audiences.contains(&expected.audience) {
        let why = format!("lookup failed: the token is not for audience {:?}", expected.audience);
        return Err((TOKEN, why));
    }
    Ok(Arc::new(Identity::of_token(&review.user)))
}

fn unexpected(what: &str, found: &str, expected: &str) -> String {
    format!("lookup failed: incoming request from {found:?} {what}. Expected {expected:?}")
}

#[cfg(test)]
mod tests {
    use cluster::api::User;

    use super::*;

    #[test]
    fn verdicts_and_texts_are_gos() {
        let expected = TokenAuth {
            namespace: "kube-system".into(),
            service_account: "agent".into(),
            audience: "aud".into(),
            review_every: None,
        };
        let good = TokenReview {
            authenticated: true,
            user: User { username: "system:serviceaccount:kube-system:agent".into(), ..User::default() },
            audiences: vec!["other".into(), "aud".into()],
            error: String::new(),
        };
        let named = |name: &str| TokenReview {
            user: User { username: name.into(), ..User::default() },
            ..good.clone()
        };
        assert!(judge(&expected, &good, "canary").unwrap().is_vouched());
        let rows = [
            (
                TokenReview { authenticated: false, ..good.clone() },
                "lookup failed: service account jwt not valid",
            ),
            (
                TokenReview { error: "canary has expired".into(), ..good.clone() },
                "lookup failed: (the token) has expired",
            ),
            (named("system:serviceaccount:kube-system"), "lookup failed: unexpected username format"),
            (named("system:serviceaccount:kube-system:agent:x"), "lookup failed: unexpected username format"),
            (
                named("system:node:kube-system:agent"),
                "lookup failed: username returned is not a service account",
            ),
            (
                named("system:serviceaccount:other:agent"),
                "lookup failed: incoming request from \"other\" namespace. Expected \"kube-system\"",
            ),
            (
                named("system:serviceaccount:kube-system:other"),
                "lookup failed: incoming request from \"other\" service account. Expected \"agent\"",
            ),
            (
                TokenReview { audiences: vec!["other".into()], ..good.clone() },
                "lookup failed: the token is not for audience \"aud\"",
            ),
            (
                TokenReview { audiences: vec![], ..good.clone() },
                "lookup failed: the token is not for audience \"aud\"",
            ),
        ];
        for (review, text) in rows {
            let rejection = judge(&expected, &review, "canary").unwrap_err();
            assert_eq!((&*rejection.why, rejection.certain), (text, review.error.is_empty()));
        }
    }
}
