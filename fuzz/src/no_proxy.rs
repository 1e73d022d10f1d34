//! NO_PROXY and proxy addresses: an entry has the same effect at any position of the list, an exempt host never gets a
//! proxy, and an accepted proxy address can be dialed.

use std::net::IpAddr;

use ipnet::IpNet;
use net::env_proxy::{EnvProxy, NoProxy, Proxy};

/// Three lines: NO_PROXY, the host, HTTPS_PROXY. The first two bytes are the port.
pub fn no_proxy(data: &[u8]) {
    let Some((port, text)) = data.split_first_chunk::<2>() else { return };
    let (port, text) = (u16::from_be_bytes(*port), String::from_utf8_lossy(text));
    let mut lines = text.split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let (list, host, proxy) = (line(), line(), line());
    entries_count_alone(list, host, port);
    addresses_count_by_value(list, host, port);
    for proxy in [Proxy::parse("HTTPS_PROXY", proxy), Proxy::parse_for_http("HTTPS_PROXY", proxy)]
        .into_iter()
        .flatten()
    {
        assert!(proxy.port > 0 && !proxy.host.contains(['[', ']', '/', '@']), "{proxy}");
    }
    let lookup = |name: &str| match name {
        "HTTPS_PROXY" => Some(proxy.to_owned()),
        "NO_PROXY" => Some(list.to_owned()),
        _ => None,
    };
    if let Ok(Some(_)) = EnvProxy::for_grpc(lookup).proxy_for(host, port) {
        assert!(!NoProxy::parse(list).exempts(host, port), "{list:?} spares {host:?}, and a proxy is used");
    }
}

fn entries_count_alone(list: &str, host: &str, port: u16) {
    let exempt = NoProxy::parse(list).exempts(host, port);
    let by_one = list.split(',').any(|entry| NoProxy::parse(entry).exempts(host, port));
    assert_eq!(exempt, by_one || NoProxy::parse("").exempts(host, port), "{list:?} and {host:?}");
    let backwards = list.split(',').rev().collect::<Vec<_>>().join(",");
    assert_eq!(NoProxy::parse(&backwards).exempts(host, port), exempt, "{backwards:?} and {host:?}");
}

/// A list with one network matches an address by value, however the address is written.
fn addresses_count_by_value(list: &str, host: &str, port: u16) {
    let (Ok(network), Ok(ip)) = (list.parse::<IpNet>(), host.parse::<IpAddr>()) else { return };
    let rules = NoProxy::parse(list);
    let bracketed = format!("[{host}]");
    assert_eq!(rules.exempts(&bracketed, port), rules.exempts(host, port), "{list:?} and {host:?}");
    if network.contains(&ip) && ip.to_canonical() == ip {
        assert!(rules.exempts(host, port), "{list:?} does not spare {host:?}");
    }
}
