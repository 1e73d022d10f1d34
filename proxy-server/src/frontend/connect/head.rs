//! Parser of the head of a CONNECT request: request line, header fields, empty line.
//!
//! Pure: no socket, no clock. The result depends only on the bytes, never on how they were split. Bytes after the head are
//! payload and are not read. The parser is strict where two parsers could disagree (request smuggling): it refuses bare LF,
//! folded lines, white space before a colon, body framing and control characters.
//!
//! Checks the Host field (RFC 9112, 3.2), but never uses it: the target is the authority in the request line (kube-apiserver sends
//! `Host: 127.0.0.1`).

use std::net::Ipv6Addr;

use net::host_port;

use crate::limits::MAX_ADDRESS_BYTES;

/// Largest head in bytes, including the empty line.
pub const MAX_HEAD: usize = 16 * 1024;
/// Most header fields of a head.
pub const MAX_FIELDS: usize = 64;
/// Bytes of the `User-Agent` that are kept for the log.
const MAX_USER_AGENT: usize = 256;

/// A complete, valid CONNECT head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The host, with brackets around an IPv6 literal. A colon and digits follow, or none of both.
    pub address: String,
    /// The `User-Agent`, truncated and without control characters; for the log.
    pub user_agent: Option<String>,
    /// Length of the head in bytes. Payload follows.
    pub len: usize,
}

/// Why a head is refused. The texts go to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Any method but CONNECT, in an otherwise well-formed head.
    #[error("this proxy only supports CONNECT passthrough")]
    Method,
    /// HTTP/0.9, HTTP/2 and later.
    #[error("unsupported protocol version")]
    Version,
    /// More than [`MAX_HEAD`] bytes or [`MAX_FIELDS`] fields.
    #[error("head too large")]
    TooLarge,
    /// The target is longer than [`MAX_ADDRESS_BYTES`].
    #[error("CONNECT target of more than {MAX_ADDRESS_BYTES} bytes")]
    LongTarget,
    /// Any other fault, in words.
    #[error("{0}")]
    Bad(&'static str),
}

const CONTROL: HeadError = HeadError::Bad("control character in the head");
const REQUEST_LINE: HeadError = HeadError::Bad("malformed request line");
const TARGET: HeadError = HeadError::Bad("CONNECT target must be host:port");
const FIELD: HeadError = HeadError::Bad("malformed header field");

/// Parses a head incrementally. The work is linear in the bytes fed, even for small pieces.
#[derive(Debug, Default)]
pub struct HeadParser {
    /// Bytes scanned so far.
    scanned: usize,
    /// Where the current line starts.
    line_start: usize,
    fields: usize,
    request: Option<Result<String, HeadError>>,
    has_host: bool,
    /// A field that frames a body, or an invalid Host; an error only if the method is CONNECT.
    invalid: Option<HeadError>,
    user_agent: Option<String>,
}

impl HeadParser {
    /// Scans `bytes`: all bytes since the connection's start, that is those of the last call and more.
    ///
    /// `Ok(None)` asks for more bytes. After any other result the parser must not be used again.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Option<Head>, HeadError> {
        while let Some(&byte) = bytes.get(self.scanned) {
            if self.scanned >= MAX_HEAD {
                return Err(HeadError::TooLarge);
            }
            let after_cr = self.scanned > self.line_start && bytes.get(self.scanned - 1) == Some(&b'\r');
            match byte {
                b'\n' if !after_cr => return Err(HeadError::Bad("line without CR before LF")),
                b'\n' => {
                    let line = bytes.get(self.line_start..self.scanned - 1).unwrap_or_default();
                    self.scanned += 1;
                    self.line_start = self.scanned;
                    if let Some(head) = self.line(line)? {
                        return Ok(Some(head));
                    }
                    continue;
                }
                _ if after_cr => return Err(CONTROL),
                b'\r' => {}
                b'\t' if self.request.is_some() => {}
                0..=31 | 127 => return Err(CONTROL),
                _ => {}
            }
            self.scanned += 1;
        }
        Ok(None)
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Head>, HeadError> {
        if self.request.is_none() {
            self.request = Some(request_line(line)?);
            return Ok(None);
        }
        if line.is_empty() {
            return self.finish().map(Some);
        }
        self.field(line)?;
        Ok(None)
    }

