//! Which destinations an agent may be asked to reach.
//!
//! The one place where a dial can be forbidden: called with the addresses a name resolved to, between the
//! lookup and the connect, so that what was checked is what is connected to (a second lookup could answer
//! differently). Decides by the address alone; IPv4-mapped ones count as what they map.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where clouds hand out credentials and host secrets to whoever asks from a host of theirs.
const CLOUD_METADATA: [IpAddr; 4] = [
    // AWS, Azure, Google and most others.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    // AWS.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // Alibaba.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    // Azure's wire server.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
];

/// Why a destination is denied. `Display` ends a DIAL_RSP's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Its credentials are the host's, not those of who dials.
    #[error("destination is denied, it is a cloud metadata service (--allow-cloud-metadata)")]
    CloudMetadata,
}

/// Decides over destinations. The default allows all but the metadata services of clouds. (Go allows all.)
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DestinationPolicy {
    cloud_metadata: bool,
}

impl DestinationPolicy {
    /// Allows everything: for destinations that the operator has named.
    pub fn unrestricted() -> Self {
        DestinationPolicy { cloud_metadata: true }
    }

    /// `--allow-cloud-metadata`.
    pub fn with_cloud_metadata(mut self, allowed: bool) -> Self {
        self.cloud_metadata = allowed;
        self
    }

    /// Whether the agent may connect to `destination`.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self, destination: SocketAddr) -> Result<(), Denied> {
        if !self.cloud_metadata && CLOUD_METADATA.contains(&destination.ip().to_canonical()) {
            return Err(Denied::CloudMetadata);
        }
        Ok(())
    }
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
            ("[fd00:ec2::254]:80", true),
            ("[fd00:ec2::254%3]:80", true),
            ("100.100.100.200:80", true),
            ("168.63.129.16:32526", true),
            ("169.254.169.253:53", false),
            ("169.254.20.10:53", false),
            ("[fd00:ec2::253]:53", false),
            ("10.0.0.1:10250", false),
        ];
        let (default, open) = (DestinationPolicy::default(), DestinationPolicy::unrestricted());
        for (destination, denied) in rows {
            let destination = destination.parse().unwrap();
            let verdict = if denied { Err(Denied::CloudMetadata) } else { Ok(()) };
            assert_eq!(default.check(destination), verdict, "{destination}");
            assert_eq!(default.clone().with_cloud_metadata(true).check(destination), Ok(()));
            assert_eq!(open.check(destination), Ok(()));
        }
    }
}
