//! A proxy's URL.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use thiserror::Error;

/// The port of a proxy whose URL names none: grpc-go resolves the proxy like any of its targets, and
/// their default is this one, whatever the scheme.
const DEFAULT_PORT: u16 = 443;

/// A proxy: where it is, and what it is told about us. Neither `Debug` nor `Display` show credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    host: String,
    port: u16,
    /// `Basic ...`.
    authorization: Option<String>,
}

/// A proxy URL that cannot be used. The URL is not repeated: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the proxy URL in HTTPS_PROXY is not usable: {why} (expected http://[user:password@]host:port)")]
pub struct ProxyUrlError {
    why: &'static str,
    ignored: bool,
}

impl ProxyUrlError {
    fn new(why: &'static str) -> Self {
        Self { why, ignored: false }
    }

    /// For texts that are no URL at all in Go's eyes.
    fn no_url(why: &'static str) -> Self {
        Self { why, ignored: true }
    }

    /// True if Go behaves as if there were no proxy.
    pub fn is_ignored(&self) -> bool {
        self.ignored
    }
}

impl Proxy {
    /// Parses `scheme://[user[:password]@]host[:port]`, or the same without a scheme. A path is ignored.
    ///
    /// # Errors
    /// No host, a bad port, bad percent escapes, characters that no URL has.
    pub fn parse(text: &str) -> Result<Self, ProxyUrlError> {
        let bad = ProxyUrlError::new;
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err(ProxyUrlError::no_url("it contains a control character"));
        }
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if is_scheme(scheme) => rest,
            Some(_) => return Err(bad("its scheme is malformed")),
            None => text,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority),
        };
        let (host, port) = split_port(address).map_err(bad)?;
        Ok(Self {
            host: host.to_owned(),
            port,
            authorization: user.map(basic).transpose().map_err(ProxyUrlError::no_url)?,
        })
    }

    /// Name or address of the proxy, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port of the proxy.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The value of `Proxy-Authorization`. Secret.
    pub(super) fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }
}

impl fmt::Display for Proxy {
    /// `host:port`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authorization = self.authorization.as_ref().map(|_| "(redacted)");
        f.debug_struct("Proxy")
            .field("address", &self.to_string())
            .field("authorization", &authorization)
            .finish()
    }
}

fn is_scheme(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

/// `host`, `host:port`, `[ipv6]`, `[ipv6]:port`.
fn split_port(address: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("a bracket is not closed")?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err("something follows the bracket"),
            }
        }
        None => match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    if host.is_empty() {
        return Err("it has no host");
    }
    if host.contains([' ', '%', '"', '<', '>', '\\', '^', '`', '{', '|', '}', '[', ']']) {
        return Err("its host has a character that is not allowed there");
    }
    match port {
        None => Ok((host, DEFAULT_PORT)),
        Some(port) => match port.parse() {
            Ok(number) if number > 0 && !port.starts_with('+') => Ok((host, number)),
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
