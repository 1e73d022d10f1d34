//! The destinations that an agent may connect to.
//!
//! Only this module denies a dial. It is called with the resolved addresses, between the lookup and the connect, so that
//! exactly the checked addresses are connected to (a second lookup could answer differently). IPv4-mapped addresses are treated
//! as IPv4.
//!
//! The checks, in this order: link-local addresses and the metadata services of clouds are denied unless the operator has
//! allowed them; a destination that a rule of `--deny-destinations` matches is denied; if `--allow-destinations` has rules, a
//! destination that none of them matches is denied. A rule with a name matches the requested name, a rule with a network
//! matches the resolved address.
//!
//! The operator allows the whole first group by `--allow-cloud-metadata`, or a part of it by a rule of `--allow-destinations`
//! that covers nothing else: a link-local network for link-local addresses, the exact address for a metadata service. A wider
//! rule (`*`, `0.0.0.0/0`) or a name does not allow them: its author probably did not intend it, and the owner of a name
//! decides which address it resolves to.

mod rule;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

pub use rule::DestinationRule;

/// Networks that belong to the node itself: node-local caches, routing daemons, and future metadata services. Both are
/// link-local (RFC 3927, RFC 4291).
const LINK_LOCAL: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
];

/// Addresses at which clouds provide credentials and secrets to every process of a host. Sources: the clouds' documentation and
/// cloud-init.
const CLOUD_METADATA: [IpAddr; 17] = [
    // AWS, Azure, Google and most others.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    // OpenStack, Akamai: the same as a link-local address.
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // AWS.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // AWS: credentials of ECS tasks, and of EKS pods over IPv4 and IPv6.
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    // GKE's metadata server on its nodes.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 252)),
    // Tencent.
    IpAddr::V4(Ipv4Addr::new(169, 254, 0, 23)),
    // Google.
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // Oracle.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // Oracle Classic.
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    // Akamai.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1)),
    // Alibaba.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200)),
    // Azure's wire server.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Scaleway.
    IpAddr::V4(Ipv4Addr::new(169, 254, 42, 42)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];

/// NAT64 maps IPv4 addresses into the first network (RFC 6052), or into a /96 of the second (RFC 8215).
const NAT64: [Ipv6Net; 2] = [
    Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
];

/// Why a destination is denied. `Display` is the end of a DIAL_RSP's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Its credentials belong to the host, not to the client that dials.
    #[error("destination is denied, it is a cloud metadata service (--allow-cloud-metadata)")]
    CloudMetadata,
    /// Its services belong to the node.
    #[error("destination is denied, it is link-local (--allow-destinations, --allow-cloud-metadata)")]
    LinkLocal,
    /// A deny rule matches.
    #[error("destination is denied (--deny-destinations)")]
    Listed,
    /// There are allow rules, and none matches.
    #[error("destination is denied, no rule allows it (--allow-destinations)")]
    NotListed,
}

/// The destination policy. By default it allows everything except link-local addresses and the metadata services of clouds. (Go
/// allows everything.)
#[derive(Debug, Clone, Default)]
pub struct DestinationPolicy {
    /// `--allow-cloud-metadata`.
    pub cloud_metadata: bool,
    /// `--deny-destinations`.
    pub deny: Vec<DestinationRule>,
    /// `--allow-destinations`.
    pub allow: Vec<DestinationRule>,
}

impl DestinationPolicy {
    /// Allows everything: for destinations that the operator has configured.
    pub fn unrestricted() -> Self {
        DestinationPolicy { cloud_metadata: true, ..Self::default() }
    }

