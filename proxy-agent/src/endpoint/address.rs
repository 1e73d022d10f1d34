//! The destination of a dial request: protocol, host and port. Never resolves a host name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use net::host_port::split;

use super::error::{DialError, Failure};

/// The protocols that an agent dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Network {
    /// IPv4 or IPv6.
    Tcp,
    /// IPv4 only.
    Tcp4,
    /// IPv6 only.
    Tcp6,
}

impl Network {
    /// Parses a DIAL_REQ's protocol; case-sensitive, as in Go.
    pub fn parse(protocol: &str) -> Result<Self, DialError> {
        let known = [Self::Tcp, Self::Tcp4, Self::Tcp6].into_iter().find(|known| known.name() == protocol);
        known.ok_or_else(|| {
            let (network, failure) = (protocol.to_owned(), Failure::UnknownNetwork(protocol.to_owned()));
            DialError { network, address: String::new(), failure }
        })
    }

    /// The name, as in a DIAL_REQ and in error texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tcp4 => "tcp4",
            Self::Tcp6 => "tcp6",
        }
    }

    /// Whether an address of this family may be dialed.
    pub fn admits(self, ip: IpAddr) -> bool {
        match self {
            Self::Tcp => true,
            Self::Tcp4 => ip.is_ipv4(),
            Self::Tcp6 => ip.is_ipv6(),
        }
    }
}

/// The host of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// An empty host: this machine.
    Empty,
    /// An address literal; IPv4-mapped addresses are already unmapped.
    Ip {
        /// The address.
        ip: IpAddr,
        /// An IPv6 zone: the name or number of an interface. `None` for IPv4.
        zone: Option<String>,
    },
    /// A name to look up.
    Name(String),
}

/// A parsed `host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port; 0 is valid here, but no system connects to it.
    pub port: u16,
}

impl Target {
    /// Parses a DIAL_REQ's address. The port is a number, which may have leading zeros and a `+`: no client of a tunnel sends
    /// service names.
    pub fn parse(network: Network, address: &str) -> Result<Self, DialError> {
        let parsed = match split(address) {
            Some((_, Some(port))) if port.contains(':') => {
                Err(format!("{address}: too many colons in address"))
            }
            Some((host, Some(port))) => {
                port.parse().map(|port| (host, port)).map_err(|_| format!("{port}: invalid port"))
            }
            Some((_, None)) => Err(format!("{address}: missing port in address")),
            None => Err(format!("{address}: it is not HOST:PORT")),
        };
        let (host, port) = parsed.map_err(|why| DialError::new(network, "", Failure::Address(why)))?;
        Ok(Self { host: parse_host(host), port })
    }
}

fn parse_host(host: &str) -> Host {
    if host.is_empty() {
        return Host::Empty;
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Host::Ip { ip: ip.to_canonical(), zone: None };
    }
    if let Some((ip, zone)) = host.split_once('%')
        && let Ok(ip) = ip.parse::<Ipv6Addr>()
        && !zone.is_empty()
    {
        // The parser above does not recognize an IPv4-mapped address with a zone, and a zone is meaningless for IPv4.
        let ip = IpAddr::V6(ip).to_canonical();
        return Host::Ip { ip, zone: ip.is_ipv6().then(|| zone.to_owned()) };
    }
    Host::Name(host.to_owned())
}

/// The address that the kernel connects to: loopback for the unspecified addresses, in every notation.
///
/// The kernel connects those to loopback; replacing them before the policy check ensures that the policy sees the real
/// destination.
pub(super) fn this_machine(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(address: &str) -> Result<Target, String> {
        Target::parse(Network::Tcp, address).map_err(|error| error.to_string())
    }

    fn ip(address: &str, port: u16) -> Result<Target, String> {
        Ok(Target { host: Host::Ip { ip: address.parse().unwrap(), zone: None }, port })
    }

    #[test]
    fn other_texts_than_host_and_port_are_refused() {
        for (address, error) in [
            ("", ": missing port in address"),
            ("127.0.0.1", "127.0.0.1: missing port in address"),
            ("[::1]", "[::1]: missing port in address"),
            ("[::1]9", "[::1]9: it is not HOST:PORT"),
            ("::1:9", "::1:9: too many colons in address"),
            ("[::1]:9:9", "[::1]:9:9: too many colons in address"),
            ("[::1:9", "[::1:9: it is not HOST:PORT"),
            ("127.0.0.1:65536", "65536: invalid port"),
            ("127.0.0.1:99999999999", "99999999999: invalid port"),
            ("127.0.0.1:-1", "-1: invalid port"),
            ("127.0.0.1:", ": invalid port"),
            ("127.0.0.1:nope", "nope: invalid port"),
            ("x y:nope", "nope: invalid port"),
        ] {
            assert_eq!(parse(address), Err(format!("dial tcp: address {error}")), "{address}");
        }
    }

    #[test]
    fn hosts_and_ports_are_read_as_in_go() {
        assert_eq!(parse("127.0.0.1:80"), ip("127.0.0.1", 80));
        assert_eq!(parse("[127.0.0.1]:00080"), ip("127.0.0.1", 80));
        assert_eq!(parse("127.0.0.1:+9"), ip("127.0.0.1", 9));
        assert_eq!(parse("[::1]:9"), ip("::1", 9));
        assert_eq!(parse("[::ffff:10.0.0.1]:9"), ip("10.0.0.1", 9), "IPv4-mapped is IPv4");
        assert_eq!(parse(":9"), Ok(Target { host: Host::Empty, port: 9 }));
        assert_eq!(parse("[]:9"), Ok(Target { host: Host::Empty, port: 9 }));
        assert_eq!(parse("a.b:443"), Ok(Target { host: Host::Name("a.b".into()), port: 443 }));
        for name in ["127.0.0.1%lo", "a[b]", "a]b"] {
            assert_eq!(parse(&format!("{name}:9")).unwrap().host, Host::Name(name.into()));
        }
        let zone = Some("eth0".to_owned());
        assert_eq!(
            parse("[fe80::1%eth0]:9").unwrap().host,
            Host::Ip { ip: "fe80::1".parse().unwrap(), zone }
        );
        assert_eq!(parse("[::ffff:10.0.0.1%eth0]:9"), ip("10.0.0.1", 9), "IPv4 has no zones");
    }

    #[test]
    fn the_unspecified_addresses_are_loopback_in_every_form() {
        for (asked, connected) in [
            ("0.0.0.0", "127.0.0.1"),
            ("::ffff:0.0.0.0", "127.0.0.1"),
            ("::", "::1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("fe80::1", "fe80::1"),
        ] {
            assert_eq!(this_machine(asked.parse().unwrap()), connected.parse::<IpAddr>().unwrap(), "{asked}");
        }
    }

    #[test]
    fn only_tcp_is_dialed() {
        for refused in ["unix", "udp", "TCP", "tcp5", "", "ip:1"] {
            assert!(Network::parse(refused).is_err(), "{refused}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(address in ".*") {
            let _ = Target::parse(Network::Tcp, &address);
        }
    }
}
