//! Identifiers of an agent: a URL query with six known keys.
//!
//! The agent checks that servers can parse the text and that its values can match, and sends it unchanged. A server matches
//! addresses as text, so an IPv6 address may be an `ipv4`. Source: Go's `url.ParseQuery`, and the Go agent, which refuses unknown
//! keys and accepts all values; `zone` is ours, and Go servers ignore it.

use std::net::IpAddr;

use ipnet::IpNet;
use net::query::{QueryError, pairs};

/// Largest number of pairs, as in Go; empty pairs count.
const MOST_PAIRS: usize = 10_000;

/// The keys that servers know.
const KEYS: [&str; 6] = ["ipv4", "ipv6", "host", "cidr", "default-route", "zone"];

/// Valid identifiers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identifiers {
    text: String,
}

/// Why a text is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentifierError {
    /// A key that servers do not know.
    #[error("unknown key {0:?}; the keys are host, ipv4, ipv6, cidr, default-route and zone")]
    UnknownKey(String),
    /// A semicolon, or a `%` without two hexadecimal digits.
    #[error("{0}; pairs are joined by &, a semicolon is written %3B, and a percent sign %25")]
    Syntax(#[from] QueryError),
    /// A value that no server matches with any target.
    #[error("{key}={value} matches no target; write {fix}")]
    NeverMatches {
        /// The key.
        key: String,
        /// The decoded value.
        value: String,
        /// A valid value.
        fix: &'static str,
    },
    /// More pairs than Go accepts.
    #[error("there are more than {MOST_PAIRS} pairs")]
    TooMany,
}

impl Identifiers {
    /// Parses the flag's value; an empty text has no identifiers.
    pub fn parse(text: &str) -> Result<Self, IdentifierError> {
        if text.split('&').count() > MOST_PAIRS {
            return Err(IdentifierError::TooMany);
        }
        for pair in pairs(text) {
            let (key, value) = pair?;
            check(key, value)?;
        }
        Ok(Self { text: text.to_owned() })
    }

    /// The original text, for the metadata of a Connect.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Refuses a value that matches no target. An empty value, one with a variable that nothing expanded, and a list of addresses are
/// accepted: they come from variables of the pod (`status.hostIPs` is a list), and Go's agent starts with them.
fn check(key: String, value: String) -> Result<(), IdentifierError> {
    if !KEYS.contains(&key.as_str()) {
        return Err(IdentifierError::UnknownKey(key));
    }
    const BOOLEANS: [&str; 12] =
        ["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"];
    let addresses = || value.split(',').all(|part| part.parse::<IpAddr>().is_ok());
    let (matches, fix) = match key.as_str() {
        "ipv4" => (addresses(), "ipv4=ADDRESS, such as ipv4=10.0.0.1"),
        "ipv6" => (addresses(), "ipv6=ADDRESS, such as ipv6=fd00::1"),
        "cidr" => (value.parse::<IpNet>().is_ok(), "cidr=BLOCK, such as cidr=10.0.0.0/16"),
        "default-route" => (BOOLEANS.contains(&value.as_str()), "default-route=true"),
        _ => (true, ""),
    };
    if matches || value.is_empty() || value.contains('$') {
        Ok(())
    } else {
        Err(IdentifierError::NeverMatches { key, value, fix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn accepts_like_go() {
        for text in [
            "",
            "&&",
            "ipv4=1.2.3.4&ipv4=5.6.7.8",
            "ipv6=1.2.3.4&cidr=127.0.0.1/16",
            "ipv4=${HOST_IP}",
            "ipv4=10.0.0.1,fd00::1",
            "default-route=true&",
            "h%6Fst=a%2eb+c=d",
        ] {
            assert_eq!(Identifiers::parse(text).unwrap().text(), text);
        }
    }

    #[test]
    fn rejects_like_go() {
        let unknown = |key: &str| IdentifierError::UnknownKey(key.to_owned());
        let table = [
            ("uid=1", unknown("uid")),
            ("Host=a", unknown("Host")),
            (" host=a", unknown(" host")),
            ("=a", unknown("")),
            ("host=a;ipv4=b", QueryError::Semicolon.into()),
            ("host=%zz1", QueryError::Escape("%zz".to_owned()).into()),
        ];
        for (text, error) in table {
            assert_eq!(Identifiers::parse(text), Err(error), "{text}");
        }
        assert!(Identifiers::parse(&"&".repeat(9_999)).is_ok());
        assert_eq!(Identifiers::parse(&"&".repeat(10_000)), Err(IdentifierError::TooMany));
    }

    #[test]
    fn values_that_match_no_target_are_refused() {
        for (text, fix) in [
            ("ipv4=1.2.3", "ipv4=10.0.0.1"),
            ("ipv6=:::::", "ipv6=fd00::1"),
            ("cidr=10.0.0.0/40", "cidr=10.0.0.0/16"),
            ("cidr=10.0.0.1", "cidr=10.0.0.0/16"),
            ("default-route=yes", "default-route=true"),
        ] {
            let error = Identifiers::parse(text).unwrap_err().to_string();
            assert!(error.contains("matches no target") && error.ends_with(fix), "{text}: {error}");
        }
        for text in ["ipv4=fd00::1", "ipv6=1.2.3.4", "ipv6=", "host", "default-route=f", "cidr=::/0", "zone="]
        {
            Identifiers::parse(text).unwrap();
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(host|ipv4)?=?[%a-f0-9;&+\\PC]{0,30}") {
            let _ = Identifiers::parse(&text);
        }
    }
}
