//! The order in which several addresses of one name are tried: RFC 6724's, as far as it concerns the addresses of today.
//!
//! Without it an agent without IPv6 would spend a share of every dial on unreachable addresses. IPv6 comes before IPv4, except
//! from or to a local address: such a destination is often out of reach although it has a route. From a local address a local one
//! comes before a global one.

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
    let is_local =
        |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unique_local() || ip.is_unicast_link_local());
    addresses.sort_by_cached_key(|&address| {
        let source = source_of(address);
        let mismatch = source.is_some_and(|source| is_local(source) != is_local(address));
        (source.is_none(), mismatch, is_local(address), address.is_ipv4())
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
    fn ipv4_goes_before_ipv6_from_or_to_a_local_address() {
        let both = |address: IpAddr| if address.is_ipv4() { v4() } else { v6() };
        assert_eq!(sorted(&["fd00::1", "10.0.0.1"], both), ["10.0.0.1", "fd00::1"]);
        let local = |address: IpAddr| if address.is_ipv4() { v4() } else { "fd00::5".parse().ok() };
        assert_eq!(sorted(&["2001:db8::1", "10.0.0.1"], local), ["10.0.0.1", "2001:db8::1"]);
        assert_eq!(sorted(&["2001:db8::1", "fd00::1"], local), ["fd00::1", "2001:db8::1"]);
    }
}
