//! A URL query, as Go's `url.ParseQuery` reads it.

use percent_encoding::percent_decode_str;

/// Why a text is no query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryError {
    /// A semicolon, which older query syntax used between pairs.
    Semicolon,
    /// A `%` without two hexadecimal digits, with what follows it.
    Escape(String),
}

/// Keys and decoded values in order; keys may repeat. Empty pairs are skipped. Invalid UTF-8 becomes replacement characters.
pub fn pairs(text: &str) -> impl Iterator<Item = Result<(String, String), QueryError>> {
    text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        if pair.contains(';') {
            return Err(QueryError::Semicolon);
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((unescape(key)?, unescape(value)?))
    })
}

/// Decodes `%XX`, and `+` for a space.
fn unescape(text: &str) -> Result<String, QueryError> {
    let digits = |rest: &str| rest.chars().take(2).collect::<String>();
    let is_escape =
        |digits: &String| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    match text.split('%').skip(1).map(digits).find(|digits| !is_escape(digits)) {
        Some(digits) => Err(QueryError::Escape(format!("%{digits}"))),
        None => Ok(percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()),
    }
}
