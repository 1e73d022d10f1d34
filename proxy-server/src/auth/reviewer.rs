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

use super::ReviewOutcome;
use super::bearer::Token;
use super::cache::{self, Cache, Key};
use super::judge::judge;
use crate::args::TokenAuth;
use crate::metrics::{Metrics, ReviewResult};

/// Concurrent reviews.
const AT_ONCE: usize = 32;
/// Reviews that wait or run; further requests get no verdict. Each holds a token of 16 KiB at most.
pub(super) const MOST_FLIGHTS: usize = 2_048;
/// Time limit of a review, including its wait for a free place.
const LIMIT: Duration = Duration::from_secs(10);

/// Returns the API's review of a token; the texts of its errors never contain the token. [`api_review`] in production.
pub type Review = dyn Fn(Token) -> Reviewing + Send + Sync;
type Reviewing = Pin<Box<dyn Future<Output = Result<TokenReview, ApiError>> + Send>>;

/// Reviews tokens for this audience by the Kubernetes API.
pub fn api_review(client: Client, audience: String) -> Box<Review> {
    Box::new(move |token| {
        let (client, audience) = (client.clone(), audience.clone());
        Box::pin(async move { client.review_token(token.reveal(), &audience, LIMIT).await })
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
    flights: HashMap<Key, watch::Receiver<Option<ReviewOutcome>>>,
}

/// Removes its entry from the list of running reviews when it is dropped.
struct Flight {
    shared: Arc<Shared>,
    key: Key,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.shared.state.lock().flights.remove(&self.key);
    }
}

impl Reviewer {
    /// A reviewer of these service account tokens, with an empty cache.
    pub fn new(review: Box<Review>, expected: TokenAuth, clock: Clock, metrics: Metrics) -> Self {
        let (turns, logs, state) = (Semaphore::new(AT_ONCE), LogLimit::default(), Mutex::default());
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
            match state.flights.get(&key) {
                Some(under_way) => under_way.clone(),
                None if state.flights.len() >= MOST_FLIGHTS => return None,
                None => {
                    let (tell, outcome) = watch::channel(None);
                    state.flights.insert(key, outcome.clone());
                    tokio::spawn(fly(Flight { shared: Arc::clone(&self.0), key }, token.clone(), tell));
                    outcome
                }
            }
        };
        // A review without a verdict drops the sender.
        outcome.wait_for(Option::is_some).await.ok()?.clone()
    }
}

async fn fly(flight: Flight, token: Token, tell: watch::Sender<Option<ReviewOutcome>>) {
    let shared = &flight.shared;
    let asked = async {
        // The semaphore is never closed.
        let _turn = shared.turns.acquire().await;
        (shared.review)(token.clone()).await
    };
    let (verdict, result) = match timeout(LIMIT, asked).await {
        Ok(Ok(review)) => {
            let verdict = judge(&shared.expected, &review, token.reveal());
            let left = cache::left(token.reveal(), shared.clock.now());
            shared.state.lock().cache.put(flight.key, verdict.clone(), left);
            let result = if verdict.is_ok() { ReviewResult::Accepted } else { ReviewResult::Refused };
            (Some(verdict), result)
        }
        Ok(Err(error)) => shared.complain(&error.to_string()),
        Err(_) => shared.complain("no answer within 10 s, the wait for a turn included"),
    };
    shared.metrics.token_reviews.count(result);
    tell.send_replace(verdict);
}

impl Shared {
    /// Logs that a token could not be reviewed.
    fn complain(&self, error: &str) -> (Option<ReviewOutcome>, ReviewResult) {
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
