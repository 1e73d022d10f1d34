//! Cached verdicts, by the SHA-256 of the token.

use std::collections::HashMap;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cluster::Moment;
use tokio::time::Instant;

use super::ReviewOutcome;

/// How long an accepted token is cached at most; never beyond the token's own expiry.
pub(super) const ACCEPTED_TTL: Duration = Duration::from_secs(60);
/// How long a refused token is cached.
pub(super) const REFUSED_TTL: Duration = Duration::from_secs(5);
/// Accepted tokens in the cache: as many as there may be agents. Refused tokens have a limit of their own, so that invalid
/// tokens evict no valid one.
const MAX_ACCEPTED: usize = 16_384;
const MAX_REFUSED: usize = 4_096;

/// The SHA-256 of a token.
pub(super) type Key = [u8; 32];

pub(super) fn key(token: &str) -> Key {
    let mut key = Key::default();
    key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    key
}

/// Verdicts with their expiry. A token has at most one.
#[derive(Debug, Default)]
pub(super) struct Cache {
    yes: HashMap<Key, (ReviewOutcome, Instant)>,
    no: HashMap<Key, (ReviewOutcome, Instant)>,
}

impl Cache {
    pub(super) fn get(&self, key: &Key) -> Option<ReviewOutcome> {
        let (verdict, end) = self.yes.get(key).or_else(|| self.no.get(key))?;
        (*end > Instant::now()).then(|| verdict.clone())
    }

    /// Caches the verdict on a token that expires in `left` (`None`: unknown).
    pub(super) fn put(&mut self, key: Key, verdict: ReviewOutcome, left: Option<Duration>) {
        let now = Instant::now();
        let (entries, other, holds, most) = match verdict {
            Ok(_) => {
                (&mut self.yes, &mut self.no, left.unwrap_or(ACCEPTED_TTL).min(ACCEPTED_TTL), MAX_ACCEPTED)
            }
            Err(_) => (&mut self.no, &mut self.yes, REFUSED_TTL, MAX_REFUSED),
        };
        other.remove(&key);
        if entries.len() >= most {
            entries.retain(|_, (_, end)| *end > now);
        }
        if entries.len() >= most {
            // Rare: no entry has expired. The entry that expires first is evicted.
            let soonest = entries.iter().min_by_key(|(_, (_, end))| *end).map(|(key, _)| *key);
            soonest.and_then(|key| entries.remove(&key));
        }
        entries.insert(key, (verdict, now + holds));
    }
}

/// The remaining life of a token by its own JWT claim `exp`. The claim is not verified: it can only shorten the cache time.
pub(super) fn left(token: &str, now: Moment) -> Option<Duration> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?.trim_end_matches('=')).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    let expires = claims.get("exp")?.as_f64().filter(|at| (0.0..1e11).contains(at))?;
    #[expect(clippy::cast_possible_truncation, reason = "in range")]
    Some(Moment::from_seconds(expires as i64).since(now))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::auth::{Identity, TokenRejection};

    fn jwt(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_tokens_own_end_is_read() {
        let now = Moment::from_seconds(1_000);
        let rows = [
            (jwt(r#"{"exp":1010}"#), Some(10)),
            (jwt(r#"{"exp":1010.9,"aud":["x"]}"#), Some(10)),
            (jwt(r#"{"exp":900}"#), Some(0)),
            (jwt(r#"{"exp":"1010"}"#), None),
            (jwt(r#"{"exp":1e300}"#), None),
            (jwt("{}"), None),
            ("opaque".into(), None),
            ("a.%.c".into(), None),
            (String::new(), None),
        ];
        for (token, seconds) in rows {
            assert_eq!(left(&token, now), seconds.map(Duration::from_secs), "{token}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn verdicts_end_and_garbage_evicts_no_yes() {
        let mut cache = Cache::default();
        let who = Arc::new(Identity::default());
        cache.put(key("long"), Ok(Arc::clone(&who)), Some(Duration::from_secs(3_600)));
        cache.put(key("short"), Ok(Arc::clone(&who)), Some(Duration::from_secs(20)));
        cache.put(key("over"), Ok(who), Some(Duration::ZERO));
        for n in 0..MAX_REFUSED * 2 {
            let rejection = TokenRejection { cause: "token", why: "no".into(), certain: true };
            cache.put(key(&format!("garbage {n}")), Err(rejection), None);
        }
        assert_eq!(cache.no.len(), MAX_REFUSED);
        let is_yes =
            |cache: &Cache, token: &str| cache.get(&key(token)).is_some_and(|outcome| outcome.is_ok());
        assert!(is_yes(&cache, "long") && is_yes(&cache, "short") && !is_yes(&cache, "over"));
        assert!(cache.get(&key(&format!("garbage {}", MAX_REFUSED * 2 - 1))).is_some());
        tokio::time::advance(Duration::from_secs(21)).await;
        assert!(is_yes(&cache, "long") && !is_yes(&cache, "short"));
        assert!(cache.get(&key(&format!("garbage {}", MAX_REFUSED * 2 - 1))).is_none());
        tokio::time::advance(Duration::from_secs(40)).await;
        assert!(!is_yes(&cache, "long"));
    }
}
