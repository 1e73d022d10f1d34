//! The destination of a dial.

/// A dial request as the frontend received it, and the host that strategies look up.
///
/// Nothing is validated here: the agent dials the address or returns an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `tcp` from every known client. Forwarded unchanged.
    pub protocol: String,
    /// `host:port`, forwarded unchanged.
    pub address: String,
    /// The address without port and brackets.
    pub host: String,
    /// The client's own number for the dial (HTTP CONNECT: a number of this server), for the log.
    pub dial_id: i64,
}

impl Target {
    /// A target from the fields of a DIAL_REQ, or from the request line of a CONNECT (with protocol `tcp`).
    pub fn new(protocol: impl Into<String>, address: impl Into<String>) -> Self {
        let address = address.into();
        Self { protocol: protocol.into(), host: host_of(&address).to_owned(), address, dial_id: 0 }
    }
}

/// The host of `host:port`, `host`, `[v6]:port`, `[v6]` or a bare IPv6 address.
///
/// As in Go, two or more colons mean an IPv6 address, and only brackets separate its port. Unlike in Go, a bracketed address
/// without a port is not cut at its last colon.
fn host_of(address: &str) -> &str {
    let brackets = ['[', ']'];
    match address.split_once(':') {
        None => address,
        Some((host, port)) if !port.contains(':') => host,
        Some(_) if !address.contains('[') || address.ends_with(']') => address.trim_matches(brackets),
        Some(_) => address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(brackets),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_gos() {
        for (address, host) in [
            ("localhost:8080", "localhost"),
            ("localhost", "localhost"),
            ("Node-1.example:", "Node-1.example"),
            (":443", ""),
            ("", ""),
            ("192.168.0.1:8080", "192.168.0.1"),
            ("::", "::"),
            ("9878::7675:1292:9183:7562", "9878::7675:1292:9183:7562"),
            ("[alsk:1204:1020::1292]:8080", "alsk:1204:1020::1292"),
            ("[fe80::1%eth0]:10250", "fe80::1%eth0"),
            ("[::1]", "::1"),
            (" www.kubernetes.test:8080", " www.kubernetes.test"),
        ] {
            let target = Target::new("tcp", address);
            assert_eq!((target.host.as_str(), target.address.as_str()), (host, address));
        }
    }
}
