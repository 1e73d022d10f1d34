//! The order in which several addresses of one name are tried: RFC 6724's destination address selection.
//!
//! Without it an agent without IPv6 would spend a share of every dial on unreachable addresses. Implements rules 1 (usable), 2
//! (scope), 5 (label), 6 (precedence), 8 (smaller scope) and 10 (original order), with the RFC's default table. Rule 9, the
//! longest common prefix, is omitted, because it defeats round-robin DNS.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Sorts addresses by preference; the sort is stable.
pub fn by_preference(addresses: &mut [IpAddr]) {
    if addresses.len() > 1 {
        sort_with(addresses, source_of);
    }
}

/// Whether this machine has a route to the address.
pub fn has_route(address: IpAddr) -> bool {
    source_of(address).is_some()
}

fn sort_with(addresses: &mut [IpAddr], source_of: impl Fn(IpAddr) -> Option<IpAddr>) {
    addresses.sort_by_cached_key(|&address| {
        let source = source_of(address);
        let scope = scope(address);
        let (precedence, label) = policy(address);
        let same_scope = source.is_some_and(|source| self::scope(source) == scope);
        let same_label = source.is_some_and(|source| policy(source).1 == label);
        (source.is_none(), !same_scope, !same_label, Reverse(precedence), scope)
    });
}

/// The source address that the kernel would use, `None` without a route. Connecting a UDP socket sends nothing.
fn source_of(destination: IpAddr) -> Option<IpAddr> {
    let unspecified: IpAddr = match destination {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(unspecified, 0)).ok()?;
    socket.connect(SocketAddr::new(destination, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// RFC 4291 scopes, and RFC 6724's assignment of IPv4 to them (section 3.2).
fn scope(address: IpAddr) -> u8 {
    const LINK_LOCAL: u8 = 0x2;
    const SITE_LOCAL: u8 = 0x5;
    const GLOBAL: u8 = 0xe;
    match address {
        IpAddr::V4(ip) if ip.is_loopback() || ip.is_link_local() => LINK_LOCAL,
        IpAddr::V6(ip) if ip.is_multicast() => ip.octets()[1] & 0xf,
        IpAddr::V6(ip) if ip.is_loopback() || ip.is_unicast_link_local() => LINK_LOCAL,
        IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfec0 => SITE_LOCAL,
        _ => GLOBAL,
    }
}

/// (precedence, label) of RFC 6724's default policy table (section 2.1).
fn policy(address: IpAddr) -> (u8, u8) {
    let IpAddr::V6(ip) = address.to_canonical() else { return (35, 4) };
    match ip.segments() {
        _ if ip.is_loopback() => (50, 0),
        [0, 0, 0, 0, 0, 0, ..] => (1, 3),
        [0x2002, ..] => (30, 2),
        [0x2001, 0, ..] => (5, 5),
        [first, ..] if first & 0xfe00 == 0xfc00 => (3, 13),
        [first, ..] if first & 0xffc0 == 0xfec0 => (1, 11),
        [0x3ffe, ..] => (1, 12),
        _ => (40, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(addresses: &[&str], source_of: impl Fn(IpAddr) -> Option<IpAddr>) -> Vec<String> {
        let mut addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        sort_with(&mut addresses, source_of);
        addresses.iter().map(ToString::to_string).collect()
    }

    fn v6() -> Option<IpAddr> {
        Some("2001:db8:1::5".parse().unwrap())
    }

    fn v4() -> Option<IpAddr> {
        Some("10.0.0.5".parse().unwrap())
    }

    #[test]
    fn an_address_without_a_route_comes_last() {
        let only_v4 = |address: IpAddr| if address.is_ipv4() { v4() } else { None };
        assert_eq!(sorted(&["2001:db8::1", "10.0.0.1"], only_v4), ["10.0.0.1", "2001:db8::1"]);
    }

    #[test]
    fn global_ipv6_goes_before_ipv4_and_ties_keep_their_order() {
        let both = |address: IpAddr| if address.is_ipv4() { v4() } else { v6() };
        let given = ["10.0.0.2", "10.0.0.1", "2001:db8::2", "2001:db8::1"];
        assert_eq!(sorted(&given, both), ["2001:db8::2", "2001:db8::1", "10.0.0.2", "10.0.0.1"]);
    }

    #[test]
    fn a_foreign_label_loses() {
        let both = |address: IpAddr| if address.is_ipv4() { v4() } else { v6() };
        assert_eq!(sorted(&["fd00::1", "10.0.0.1"], both), ["10.0.0.1", "fd00::1"]);
    }
}
