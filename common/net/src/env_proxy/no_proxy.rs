//! `NO_PROXY`: servers that are dialed directly.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::host_port;

/// The exemptions. `localhost` and loopback addresses are always exempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoProxy(Vec<Rule>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Everything,
    /// Addresses in a network, on any port; or one address, maybe on one port only.
    Network(IpNet, Option<String>),
    /// Names that end in `.suffix`, and `suffix` itself unless the entry began with a dot or `*.`.
    Domain {
        /// With its leading dot, in lower case.
        suffix: String,
        bare: bool,
        port: Option<String>,
    },
}

impl NoProxy {
    /// Parses a comma-separated list of `*`, addresses, networks and domains, all but networks with an optional port.
    /// An invalid entry never matches.
    pub fn parse(text: &str) -> Self {
        Self(text.split(',').filter_map(|entry| rule(&entry.trim().to_lowercase())).collect())
    }

    /// True if `host` (a name, or an address with or without brackets) is dialed directly.
    pub fn exempts(&self, host: &str, port: u16) -> bool {
        let host = host_port::unbracketed(host);
        // As in Go, the zone of an IPv6 address does not matter.
        let address = host.split_once('%').map_or(host, |(address, _)| address);
        let ip = address.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
        let (name, port) = (host.to_lowercase(), port.to_string());
        // As in Go: exactly this name, in lower case.
        host == "localhost"
            || ip.is_some_and(|ip| ip.is_loopback())
            || self.0.iter().any(|rule| rule.matches(&name, ip, &port))
    }
}

impl Rule {
    fn matches(&self, name: &str, ip: Option<IpAddr>, port: &str) -> bool {
        let right_port = |wanted: &Option<String>| wanted.as_ref().is_none_or(|wanted| wanted == port);
        match self {
            Self::Everything => true,
            Self::Network(network, port) => ip.is_some_and(|ip| network.contains(&ip)) && right_port(port),
            Self::Domain { suffix, bare, port } => {
                let same = *bare && suffix.strip_prefix('.') == Some(name);
                ip.is_none() && (same || name.ends_with(suffix.as_str())) && right_port(port)
            }
        }
    }
}

fn rule(entry: &str) -> Option<Rule> {
    if entry == "*" {
        return Some(Rule::Everything);
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return Some(Rule::Network(network, None));
    }
    // As in Go: brackets without a port are not removed.
    let (host, port) = match host_port::split_lenient(entry) {
        Some(split @ (_, Some(_))) => split,
        _ => (entry, None),
    };
    let port = port.filter(|port| !port.is_empty()).map(str::to_owned);
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Some(Rule::Network(ip.to_canonical().into(), port));
    }
    let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
    if host.is_empty() {
        return None;
    }
    let bare = !host.starts_with('.');
    let suffix = if bare { format!(".{host}") } else { host.to_owned() };
    Some(Rule::Domain { suffix, bare, port })
}
