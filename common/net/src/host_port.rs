//! `HOST:PORT` as in URLs and flags, with brackets around an IPv6 address. This module checks only the brackets; the
//! caller checks the host and the port.

use std::fmt;
use std::net::IpAddr;

/// Splits after the closing bracket, otherwise at the first colon. The host has no brackets; without a colon the port
/// is `None`. Of a text whose bracket is not closed, or is followed by something other than a colon, there is nothing.
pub fn split(text: &str) -> Option<(&str, Option<&str>)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    match rest.strip_prefix(':') {
        Some(port) => Some((host, Some(port))),
        None => rest.is_empty().then_some((host, None)),
    }
}

/// The same, except that a text with several colons and no brackets is an IPv6 address without a port.
pub fn split_lenient(text: &str) -> Option<(&str, Option<&str>)> {
    let is_address = !text.starts_with('[') && text.matches(':').count() > 1;
    if is_address { Some((text, None)) } else { split(text) }
}

/// The host, without brackets, and the port of `HOST:PORT` or `[ADDRESS]:PORT`; `None` if the text is neither, the port is 0,
/// or the host has a `$`: kubelet leaves `$(NAME)` in a flag if the container has no such variable.
pub fn host_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = split(text)?;
    let port = port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()?;
    let printable = host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'$');
    let usable = !host.is_empty() && printable && port > 0;
    usable.then_some((host, port))
}

/// The host without the brackets of an IPv6 address, if it has them.
pub fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

/// Whether the host, without brackets, is on this machine: `localhost` in lower case, or a loopback address.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// `HOST:PORT`, with brackets around a host that has colons. The given host may have them already.
#[derive(Debug, Clone, Copy)]
pub struct HostPort<'a>(pub &'a str, pub u16);

impl fmt::Display for HostPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (unbracketed(self.0), self.1);
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_or_the_first_colon_split() {
        for (text, split_up) in [
            ("host", Some(("host", None))),
            ("host:1", Some(("host", Some("1")))),
            ("host:", Some(("host", Some("")))),
            (":1", Some(("", Some("1")))),
            ("::1", Some(("", Some(":1")))),
            ("[::1]", Some(("::1", None))),
            ("[::1]:1", Some(("::1", Some("1")))),
            ("[]:1:2", Some(("", Some("1:2")))),
            ("[::1", None),
            ("[::1]1", None),
        ] {
            assert_eq!(split(text), split_up, "{text}");
            let lenient = if text == "::1" { Some(("::1", None)) } else { split_up };
            assert_eq!(split_lenient(text), lenient, "{text}");
        }
        for (text, parts) in [
            ("a:1", Some(("a", 1))),
            ("[::1]:65535", Some(("::1", 65535))),
            ("a", None),
            (":1", None),
            ("a:0", None),
            ("a:+1", None),
            ("::1:1", None),
            ("a b:1", None),
            ("$(POD_IP):1", None),
            ("[$(POD_IP)]:1", None),
            ("a:65536", None),
        ] {
            assert_eq!(host_port(text), parts, "{text}");
        }
        for (host, joined) in [("a", "a:1"), ("::1", "[::1]:1"), ("[::1]", "[::1]:1")] {
            assert_eq!(HostPort(host, 1).to_string(), joined);
        }
    }
}
