//! What our own peers may expect of each other beyond what Go peers know.
//!
//! An agent offers by metadata of its Connect, a server answers with what it takes in the response headers. It holds
//! for that stream alone and is never remembered: the next one may lead to a Go peer.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::Keepalive;

/// The metadata key: a list of names, separated by commas.
pub const CAPABILITIES: HeaderName = HeaderName::from_static("konnectivity-capabilities");

/// Pings every 10 s, in both directions, are no abuse. (A Go server ends a connection at the third ping that comes
/// sooner than 30 s after the last.)
pub const PINGS: &str = "pings";

/// How silent own peers are asked: a dead one is noticed within 15 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// What this build offers and takes.
pub fn offer() -> HeaderValue {
    HeaderValue::from_static(PINGS)
}

/// Whether the peer names this capability.
pub fn has(metadata: &HeaderMap, capability: &str) -> bool {
    let named = metadata.get_all(CAPABILITIES).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|value| value.split(',')).any(|name| name.trim() == capability)
}

/// The keepalive towards a peer that has [`PINGS`]; `flag` is what the operator set.
pub fn keepalive(flag: Duration) -> Keepalive {
    Keepalive { interval: flag.min(PING_INTERVAL), timeout: PING_TIMEOUT, while_idle: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_one_of_a_list() {
        let mut metadata = HeaderMap::new();
        assert!(!has(&metadata, PINGS));
        metadata.insert(CAPABILITIES, HeaderValue::from_static("other, pings"));
        assert!(has(&metadata, PINGS));
        assert!(!has(&metadata, "ping"));
        assert_eq!(keepalive(Duration::from_secs(3600)).interval, PING_INTERVAL);
        assert_eq!(keepalive(Duration::from_secs(1)).interval, Duration::from_secs(1));
    }
}
