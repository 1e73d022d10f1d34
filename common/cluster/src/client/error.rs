//! Errors of calls.

use std::fmt::Display;
use std::time::Duration;

use crate::api::Status;
use crate::config::Server;

/// The longest text of the API that is passed on, in bytes.
const MAX_TEXT_BYTES: usize = 300;

/// Replaces a token that the API has quoted.
const TOKEN_PLACEHOLDER: &str = "(the token)";

/// A failed call. No text contains a token.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The API answered with an error.
    #[error("the Kubernetes API answered {code} {reason}: {message}")]
    Status {
        /// The HTTP status.
        code: u16,
        /// The reason in its Status object, empty without one.
        reason: String,
        /// Its message, escaped and cut.
        message: String,
        /// `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// There is no answer, or an invalid one.
    #[error("{text}")]
    Unanswered {
        /// The cause in one word, for metrics.
        cause: &'static str,
        /// The cause in a sentence.
        text: String,
    },
}

impl ApiError {
    /// The connection to this API server failed.
    pub(super) fn unreachable(server: &Server, why: &dyn Display) -> Self {
        let text = format!("cannot reach the Kubernetes API at {}: {why}", server.authority());
        Self::Unanswered { cause: "unreachable", text }
    }

    /// The answer is invalid.
    pub(super) fn invalid_answer(why: &str) -> Self {
        let text = format!("the Kubernetes API answered nonsense: {why}");
        Self::Unanswered { cause: "nonsense", text }
    }

    /// Our credentials are not available now.
    pub(super) fn credentials(text: String) -> Self {
        Self::Unanswered { cause: "credentials", text }
    }

    /// TLS is not available now.
    #[expect(clippy::needless_pass_by_value, reason = "map_err hands the text in")]
    pub(super) fn tls(why: String) -> Self {
        Self::Unanswered { cause: "tls", text: format!("TLS to the Kubernetes API: {why}") }
    }

    /// From an error answer to a request that contained `secret`.
    pub(super) fn status(
        code: u16,
        body: &[u8],
        retry_after: Option<Duration>,
        secret: Option<&str>,
    ) -> Self {
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        // Before anything is cut: a part of the secret would not be found.
        let clean = |text: &str| match secret.filter(|secret| !secret.is_empty()) {
            Some(secret) => clean(&text.replace(secret, TOKEN_PLACEHOLDER)),
            None => clean(text),
        };
        let message = match status.message.as_str() {
            "" => clean(&String::from_utf8_lossy(body)),
            message => clean(message),
        };
        Self::Status { code, reason: clean(&status.reason), message, retry_after }
    }

    /// From a Status object in a watch.
    pub(super) fn event(status: &Status) -> Self {
        let (reason, message) = (clean(&status.reason), clean(&status.message));
        Self::Status { code: status.code, reason, message, retry_after: None }
    }

    /// The result of a call for metrics: the HTTP status and the reason (empty for success).
    ///
    /// # Errors
    /// Without an answer: the cause, in one word.
    pub fn outcome<T>(result: &Result<T, Self>) -> Result<(u16, &str), &'static str> {
        match result {
            Ok(_) => Ok((200, "")),
            Err(Self::Status { code, reason, .. }) => Ok((*code, reason)),
            Err(Self::Unanswered { cause, .. }) => Err(cause),
        }
    }

    /// Whether the API answered with this status.
    pub fn is(&self, status: u16) -> bool {
        matches!(self, Self::Status { code, .. } if *code == status)
    }

    /// How long the API asked us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// One line, cut.
fn clean(text: &str) -> String {
    let text = text.trim();
    let cut = text.get(..text.floor_char_boundary(MAX_TEXT_BYTES)).unwrap_or(text);
    cut.chars()
        .flat_map(|c| if c.is_control() { c.escape_debug().collect::<Vec<_>>() } else { vec![c] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever the text is cut, no part of the token remains.
    #[test]
    fn a_quoted_token_is_hidden_before_the_text_is_cut() {
        let token = "canary".repeat(20);
        for before in (0..MAX_TEXT_BYTES + 10).step_by(7) {
            let text = format!("{}{token} is not valid", "x".repeat(before));
            let status = serde_json::json!({ "message": text, "reason": text }).to_string();
            for body in [&status, &text] {
                let error = ApiError::status(500, body.as_bytes(), None, Some(&token)).to_string();
                assert!(!error.contains("can"), "{before}: {error}");
            }
        }
        for no_secret in [None, Some("")] {
            let error = ApiError::status(500, b"as it is", None, no_secret).to_string();
            assert!(error.ends_with(": as it is"), "{error}");
        }
    }
}
