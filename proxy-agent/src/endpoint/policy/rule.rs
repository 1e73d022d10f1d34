//! A destination rule: `HOST[:PORTS]`.
#![deny(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use net::host_port;

/// A host with a range of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationRule {
    host: Host,
    ports: RangeInclusive<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Any,
    Network(IpNet),
    /// Lower case, without a trailing dot.
    Name(String),
    /// A suffix that begins with a dot; at least one label of any text precedes it.
    Below(String),
}

const NO_HOST: &str = "it names no host; * is any host";
const PORT: &str = "its port must be a number or FROM-TO";
const NETWORK: &str = "it is no network (ADDRESS/BITS, IPv6 in brackets before a port)";
const STAR: &str = "a * stands alone, or for what comes before a name: *.example.com";
const NAME: &str = "its host is neither an address, nor a network, nor a name";

impl DestinationRule {
    /// Parses `HOST[:PORTS]`: the host is an address, a network (`10.0.0.0/8`, `[fd00::/8]`), a name, `*.NAME` or `*`; the
    /// ports are one port, or `FROM-TO`.
    ///
    /// # Errors
    /// Why the text is not a rule.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (host, ports) = host_port::split_lenient(text).ok_or(NETWORK)?;
        let ports = ports.map_or(Ok(0..=u16::MAX), parse_ports)?;
        Ok(Self { host: parse_host(host)?, ports })
    }

    /// Whether the rule matches this address and port, to which `name` resolved.
    pub(super) fn matches(&self, name: Option<&str>, ip: IpAddr, port: u16) -> bool {
        let by_name = |fits: &dyn Fn(&str) -> bool| {
            name.is_some_and(|name| fits(&name.trim_end_matches('.').to_ascii_lowercase()))
        };
        self.ports.contains(&port)
            && match &self.host {
                Host::Any => true,
                Host::Network(network) => network.contains(&ip),
                Host::Name(own) => by_name(&|name| name == own),
                Host::Below(suffix) => by_name(&|name| name.len() > suffix.len() && name.ends_with(suffix)),
            }
    }

    /// Whether the rule covers only addresses of this network.
    pub(super) fn is_within(&self, network: &IpNet) -> bool {
        matches!(&self.host, Host::Network(own) if network.contains(own))
    }
}

fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten().ok_or(PORT)
    };
    let (from, to) = match text.split_once('-') {
        Some((from, to)) => (number(from)?, number(to)?),
        None => (number(text)?, number(text)?),
    };
    if from > to { Err(PORT) } else { Ok(from..=to) }
}

fn parse_host(text: &str) -> Result<Host, &'static str> {
    if text == "*" {
        return Ok(Host::Any);
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(Host::Network(ip.to_canonical().into()));
    }
    if text.contains('/') {
        let network: IpNet = text.parse().map_err(|_| NETWORK)?;
        return Ok(Host::Network(unmapped(network).trunc()));
    }
    let (below, name) = match text.strip_prefix("*.") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    match name.as_str() {
        "" => Err(NO_HOST),
        _ if name.contains('*') => Err(STAR),
        _ if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) => Err(NAME),
        _ if below => Ok(Host::Below(format!(".{name}"))),
        _ => Ok(Host::Name(name)),
    }
}

/// Converts a network of IPv4-mapped addresses to IPv4, because addresses are compared as IPv4.
fn unmapped(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        (IpAddr::V4(ip), Some(bits)) if network.addr().is_ipv6() => {
            IpNet::new(ip.into(), bits).unwrap_or(network)
        }
        _ => network,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rules_are_read() {
        let network = |text: &str| Host::Network(text.parse().unwrap());
        let rows = [
            ("*", Host::Any, 0..=u16::MAX),
            ("*:22", Host::Any, 22..=22),
            ("10.0.0.1", network("10.0.0.1/32"), 0..=u16::MAX),
            ("10.0.0.9/8:8000-9000", network("10.0.0.0/8"), 8000..=9000),
            ("::1", network("::1/128"), 0..=u16::MAX),
            ("fd00::/8", network("fd00::/8"), 0..=u16::MAX),
            ("[fd00::/8]:443", network("fd00::/8"), 443..=443),
            ("[::ffff:10.0.0.0/104]:1", network("10.0.0.0/8"), 1..=1),
            ("::ffff:10.0.0.1", network("10.0.0.1/32"), 0..=u16::MAX),
            ("DB.example.:5432", Host::Name("db.example".into()), 5432..=5432),
            ("*.Example", Host::Below(".example".into()), 0..=u16::MAX),
        ];
        for (text, host, ports) in rows {
            let rule = DestinationRule::parse(text).unwrap();
            assert_eq!((rule.host.clone(), rule.ports.clone()), (host, ports), "{text}");
        }
    }

    #[test]
    fn invalid_rules_name_the_reason() {
        let rows = [
            ("", NO_HOST),
            (":80", NO_HOST),
            ("a:", PORT),
            ("a:http", PORT),
            ("a:9-8", PORT),
            ("a:70000", PORT),
            ("a:+1", PORT),
            ("10.0.0.0/33", NETWORK),
            ("[fd00::", NETWORK),
            ("[::1]80", NETWORK),
            ("a.*.b", STAR),
            ("a b", NAME),
            ("a::b::c", NAME),
        ];
        for (text, error) in rows {
            assert_eq!(DestinationRule::parse(text), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "[-0-9a-f:.*/\\[\\]%]{0,24}", name in "\\PC{0,12}") {
            if let Ok(rule) = DestinationRule::parse(&text) {
                let _ = rule.matches(Some(&name), "10.0.0.1".parse().unwrap(), 1);
            }
        }
    }
}
