//! Parser of the head of a CONNECT request: request line, header fields, empty line.
//!
//! Pure: no socket, no clock. The result depends only on the bytes, never on how they were split. Bytes after the head are
//! payload and are not read. [`httparse`] reads the lines. What it accepts is refused here where two parsers could disagree (request
//! smuggling): bare LF, control characters and body framing.
//!
//! Checks the Host field (RFC 9112, 3.2), but never uses it: the target is the authority in the request line (kube-apiserver sends
//! `Host: 127.0.0.1`).

use std::net::Ipv6Addr;

use mux::MAX_ADDRESS_BYTES;
use net::host_port;

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
    /// Any but HTTP/1.0 and HTTP/1.1.
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

/// Parses a head incrementally: the lines so far at the end of each line, so that a fault is answered at once. These are at most
/// [`MAX_FIELDS`] + 2 passes over [`MAX_HEAD`] bytes.
#[derive(Debug, Default)]
pub struct HeadParser {
    /// Bytes scanned so far.
    scanned: usize,
    /// The request line is complete.
    in_fields: bool,
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
            let after_cr = self.scanned > 0 && bytes.get(self.scanned - 1) == Some(&b'\r');
            self.scanned += 1;
            match byte {
                b'\n' if !after_cr => return Err(HeadError::Bad("line without CR before LF")),
                b'\n' => {
                    let lines = bytes.get(..self.scanned).unwrap_or(bytes);
                    if let Some(head) = parse(lines)? {
                        return Ok(Some(head));
                    }
                    self.in_fields = true;
                }
                _ if after_cr => return Err(CONTROL),
                b'\r' => {}
                b'\t' if self.in_fields => {}
                0..=31 | 127 => return Err(CONTROL),
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Parses the complete lines so far; `None` before the empty line.
fn parse(lines: &[u8]) -> Result<Option<Head>, HeadError> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(lines) {
        Ok(httparse::Status::Complete(len)) => head(&request, len).map(Some),
        // The parser skips empty lines before a request.
        Ok(httparse::Status::Partial) if lines == b"\r\n" => Err(REQUEST_LINE),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(HeadError::TooLarge),
        Err(httparse::Error::HeaderName | httparse::Error::HeaderValue) => Err(FIELD),
        Err(httparse::Error::Version) if is_version(lines.split(|byte| *byte == b' ').nth(2)) => {
            Err(HeadError::Version)
        }
        Err(_) => Err(REQUEST_LINE),
    }
}

fn is_version(word: Option<&[u8]>) -> bool {
    matches!(word, Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor, b'\r', b'\n'])
        if major.is_ascii_digit() && minor.is_ascii_digit())
}

/// Checks a complete head. Not earlier: an invalid field cannot replace a method's 405, and the client has sent its whole request
/// before the answer.
fn head(request: &httparse::Request<'_, '_>, len: usize) -> Result<Head, HeadError> {
    let target = request.path.unwrap_or_default();
    let address = match request.method {
        // Methods are case-sensitive.
        Some("CONNECT") => authority(target)?,
        _ if is_uri(target) => return Err(HeadError::Method),
        _ => return Err(REQUEST_LINE),
    };
    let (mut has_host, mut user_agent) = (false, None);
    for field in request.headers.iter() {
        let (name, value) = (field.name, field.value.trim_ascii());
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(HeadError::Bad("Transfer-Encoding is not allowed with CONNECT"));
        } else if name.eq_ignore_ascii_case("content-length") && value != b"0" {
            return Err(HeadError::Bad("Content-Length other than 0 is not allowed with CONNECT"));
        } else if name.eq_ignore_ascii_case("host") {
            if has_host || !value.iter().copied().all(is_host_field) {
                return Err(HeadError::Bad("more than one Host field, or an invalid one"));
            }
            has_host = true;
        } else if name.eq_ignore_ascii_case("user-agent") && user_agent.is_none() {
            let cut = value.get(..value.len().min(MAX_USER_AGENT)).unwrap_or_default();
            user_agent = Some(cut.escape_ascii().to_string());
        }
    }
    Ok(Head { address, user_agent, len })
}

/// Checks an authority-form target, and returns it for the agent, which names faults of the port. A path and a
/// query are ignored, as in Go.
fn authority(target: &str) -> Result<String, HeadError> {
    if target.len() > MAX_ADDRESS_BYTES {
        return Err(HeadError::LongTarget);
    }
    if target.contains('@') {
        return Err(HeadError::Bad("CONNECT target must not carry user information"));
    }
    let target = target.split(['/', '?']).next().unwrap_or_default();
    let (host, port) = host_port::split(target).ok_or(TARGET)?;
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
