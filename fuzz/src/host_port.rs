//! `HOST:PORT` of clients and flags: what is accepted can be written and read again, and is safe on the wire.

use net::host_port::{HostPort, host_port, split, split_lenient};

/// The text of a target.
pub fn host_port_target(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some((host, port)) = host_port(&text) {
        assert!(port > 0 && !host.is_empty(), "{text:?}");
        assert!(host.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
        let joined = HostPort(host, port).to_string();
        // A host with brackets inside is refused by whoever resolves it.
        if !host.contains(['[', ']']) {
            assert_eq!(host_port(&joined), Some((host, port)), "{text:?} as {joined:?}");
        }
    }
    for (host, port) in [split(&text), split_lenient(&text)].into_iter().flatten() {
        let rest = port.map_or(0, |port| port.len() + 1);
        assert!(host.len() + rest <= text.len(), "{text:?}");
    }
}
