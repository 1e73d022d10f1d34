//! A proxy's URL.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use thiserror::Error;

use crate::host_port;

/// A proxy: its address, its protocol and our credentials, which `Display` does not show.
#[derive(Clone)]
pub struct Proxy {
    /// The host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The proxy speaks TLS.
    pub tls: bool,
    /// The value of `Proxy-Authorization`: `Basic ...`.
    pub authorization: Option<String>,
}

/// A proxy URL that cannot be used. The error does not repeat the URL, which may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the proxy URL in {place} is not usable: {why} (expected http://[user:password@]host:port)")]
pub struct ProxyUrlError {
    place: &'static str,
    why: &'static str,
    /// Go behaves as if there were no proxy.
    pub(super) ignored: bool,
}

impl Proxy {
    /// Parses the URL in `place`, `scheme://[user[:password]@]host[:port]`, or the same without a scheme, for dialing as grpc-go does:
    /// plain TCP whatever the scheme, to port 443 by default. A path is ignored.
    ///
    /// # Errors
    /// If the host is missing, or the port, a percent escape or a character is invalid.
    pub fn parse(place: &'static str, text: &str) -> Result<Self, ProxyUrlError> {
        Self::parse_with(place, text, |_| Ok((false, 443)))
    }

    /// The same for dialing as net/http does: `https` means TLS to the proxy, on port 443 by default; `http`, or no
    /// scheme, means plain TCP, on port 80 by default.
    ///
    /// # Errors
    /// As for [`Proxy::parse`], and for any other scheme: SOCKS is not supported.
    pub fn parse_for_http(place: &'static str, text: &str) -> Result<Self, ProxyUrlError> {
        Self::parse_with(place, text, |scheme| match scheme {
            "https" => Ok((true, 443)),
            "http" => Ok((false, 80)),
            "socks5" | "socks5h" => Err("SOCKS is not supported"),
            _ => Err("its scheme is neither http nor https"),
        })
    }

    /// `meaning`: whether a scheme means TLS to the proxy, and its default port.
    fn parse_with(
        place: &'static str,
        text: &str,
        meaning: impl Fn(&str) -> Result<(bool, u16), &'static str>,
    ) -> Result<Self, ProxyUrlError> {
        let bad = |why| ProxyUrlError { place, why, ignored: false };
        // Go does not accept such a text as a URL.
        let no_url = |why| ProxyUrlError { ignored: true, ..bad(why) };
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err(no_url("it contains a control character"));
        }
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            Some(_) => return Err(bad("its scheme is malformed")),
            None => ("http".to_owned(), text),
        };
        let (tls, default_port) = meaning(&scheme).map_err(bad)?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority),
        };
        let (host, port) = split_port(address).map_err(bad)?;
        Ok(Self {
            host: host.to_owned(),
            port: port.unwrap_or(default_port),
            tls,
            authorization: user.map(basic).transpose().map_err(no_url)?,
        })
    }
}

impl fmt::Display for Proxy {
    /// `host:port`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        host_port::HostPort(&self.host, self.port).fmt(f)
    }
}

fn is_scheme(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

/// `host`, `host:port`, `[ipv6]`, `[ipv6]:port`.
fn split_port(address: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = host_port::split(address).ok_or("its brackets are malformed")?;
    if host.is_empty() {
        return Err("it has no host");
    }
    if host.contains([' ', '%', '"', '<', '>', '\\', '^', '`', '{', '|', '}', '[', ']']) {
        return Err("its host has a character that is not allowed there");
    }
    match port {
        None => Ok((host, None)),
        Some(port) => match port.parse() {
            Ok(number) if number > 0 && !port.starts_with('+') => Ok((host, Some(number))),
            _ => Err("its port is not a number from 1 to 65535"),
        },
    }
}

fn basic(user_info: &str) -> Result<String, &'static str> {
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let mut credentials = decode(user)?;
    credentials.push(b':');
    credentials.extend(decode(password)?);
    Ok(format!("Basic {}", STANDARD.encode(&credentials)))
}

fn decode(text: &str) -> Result<Vec<u8>, &'static str> {
    let mut escapes = text.split('%').skip(1);
    let well_formed = escapes.all(|after| {
        let mut digits = after.bytes().take(2);
        digits.len() == 2 && digits.all(|byte| byte.is_ascii_hexdigit())
    });
    if !well_formed {
        return Err("a percent escape in its user or password is malformed");
    }
    Ok(percent_decode_str(text).collect())
}
