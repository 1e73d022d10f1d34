//! The hosts and networks that an agent announces: the metadata value `agentIdentifiers` of a Connect.
//!
//! The value is a URL query (`host=node-1&ipv4=10.0.0.7&default-route=true`) and follows Go's `url.ParseQuery`, which Go's
//! programs use to write and read it. This module checks syntax and size only; it never decides whether an agent may make a
//! claim.
#![deny(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use ipnet::IpNet;
use net::query::pairs;

use crate::limits::{MAX_IDENTIFIER_BYTES, MAX_IDENTIFIERS};

/// The identifiers of one agent stream, without repetitions.
///
/// Intended differences from the Go server: a value that is not UTF-8 is kept with replacement characters (it matches no real
/// host, and an error would refuse an agent that Go admits), and `cidr` values are parsed, because this server routes by them
/// (see [`crate::backends`]). An invalid `cidr` value is ignored, as Go ignores all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identifiers {
    /// The values of `ipv4`, `ipv6` and `host`: texts that are compared with a target's host byte by byte. As in Go, the three
    /// keys share one name space.
    pub hosts: Vec<Arc<str>>,
    /// The values of `cidr`, host bits cleared.
    pub networks: Vec<IpNet>,
    /// Whether the first `default-route` is true (`1`, `t`, `T`, `TRUE`, `true`, `True`; any other value is false).
    pub default_route: bool,
    /// The first `zone` that is not empty: an extension of ours, which Go agents refuse to announce.
    pub zone: Option<Arc<str>>,
}

impl Identifiers {
    /// Parses the metadata value. Unknown keys are ignored, so that newer agents can send more.
    ///
    /// Empty values are kept, because Go counts them as a destHost backend, which affects readiness. They never match.
    ///
    /// # Errors
    /// The text with which the Connect fails: a syntax error that Go refuses as well, more than [`MAX_IDENTIFIERS`], or a value
    /// above [`MAX_IDENTIFIER_BYTES`].
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut found = Self::default();
        let mut default_route = None;
        for pair in pairs(text) {
            let (key, value) = pair.map_err(|error| format!("agentIdentifiers: {error}"))?;
            match key.as_str() {
                "ipv4" | "ipv6" | "host" => found.add_host(&value)?,
                "cidr" => found.add_network(&value)?,
                "default-route" => {
                    default_route
                        .get_or_insert(matches!(&*value, "1" | "t" | "T" | "TRUE" | "true" | "True"));
                }
                "zone" if found.zone.is_none() && !value.is_empty() => {
                    found.check(&value)?;
                    found.zone = Some(value.into());
                }
                _ => {}
            }
        }
        found.default_route = default_route.unwrap_or(false);
        Ok(found)
    }

    fn add_host(&mut self, value: &str) -> Result<(), String> {
        self.check(value)?;
        if self.hosts.iter().all(|host| **host != *value) {
            self.hosts.push(value.into());
        }
        Ok(())
    }

    fn add_network(&mut self, value: &str) -> Result<(), String> {
        self.check(value)?;
        if let Ok(network) = value.parse::<IpNet>().map(|network| network.trunc())
            && !self.networks.contains(&network)
        {
            self.networks.push(network);
        }
        Ok(())
    }

    fn check(&self, value: &str) -> Result<(), String> {
        if value.len() > MAX_IDENTIFIER_BYTES {
            return Err(format!(
                "agentIdentifiers: an identifier is longer than {MAX_IDENTIFIER_BYTES} bytes"
            ));
        }
        if self.hosts.len() + self.networks.len() >= MAX_IDENTIFIERS {
            return Err(format!("agentIdentifiers: more than {MAX_IDENTIFIERS} identifiers, announce fewer"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(found: &Identifiers) -> Vec<&str> {
        found.hosts.iter().map(|h| &**h).collect()
    }

    #[test]
    fn reads_every_key_and_repetitions_once() {
        let found = Identifiers::parse(
            "host=localhost&host=node1.mydomain.com&cidr=10.0.0.9/8&cidr=100::/64&ipv4=1.2.3.4&host=1.2.3.4\
             &ipv6=100::&ipv6=100::1&default-route=true&uid=x&rack=r1",
        )
        .unwrap();
        assert_eq!(hosts(&found), ["localhost", "node1.mydomain.com", "1.2.3.4", "100::", "100::1"]);
        assert_eq!(found.networks, ["10.0.0.0/8".parse().unwrap(), "100::/64".parse().unwrap()]);
        assert!(found.default_route);
    }

    #[test]
    fn the_first_default_route_counts() {
        for (text, want) in [
            ("default-route=true&default-route=false", true),
            ("default-route=false&default-route=true", false),
            ("default-route=yes&default-route=true", false),
            ("default-route", false),
            ("default-route=T", true),
            ("default-route=tRue", false),
            ("Default-Route=true", false),
        ] {
            assert_eq!(Identifiers::parse(text).unwrap().default_route, want, "{text}");
        }
    }

    #[test]
    fn unescapes_as_a_query() {
        let found = Identifiers::parse("%68ost=a%2eb+c&&host=%ff&host=a=b&ipv4=").unwrap();
        assert_eq!(hosts(&found), ["a.b c", "\u{fffd}", "a=b", ""]);
        assert_eq!(Identifiers::parse(""), Ok(Identifiers::default()));
        assert_eq!(Identifiers::parse("cidr=nonsense").unwrap().networks, []);
    }

    #[test]
    fn rejects_like_go() {
        for text in [";", "unknown=%"] {
            assert!(Identifiers::parse(text).unwrap_err().contains("invalid"), "{text}");
        }
    }

    #[test]
    fn holds_its_limits() {
        let of = |n: usize| (0..n).map(|i| format!("host=h{i}")).collect::<Vec<_>>().join("&");
        assert_eq!(Identifiers::parse(&of(MAX_IDENTIFIERS)).unwrap().hosts.len(), MAX_IDENTIFIERS);
        assert!(Identifiers::parse(&of(MAX_IDENTIFIERS + 1)).unwrap_err().contains("more than 256"));
        let long = format!("host={}", "x".repeat(MAX_IDENTIFIER_BYTES + 1));
        assert!(Identifiers::parse(&long).unwrap_err().contains("longer than 512"));
        assert!(Identifiers::parse(&format!("note={}", "x".repeat(9_000))).is_ok());
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}") {
            let _ = Identifiers::parse(&text);
        }

        #[test]
        fn an_escaped_value_comes_back(value in "\\PC{1,60}") {
            let escaped: String = value.bytes().map(|b| format!("%{b:02X}")).collect();
            let found = Identifiers::parse(&format!("host={escaped}")).unwrap();
            prop_assert_eq!(hosts(&found), [value.as_str()]);
        }
    }
}