    /// Checks whether the agent may connect to `destination`, to which `name` resolved (`None`: the request had an address).
    ///
    /// # Errors
    /// Why the destination is denied.
    pub fn check(&self, name: Option<&str>, destination: SocketAddr) -> Result<(), Denied> {
        let (ip, port) = (destination.ip().to_canonical(), destination.port());
        let behind = behind_nat64(ip);
        for ip in [Some(ip), behind].into_iter().flatten() {
            self.check_host_only(ip, port)?;
        }
        let denies = |rule: &DestinationRule| {
            rule.matches(name, ip, port) || behind.is_some_and(|ip| rule.matches(None, ip, port))
        };
        if self.deny.iter().any(denies) {
            return Err(Denied::Listed);
        }
        if !self.allow.is_empty() && !self.allow.iter().any(|rule| rule.matches(name, ip, port)) {
            return Err(Denied::NotListed);
        }
        Ok(())
    }

    /// Denies destinations that only the host itself should reach, unless the operator has allowed them.
    fn check_host_only(&self, ip: IpAddr, port: u16) -> Result<(), Denied> {
        let (network, denied) = match LINK_LOCAL.into_iter().find(|network| network.contains(&ip)) {
            _ if self.cloud_metadata => return Ok(()),
            _ if CLOUD_METADATA.contains(&ip) => (IpNet::from(ip), Denied::CloudMetadata),
            Some(network) => (network, Denied::LinkLocal),
            None => return Ok(()),
        };
        let allowed = self.allow.iter().any(|rule| rule.is_within(&network) && rule.matches(None, ip, port));
        if allowed { Ok(()) } else { Err(denied) }
    }
}

