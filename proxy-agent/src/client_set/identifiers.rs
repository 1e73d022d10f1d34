//! Identifiers of an agent: a URL query with six known keys.
//!
//! The agent checks that servers can parse the text and that its values can match, and sends it unchanged. A server matches
//! addresses as text, so an IPv6 address may be an `ipv4`. Source: Go's `url.ParseQuery`, and the Go agent, which refuses unknown
//! keys and accepts all values; `zone` is ours, and Go servers ignore it.

use std::net::IpAddr;

use flags::go::boolean;
use ipnet::IpNet;
use net::query::pairs;

/// Largest number of pairs, as in Go; empty pairs count.
const MAX_PAIRS: usize = 10_000;

/// The keys that servers know.
const KEYS: [&str; 6] = ["ipv4", "ipv6", "host", "cidr", "default-route", "zone"];

/// Checks the flag's value; an empty text has no identifiers.
///
/// # Errors
/// Why servers cannot use the text, or that no target matches any of its values. If only some match nothing, the agent starts, as
/// Go's does, and [`unmatched`] tells them.
pub(crate) fn check(text: &str) -> Result<(), String> {
    if text.split('&').count() > MAX_PAIRS {
        return Err(format!("there are more than {MAX_PAIRS} pairs"));
    }
    let mut values = Vec::new();
    for pair in pairs(text) {
        let (key, value) = pair.map_err(|error| {
            format!("{error}; pairs are joined by &, a semicolon is written %3B, and a percent sign %25")
        })?;
        if !KEYS.contains(&&*key) {
            let keys = "host, ipv4, ipv6, cidr, default-route and zone";
            return Err(format!("unknown key {key:?}; the keys are {keys}"));
        }
        values.push(useless(&key, &value));
    }
    let all_useless: Option<Vec<_>> = values.into_iter().collect();
    let first = all_useless.into_iter().flatten().find(|useless| !useless.by_variable);
    first.map_or(Ok(()), |first| Err(first.text))
}

/// What is wrong with the values of a valid text that match no target, each kind once.
pub(crate) fn unmatched(text: &str) -> Vec<String> {
    let useless = pairs(text).flatten().filter_map(|(key, value)| useless(&key, &value));
    let mut texts = Vec::new();
    for Useless { text, .. } in useless {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

/// A value that matches no target.
struct Useless {
    /// It may come from a variable of the pod: `status.hostIPs` is a list, and a family may be missing.
    by_variable: bool,
    text: String,
}

fn useless(key: &str, value: &str) -> Option<Useless> {
    let by_variable = |text: &str| Some(Useless { by_variable: true, text: text.to_owned() });
    if value.contains('$') {
        return by_variable("a variable that nothing expanded, which matches no target");
    }
    if value.is_empty() {
        return by_variable("an empty value, which matches no target");
    }
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    // The three keys share one name space, so that a name matches by each of them.
    let is_name =
        || value.contains(|char: char| char.is_ascii_alphabetic()) && !value.contains([':', '/', ',', ' ']);
    let (matches, fix) = match key {
        "ipv4" | "ipv6" if value.contains(',') && value.split(',').all(is_address) => {
            return by_variable(
                "a list of addresses, which matches no target; write ipv4=ADDRESS&ipv6=ADDRESS",
            );
        }
        "ipv4" => (is_address(value) || is_name(), "ipv4=ADDRESS, such as ipv4=10.0.0.1"),
        "ipv6" => (is_address(value) || is_name(), "ipv6=ADDRESS, such as ipv6=fd00::1"),
        "cidr" => (value.parse::<IpNet>().is_ok(), "cidr=BLOCK, such as cidr=10.0.0.0/16"),
        "default-route" => (boolean(value).is_ok(), "default-route=true"),
        _ => (true, ""),
    };
    (!matches).then(|| Useless {
        by_variable: false,
        text: format!("{key}={value}, which matches no target; write {fix}"),
    })
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
            check(text).unwrap();
        }
    }

    #[test]
    fn rejects_like_go() {
        for (text, error) in [
            ("uid=1", "unknown key \"uid\""),
            ("Host=a", "unknown key \"Host\""),
            (" host=a", "unknown key \" host\""),
            ("=a", "unknown key \"\""),
            ("host=a;ipv4=b", "invalid semicolon separator in query; pairs are joined by &"),
            ("host=%zz1", "invalid URL escape \"%zz\""),
        ] {
            assert!(check(text).unwrap_err().starts_with(error), "{text}");
        }
        assert!(check(&"&".repeat(9_999)).is_ok());
        assert!(check(&"&".repeat(10_000)).unwrap_err().contains("more than 10000 pairs"));
    }

    #[test]
    fn an_agent_that_no_target_matches_does_not_start() {
        for (text, fix) in [
            ("ipv4=1.2.3", "ipv4=10.0.0.1"),
            ("ipv6=:::::", "ipv6=fd00::1"),
            ("cidr=10.0.0.0/40", "cidr=10.0.0.0/16"),
            ("cidr=10.0.0.1", "cidr=10.0.0.0/16"),
            ("ipv4=10.0.0.1/32", "ipv4=10.0.0.1"),
            ("ipv6=[fd00::1]", "ipv6=fd00::1"),
            ("default-route=yes", "default-route=true"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains("matches no target") && error.ends_with(fix), "{text}: {error}");
            let beside = format!("{text}&host=a");
            check(&beside).unwrap();
            assert_eq!(unmatched(&beside), [&*error], "the agent is of use by its name");
        }
        for text in [
            "ipv4=localhost",
            "ipv4=fd00::1",
            "ipv6=1.2.3.4",
            "ipv6=",
            "host",
            "default-route=f",
            "cidr=::/0",
            "zone=",
        ] {
            check(text).unwrap();
        }
    }

    #[test]
    fn each_kind_of_variable_is_told_once() {
        assert_eq!(unmatched("ipv4=$A&ipv6=&host=$B").len(), 2);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(host|ipv4)?=?[%a-f0-9;&+\\PC]{0,30}") {
            let _ = check(&text);
        }
    }
}