    fn field(&mut self, line: &[u8]) -> Result<(), HeadError> {
        self.fields += 1;
        if self.fields > MAX_FIELDS {
            return Err(HeadError::TooLarge);
        }
        if line.first().is_some_and(|b| matches!(b, b' ' | b'\t')) {
            return Err(HeadError::Bad("folded header line"));
        }
        let colon = line.iter().position(|&b| b == b':').ok_or(FIELD)?;
        let (name, value) = line.split_at_checked(colon).ok_or(FIELD)?;
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(FIELD);
        }
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.invalid.get_or_insert(HeadError::Bad("Transfer-Encoding is not allowed with CONNECT"));
        } else if name.eq_ignore_ascii_case(b"content-length") && value != b"0" {
            self.invalid
                .get_or_insert(HeadError::Bad("Content-Length other than 0 is not allowed with CONNECT"));
        } else if name.eq_ignore_ascii_case(b"host") {
            if self.has_host || !value.iter().copied().all(is_host_field) {
                self.invalid.get_or_insert(HeadError::Bad("more than one Host field, or an invalid one"));
            }
            self.has_host = true;
        } else if name.eq_ignore_ascii_case(b"user-agent") && self.user_agent.is_none() {
            let cut = value.get(..value.len().min(MAX_USER_AGENT)).unwrap_or_default();
            self.user_agent = Some(cut.escape_ascii().to_string());
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Head, HeadError> {
        let address = self.request.take().unwrap_or(Err(REQUEST_LINE))?;
        match self.invalid {
            Some(refused) => Err(refused),
            None => Ok(Head { address, user_agent: self.user_agent.take(), len: self.scanned }),
        }
    }
}

/// The outer error is returned at once. The inner one is returned at the end of the head, so that an invalid field cannot
/// replace a method's 405, and the client has sent its whole request before the answer.
fn request_line(line: &[u8]) -> Result<Result<String, HeadError>, HeadError> {
    let line = std::str::from_utf8(line).map_err(|_| REQUEST_LINE)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(REQUEST_LINE);
    };
    if method.is_empty() || !method.bytes().all(is_token) || target.is_empty() {
        return Err(REQUEST_LINE);
    }
    match version.as_bytes() {
        // Like Go's server, which accepts any minor version of HTTP/1.
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor] if minor.is_ascii_digit() => {}
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(HeadError::Version);
        }
        _ => return Err(REQUEST_LINE),
    }
    Ok(match method {
        // Methods are case-sensitive.
        "CONNECT" => authority(target),
        _ if is_uri(target) => Err(HeadError::Method),
        _ => Err(REQUEST_LINE),
    })
}

/// Checks an authority-form target, and returns it for the agent, which names faults of the port as Go's agent does. A path and a
/// query are ignored, as in Go.
fn authority(target: &str) -> Result<String, HeadError> {
    if target.len() > MAX_ADDRESS_BYTES {
        return Err(HeadError::LongTarget);
    }
    if target.contains('@') {
        return Err(HeadError::Bad("CONNECT target must not carry user information"));
    }
    let target = target.split(['/', '?']).next().unwrap_or_default();
    let (host, port) = host_port::split(target).map_err(|_| TARGET)?;
    let host = if target.starts_with('[') {
        format!("[{}]", ipv6(host)?)
    } else if host.is_empty() || !host.bytes().all(is_host) {
        return Err(TARGET);
    } else {
        host.to_owned()
    };
    match port {
        None => Ok(host),
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => Ok(format!("{host}:{port}")),
        Some(_) => Err(TARGET),
    }
}

/// Whether Go's server reads the target of another method: `*`, a path, or a text with a scheme.
fn is_uri(target: &str) -> bool {
    let scheme = target.split_once(':').map_or("", |(scheme, _)| scheme);
    target == "*"
        || target.starts_with('/')
        || scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

/// Parses an IPv6 literal; a zone in URI form (`%25eth0`) becomes `%eth0`.
fn ipv6(literal: &str) -> Result<String, HeadError> {
    let (address, zone) = match literal.split_once("%25") {
        Some((address, zone)) => (address, Some(zone)),
        None => (literal, None),
    };
    address.parse::<Ipv6Addr>().map_err(|_| TARGET)?;
    match zone {
        None => Ok(address.to_owned()),
        Some(zone) if !zone.is_empty() && zone.bytes().all(is_host) => Ok(format!("{address}%{zone}")),
        Some(_) => Err(TARGET),
    }
}

/// RFC 9110 `tchar`.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// RFC 3986 reg-name without percent-encoding: no byte that another parser could take for a delimiter.
fn is_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

/// The bytes of a Host field that Go accepts: RFC 3986 host and port.
fn is_host_field(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
