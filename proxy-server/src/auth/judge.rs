//! The verdict on a TokenReview.

use std::sync::Arc;

use cluster::TokenReview;

use super::Identity;
use crate::args::TokenAuth;

/// Why a token does not authenticate an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// Go's text.
    pub why: Arc<str>,
    /// Whether the API knows the token and refuses it. Otherwise the review failed, and the cause may be the token (for
    /// example, it has expired) or the API (an authenticator or its store timed out).
    pub certain: bool,
}

/// The result of a review: the agent's identity, or why there is none.
pub type ReviewOutcome = Result<Arc<Identity>, Doubt>;

/// Judges a review. `token` is the reviewed token, which is removed from the API's texts.
pub(super) fn judge(expected: &TokenAuth, review: &TokenReview, token: &str) -> ReviewOutcome {
    if !review.error.is_empty() {
        let why = format!("lookup failed: {}", review.error.replace(token, "(the token)"));
        return Err(Doubt { why: why.into(), certain: false });
    }
    judge_user(expected, review).map_err(|why| Doubt { why: why.into(), certain: true })
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
            let doubt = judge(&expected, &review, "canary").unwrap_err();
            assert_eq!((&*doubt.why, doubt.certain), (text, review.error.is_empty()));
        }
    }
}
