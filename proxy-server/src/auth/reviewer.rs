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
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cluster::{ApiError, Client, Clock, TokenReview};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use super::bearer::Token;
use super::cache::{self, Cache, Key};
use super::{Doubt, Expected, Identity};
use crate::metrics::{Metrics, ReviewResult};

/// Concurrent reviews.
const AT_ONCE: usize = 32;
/// Reviews that wait or run; further requests are answered `Undetermined` at once. Each holds a token of 16 KiB at most.
const MOST_FLIGHTS: usize = 2_048;
/// Time limit of a review, including its wait for a free place.
const LIMIT: Duration = Duration::from_secs(10);
/// While the API cannot be reached every agent retries; the server logs one line in this interval.
const COMPLAIN_EVERY: Duration = Duration::from_secs(5);

/// Reviews a token. [`ApiReview`] in production.
pub trait Review: Send + Sync + 'static {
    /// Returns the API's review of a token.
    ///
    /// # Errors
    /// Errors of the API client; their texts never contain the token.
    fn review(&self, token: &str) -> impl Future<Output = Result<TokenReview, ApiError>> + Send;
}

/// Reviews tokens by the Kubernetes API.
#[derive(Debug)]
pub struct ApiReview {
    client: Client,
    audience: String,
}

impl ApiReview {
    /// Reviews tokens for this audience.
    pub fn new(client: Client, audience: String) -> Self {
        Self { client, audience }
    }
}

impl Review for ApiReview {
    async fn review(&self, token: &str) -> Result<TokenReview, ApiError> {
        self.client.review_token(token, &self.audience, LIMIT).await
    }
}

/// The result of a review.
#[derive(Debug, Clone)]
pub enum ReviewOutcome {
    /// The token authenticates an agent.
    Authenticated(Arc<Identity>),
    /// It does not, for this reason.
    Refused(Doubt),
    /// The API did not answer.
    Undetermined,
}

/// Reviews tokens and caches the verdicts.
pub struct Reviewer<R> {
    shared: Arc<Shared<R>>,
    recheck_every: Option<Duration>,
}

struct Shared<R> {
    review: R,
    expected: Expected,
    clock: Clock,
    turns: Semaphore,
    metrics: Metrics,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cache: Cache,
    flights: HashMap<Key, watch::Receiver<Option<ReviewOutcome>>>,
    complained: Option<Instant>,
}

/// Removes its entry from the list of running reviews when it is dropped.
struct Flight<R> {
    shared: Arc<Shared<R>>,
    key: Key,
}

impl<R> Drop for Flight<R> {
    fn drop(&mut self) {
        self.shared.state.lock().flights.remove(&self.key);
    }
}

impl<R: Review> Reviewer<R> {
    /// A reviewer with an empty cache. `recheck_every`: interval at which the tokens of open streams are reviewed again.
    pub fn new(
        review: R,
        expected: Expected,
        clock: Clock,
        metrics: Metrics,
        recheck_every: Option<Duration>,
    ) -> Self {
        let (turns, state) = (Semaphore::new(AT_ONCE), Mutex::default());
        let shared = Arc::new(Shared { review, expected, clock, turns, metrics, state });
        Self { shared, recheck_every }
    }

    pub(super) fn recheck_every(&self) -> Option<Duration> {
        self.recheck_every
    }

    /// Whether the verdict on this token is cached.
    pub(super) fn remembers(&self, token: &Token) -> bool {
        self.shared.state.lock().cache.get(&cache::key(token.reveal())).is_some()
    }

    /// The verdict on a token, within the time limit.
    pub async fn review(&self, token: &Token) -> ReviewOutcome {
        let key = cache::key(token.reveal());
        let mut outcome = {
            let mut state = self.shared.state.lock();
            match state.cache.get(&key) {
                Some(Ok(identity)) => return ReviewOutcome::Authenticated(identity),
                Some(Err(doubt)) => return ReviewOutcome::Refused(doubt),
                None => {}
            }
            match state.flights.get(&key) {
                Some(under_way) => under_way.clone(),
                None if state.flights.len() >= MOST_FLIGHTS => return ReviewOutcome::Undetermined,
                None => {
                    let (tell, outcome) = watch::channel(None);
                    state.flights.insert(key, outcome.clone());
                    let flight = Flight { shared: Arc::clone(&self.shared), key };
                    tokio::spawn(fly(flight, token.clone(), tell));
                    outcome
                }
            }
        };
        let told = outcome.wait_for(Option::is_some).await;
        // A review that ended without a verdict has panicked.
        told.ok().and_then(|outcome| outcome.clone()).unwrap_or(ReviewOutcome::Undetermined)
    }
}

async fn fly<R: Review>(flight: Flight<R>, token: Token, tell: watch::Sender<Option<ReviewOutcome>>) {
    let shared = &flight.shared;
    let asked = async {
        // The semaphore is never closed.
        let _turn = shared.turns.acquire().await;
        shared.review.review(token.reveal()).await
    };
    let (outcome, result) = match timeout(LIMIT, asked).await {
        Ok(Ok(review)) => match shared.expected.judge(&review, token.reveal()) {
            Ok(identity) => {
                let left = cache::left(token.reveal(), shared.clock.now());
                shared.state.lock().cache.put_yes(flight.key, Arc::clone(&identity), left);
                (ReviewOutcome::Authenticated(identity), ReviewResult::Accepted)
            }
            Err(doubt) => {
                shared.state.lock().cache.put_no(flight.key, doubt.clone());
                (ReviewOutcome::Refused(doubt), ReviewResult::Refused)
            }
        },
        Ok(Err(error)) => {
            shared.complain(&error.to_string());
            (ReviewOutcome::Undetermined, ReviewResult::Failed)
        }
        Err(_) => {
            shared.complain("no answer within 10 s, the wait for a turn included");
            (ReviewOutcome::Undetermined, ReviewResult::Failed)
        }
    };
    shared.metrics.token_reviews.count(result);
    tell.send_replace(Some(outcome));
}

impl<R> Shared<R> {
    fn complain(&self, error: &str) {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.complained.is_none_or(|then| now - then >= COMPLAIN_EVERY) {
            state.complained = Some(now);
            drop(state);
            tracing::error!(error, "An agent's token could not be reviewed; the agent will try again");
        }
    }
}

impl<R> std::fmt::Debug for Reviewer<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewer").field("expected", &self.shared.expected).finish_non_exhaustive()
    }
}