/// The IPv4 address that a NAT64 gateway derives from this address: its last 32 bits.
fn behind_nat64(ip: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(ip) = ip else { return None };
    let [.., high, low] = ip.segments();
    let mapped = NAT64.iter().any(|network| network.contains(&ip));
    mapped.then(|| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_services_are_denied_unless_allowed() {
        let rows = [
            ("169.254.169.254:80", true),
            ("169.254.169.254:443", true),
            ("[::ffff:169.254.169.254]:80", true),
            ("[64:ff9b::169.254.169.254]:80", true),
            ("[64:ff9b:1::169.254.169.254]:80", true),
            ("[fd00:ec2::254]:80", true),
            ("[fd00:ec2::254%3]:80", true),
            ("[fd20:ce::254]:80", true),
            ("[fd00:c1::a9fe:a9fe]:80", true),
            ("[fe80::a9fe:a9fe%2]:80", true),
            ("[fd00:a9fe:a9fe::1]:80", true),
            ("[fd00:100::100:200]:80", true),
            ("[fd00:42::42]:80", true),
            ("169.254.42.42:80", true),
            ("100.100.100.200:80", true),
            ("168.63.129.16:32526", true),
            ("169.254.169.252:80", true),
            ("169.254.0.23:80", true),
            ("169.254.170.2:80", true),
            ("169.254.170.23:80", true),
            ("[64:ff9b::169.254.170.23]:80", true),
            ("[fd00:ec2::23]:80", true),
            ("192.0.0.192:80", true),
            ("[fd00:ec2::253]:53", false),
            ("[fd20:ce::253]:53", false),
            ("192.0.0.191:80", false),
            ("169.253.255.255:80", false),
            ("169.255.0.0:80", false),
            ("[fec0::1]:80", false),
            ("10.0.0.1:10250", false),
        ];
        let (default, open) = (DestinationPolicy::default(), DestinationPolicy::unrestricted());
        let allowing = DestinationPolicy { cloud_metadata: true, ..DestinationPolicy::default() };
        for (destination, denied) in rows {
            let destination = destination.parse().unwrap();
            let verdict = if denied { Err(Denied::CloudMetadata) } else { Ok(()) };
            assert_eq!(default.check(None, destination), verdict, "{destination}");
            assert_eq!(allowing.check(None, destination), Ok(()));
            assert_eq!(open.check(Some("name"), destination), Ok(()));
        }
    }

    #[test]
    fn link_local_addresses_are_denied_unless_allowed() {
        let default = DestinationPolicy::default();
        let allowing = DestinationPolicy { cloud_metadata: true, ..DestinationPolicy::default() };
        let rows = [
            "169.254.20.10:53",
            "[::ffff:169.254.0.1]:80",
            "[64:ff9b::169.254.1.1]:80",
            "[fe80::1%2]:80",
            "[febf::1]:1",
        ];
        for destination in rows.map(|text| text.parse().unwrap()) {
            assert_eq!(default.check(Some("name"), destination), Err(Denied::LinkLocal), "{destination}");
            assert_eq!(allowing.check(None, destination), Ok(()));
        }
    }

    #[test]
    fn specific_rule_allows_addresses_that_only_the_host_reaches() {
        let (metadata, local) = (Err(Denied::CloudMetadata), Err(Denied::LinkLocal));
        let rows = [
            ("169.254.20.10", "169.254.20.10:53", Ok(())),
            ("169.254.20.10:53", "169.254.20.10:54", local),
            ("169.254.20.10", "169.254.20.11:53", local),
            ("169.254.20.0/24", "[64:ff9b::169.254.20.10]:53", Ok(())),
            ("169.254.0.0/16", "169.254.1.1:80", Ok(())),
            ("169.254.0.0/16", "169.254.169.254:80", metadata),
            ("169.254.169.254:80", "169.254.169.254:80", Ok(())),
            ("169.254.169.254:80", "169.254.169.254:443", metadata),
            ("fd00:ec2::23", "[fd00:ec2::23]:80", Ok(())),
            ("fd00::/8", "[fd00:ec2::23]:80", metadata),
            ("fe80::/10", "[fe80::1%2]:80", Ok(())),
            ("0.0.0.0/0", "169.254.1.1:80", local),
            ("*", "169.254.1.1:80", local),
            ("name", "169.254.169.254:80", metadata),
        ];
        for (rule, destination, verdict) in rows {
            let destination = destination.parse().unwrap();
            assert_eq!(
                policy(&[], &["*", rule]).check(Some("name"), destination),
                verdict,
                "{rule} {destination}"
            );
        }
        let denied = policy(&["169.254.20.10"], &["169.254.20.10"]);
        assert_eq!(denied.check(None, "169.254.20.10:53".parse().unwrap()), Err(Denied::Listed));
    }

    fn policy(deny: &[&str], allow: &[&str]) -> DestinationPolicy {
        let rules = |texts: &[&str]| texts.iter().map(|text| DestinationRule::parse(text).unwrap()).collect();
        DestinationPolicy { deny: rules(deny), allow: rules(allow), cloud_metadata: false }
    }

    #[test]
    fn rules_deny_first_and_allow_then() {
        let (listed, not_listed) = (Err(Denied::Listed), Err(Denied::NotListed));
        let policy = policy(
            &["10.0.0.0/8:22", "secret.example", "fd00::/8"],
            &["10.0.0.0/8", "*.example:443", "fd00::1"],
        );
        let rows = [
            (None, "10.1.2.3:443", Ok(())),
            (None, "10.1.2.3:22", listed),
            (None, "[::ffff:10.1.2.3]:22", listed),
            (None, "[64:ff9b::10.1.2.3]:22", listed),
            (None, "[64:ff9b:1:2::10.1.2.3]:22", listed),
            (None, "[64:ff9b::10.1.2.3]:443", not_listed),
            (None, "11.1.2.3:443", not_listed),
            (Some("a.example"), "11.1.2.3:443", Ok(())),
            (Some("A.Example."), "11.1.2.3:443", Ok(())),
            (Some("a.example"), "11.1.2.3:80", not_listed),
            (Some("example"), "11.1.2.3:443", not_listed),
            (Some("secret.example"), "11.1.2.3:443", listed),
            // An address that is denied stays denied under every name.
            (Some("a.example"), "10.1.2.3:22", listed),
            (Some("a.example"), "[fd00::2]:443", listed),
            (None, "[fd00::1]:443", listed),
            (None, "169.254.169.254:80", Err(Denied::CloudMetadata)),
        ];
        for (name, destination, verdict) in rows {
            let destination = destination.parse().unwrap();
            assert_eq!(policy.check(name, destination), verdict, "{name:?} {destination}");
        }
    }
}
