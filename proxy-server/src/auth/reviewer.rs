//! Sends tokens to the Kubernetes API: one review at a time for each token, 32 at once, 10 s at most.
//!
//! ```text
//!   ask ── cached ──────────────────────────────▶ yes / no
//!    └─ already running: wait for its result ────▶ the same
//!    └─ a new review: 32 at once, 10 s at most ──▶ yes / no, cached; or no answer
//! ```
//!
//! A review continues when its waiters leave, so that an impatient agent cannot cause the same review again and again.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cluster::{ApiError, Client, Clock, TokenReview};
use parking_lot::Mutex;
use serve::logs::LogLimit;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::Identity;
use super::bearer::Token;
use super::cache::{self, Cache, Key};
use crate::args::TokenAuth;
use crate::metrics::{Metrics, ReviewResult};

/// Concurrent reviews.
const MAX_CONCURRENT_REVIEWS: usize = 32;
/// Reviews that wait or run; further requests get no verdict. Each holds a token of 16 KiB at most.
pub(super) const MAX_PENDING_REVIEWS: usize = 2_048;
/// Time limit of a review, including its wait for a free place.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the API's review of a token; the texts of its errors never contain the token. [`api_review`] in production.
pub type Review = dyn Fn(Token) -> Reviewing + Send + Sync;
type Reviewing = Pin<Box<dyn Future<Output = Result<TokenReview, ApiError>> + Send>>;

/// Reviews tokens for this audience by the Kubernetes API.
pub fn api_review(client: Client, audience: String) -> Box<Review> {
    Box::new(move |token| {
        let (client, audience) = (client.clone(), audience.clone());
        Box::pin(async move { client.review_token(token.reveal(), &audience, REVIEW_TIMEOUT).await })
    })
}

/// Reviews tokens and caches the verdicts. Clones share the cache.
#[derive(Clone)]
pub struct Reviewer(Arc<Shared>);

struct Shared {
    review: Box<Review>,
    expected: TokenAuth,
    clock: Clock,
    turns: Semaphore,
    metrics: Metrics,
    /// While the API cannot be reached every agent retries.
    logs: LogLimit,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cache: Cache,
    pending: HashMap<Key, watch::Receiver<Option<ReviewOutcome>>>,
}

/// Removes its entry from the list of running reviews when it is dropped.
struct PendingReview {
    shared: Arc<Shared>,
    key: Key,
}

impl Drop for PendingReview {
    fn drop(&mut self) {
        self.shared.state.lock().pending.remove(&self.key);
    }
}

impl Reviewer {
    /// A reviewer of these service account tokens, with an empty cache.
    pub fn new(review: Box<Review>, expected: TokenAuth, clock: Clock, metrics: Metrics) -> Self {
        let (turns, logs, state) =
            (Semaphore::new(MAX_CONCURRENT_REVIEWS), LogLimit::default(), Mutex::default());
        Self(Arc::new(Shared { review, expected, clock, turns, metrics, logs, state }))
    }

    /// Interval at which the tokens of open streams are reviewed again.
    pub(super) fn recheck_every(&self) -> Option<Duration> {
        self.0.expected.review_every
    }

    /// Whether the verdict on this token is cached.
    pub(super) fn remembers(&self, token: &Token) -> bool {
        self.0.state.lock().cache.get(&cache::key(token.reveal())).is_some()
    }

    /// The verdict on a token, within the time limit; `None` if the API did not answer.
    pub async fn review(&self, token: &Token) -> Option<ReviewOutcome> {
        let key = cache::key(token.reveal());
        let mut outcome = {
            let mut state = self.0.state.lock();
            if let Some(verdict) = state.cache.get(&key) {
                return Some(verdict);
            }
            match state.pending.get(&key) {
                Some(under_way) => under_way.clone(),
                None if state.pending.len() >= MAX_PENDING_REVIEWS => return None,
                None => {
                    let (tell, outcome) = watch::channel(None);
                    state.pending.insert(key, outcome.clone());
                    tokio::spawn(run_review(
                        PendingReview { shared: Arc::clone(&self.0), key },
                        token.clone(),
                        tell,
                    ));
                    outcome
                }
            }
        };
        // A review without a verdict drops the sender.
        outcome.wait_for(Option::is_some).await.ok()?.clone()
    }
}

async fn run_review(pending: PendingReview, token: Token, tell: watch::Sender<Option<ReviewOutcome>>) {
    let shared = &pending.shared;
    let asked = async {
        // The semaphore is never closed.
        let _turn = shared.turns.acquire().await;
        (shared.review)(token.clone()).await
    };
    let (verdict, result) = match timeout(REVIEW_TIMEOUT, asked).await {
        Ok(Ok(review)) => {
            let verdict = judge(&shared.expected, &review, token.reveal());
            let left = cache::left(token.reveal(), shared.clock.now());
            shared.state.lock().cache.put(pending.key, verdict.clone(), left);
            let result = if verdict.is_ok() { ReviewResult::Accepted } else { ReviewResult::Refused };
            (Some(verdict), result)
        }
        Ok(Err(error)) => shared.log_failure(&error.to_string()),
        Err(_) => shared.log_failure("no answer within 10 s, the wait for a turn included"),
    };
    shared.metrics.token_reviews.count(result);
    tell.send_replace(verdict);
}

impl Shared {
    /// Logs that a token could not be reviewed.
    fn log_failure(&self, error: &str) -> (Option<ReviewOutcome>, ReviewResult) {
        self.metrics.journal.api_failed(&format!("token review: {error}"));
        if let Some(suppressed) = self.logs.due_for("review", ()) {
            tracing::error!(
                error,
                suppressed,
                "An agent's token could not be reviewed; the agent will try again"
            );
        }
        (None, ReviewResult::Failed)
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
    /// Go's text.
    pub why: Arc<str>,
    /// Whether the API knows the token and refuses it. Otherwise the review failed, and the cause may be the token (for
    /// example, it has expired) or the API (an authenticator or its store timed out).
    pub certain: bool,
}

/// The result of a review: the agent's identity, or why there is none.
pub type ReviewOutcome = Result<Arc<Identity>, TokenRejection>;

/// Judges a review. `token` is the reviewed token, which is removed from the API's texts.
pub(super) fn judge(expected: &TokenAuth, review: &TokenReview, token: &str) -> ReviewOutcome {
    if !review.error.is_empty() {
        let why = format!("lookup failed: {}", review.error.replace(token, "(the token)"));
        return Err(TokenRejection { why: why.into(), certain: false });
    }
    judge_user(expected, review).map_err(|why| TokenRejection { why: why.into(), certain: true })
}

fn judge_user(expected: &TokenAuth, review: &TokenReview) -> Result<Arc<Identity>, String> {
    if !review.authenticated {
        return Err("lookup failed: service account jwt not valid".into());
    }
    let parts: Vec<&str> = review.user.username.split(':').collect();
    let [system, kind, namespace, account] = parts.as_slice() else {
        return Err("lookup failed: unexpected username format".into());
    };
    if (*system, *kind) != ("system", "serviceaccount") {
        return Err("lookup failed: username returned is not a service account".into());
    }
    if *namespace != expected.namespace {
        return Err(unexpected("namespace", namespace, &expected.namespace));
    }
    if *account != expected.service_account {
        return Err(unexpected("service account", account, &expected.service_account));
    }
    // An authenticator that does not support audiences returns none: the token may be for any audience.
    if !review.audiences.contains(&expected.audience) {
        return Err(format!("lookup failed: the token is not for audience {:?}", expected.audience));
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
