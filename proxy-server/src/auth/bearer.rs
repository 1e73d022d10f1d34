//! The bearer token in a Connect's metadata.

use std::fmt;

use http::HeaderMap;
use http::header::{AUTHORIZATION, Entry};

use super::Refused;

/// The prefix of the token; case-sensitive, as in Go.
const SCHEME: &str = "Bearer ";
/// The longest accepted token, in bytes. A service account token has about 1 KiB.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// See [`Refused::cause`].
const UNUSABLE_TOKEN: &str = "no usable token";

/// An agent's token. Neither `Debug` nor `Display` shows it.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The token's text, for the Kubernetes API only.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Removes the token from the metadata, so that no later code sees it. There must be exactly one value. The error texts are
/// Go's.
pub(super) fn take(metadata: &mut HeaderMap) -> Result<Token, Refused> {
    let refused = |why: &str| Err(Refused::unknown(UNUSABLE_TOKEN, why));
    let Entry::Occupied(entry) = metadata.entry(AUTHORIZATION) else {
        return refused("Authentication context was not found in metadata");
    };
    let (_, mut values) = entry.remove_entry_mult();
    let first = values.next();
    let more = values.count();
    let value = match first {
        Some(value) if more == 0 => value,
        _ => return refused(&format!("too many ({}) tokens are received", more + 1)),
    };
    let token = value.to_str().ok().and_then(|text| text.strip_prefix(SCHEME));
    let Some(token) = token else {
        return refused(&format!("received token does not have {SCHEME:?} prefix"));
    };
    if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
        return refused("Failed to validate authentication token, err:the token is empty or too long");
    }
    Ok(Token::new(token))
}
