//! `CONNECT`: a tunnel through a proxy.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::url::Proxy;

/// Longest time until a tunnel is there, connecting to the proxy included (grpc-go's own limit for a
/// connection attempt).
pub const PROXY_LIMIT: Duration = Duration::from_secs(20);

/// Longest answer head of a proxy, in bytes.
const HEAD_LIMIT: usize = 16 * 1024;

/// What of a proxy's status line goes into an error, in characters.
const SHOWN: usize = 128;

/// A tunnel that did not come about. No text holds credentials.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The target has characters that would break the request.
    #[error("{0:?} is not host:port")]
    Target(String),
    /// The proxy cannot be reached, or fell silent.
    #[error("proxy {proxy}: {source}")]
    Io {
        /// `host:port`.
        proxy: String,
        /// Why.
        source: io::Error,
    },
    /// The proxy refused.
    #[error("proxy {proxy} refused the tunnel to {target}: {status}")]
    Refused {
        /// `host:port`.
        proxy: String,
        /// `host:port`.
        target: String,
        /// Status code and reason, as the proxy wrote them.
        status: String,
    },
    /// The answer is not HTTP, or its head has no end.
    #[error("proxy {proxy} does not speak HTTP: {why}")]
    Protocol {
        /// `host:port`.
        proxy: String,
        /// What is wrong.
        why: &'static str,
    },
    /// It took too long.
    #[error("proxy {proxy}: no tunnel within {} s", PROXY_LIMIT.as_secs())]
    Timeout {
        /// `host:port`.
        proxy: String,
    },
}

/// Connects to the proxy (names by the system's resolver) and opens a tunnel to `target`, `host:port`.
/// The proxy resolves the target's name.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect_through(proxy: &Proxy, target: &str) -> Result<TcpStream, ConnectError> {
    let attempt = async {
        let stream = TcpStream::connect((proxy.host(), proxy.port())).await;
        let stream = stream.map_err(|source| failed(proxy, source))?;
        negotiate(stream, proxy, target).await
    };
    bounded(proxy, attempt).await
}

/// Opens a tunnel over a connection that the caller made to the proxy. The stream that comes back
/// yields the target's bytes from the first.
///
/// # Errors
/// See [`ConnectError`].
pub async fn tunnel(stream: TcpStream, proxy: &Proxy, target: &str) -> Result<TcpStream, ConnectError> {
    bounded(proxy, negotiate(stream, proxy, target)).await
}

async fn bounded(
    proxy: &Proxy,
    attempt: impl Future<Output = Result<TcpStream, ConnectError>>,
) -> Result<TcpStream, ConnectError> {
    let timeout = |_| ConnectError::Timeout { proxy: proxy.to_string() };
    tokio::time::timeout(PROXY_LIMIT, attempt).await.map_err(timeout)?
}

async fn negotiate(mut stream: TcpStream, proxy: &Proxy, target: &str) -> Result<TcpStream, ConnectError> {
    if target.is_empty() || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ConnectError::Target(target.to_owned()));
    }
    let request = request(proxy, target);
    let sent = stream.write_all(request.as_bytes()).await;
    sent.map_err(|source| failed(proxy, source))?;
    let head = read_head(&mut stream, proxy).await?;
    match status(&head) {
        Some((code, _)) if (200..300).contains(&code) => Ok(stream),
        Some((_, status)) => {
            Err(ConnectError::Refused { proxy: proxy.to_string(), target: target.to_owned(), status })
        }
        None => Err(ConnectError::Protocol {
            proxy: proxy.to_string(),
            why: "its answer has no HTTP status line",
        }),
    }
}

fn request(proxy: &Proxy, target: &str) -> String {
    let authorization = match proxy.authorization() {
        Some(value) => format!("Proxy-Authorization: {value}\r\n"),
        None => String::new(),
    };
    let agent = concat!("konnectivity/", env!("CARGO_PKG_VERSION"));
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: {agent}\r\n{authorization}\r\n")
}

/// Reads the head and nothing behind it: looks at what has arrived, then takes what belongs to the head.
async fn read_head(stream: &mut TcpStream, proxy: &Proxy) -> Result<Vec<u8>, ConnectError> {
    let io = |source| failed(proxy, source);
    let mut head = Vec::new();
    let mut arrived = [0; 2048];
    while head.len() < HEAD_LIMIT {
        let count = stream.peek(&mut arrived).await.map_err(io)?;
        if count == 0 {
            return Err(io(io::ErrorKind::UnexpectedEof.into()));
        }
        let before = head.len();
        head.extend_from_slice(&arrived[..count]);
        let end = end_of_head(&head, before);
        let take = end.map_or(count, |end| end - before);
        stream.read_exact(&mut arrived[..take]).await.map_err(io)?;
        if let Some(end) = end {
            head.truncate(end);
            return Ok(head);
        }
    }
    Err(ConnectError::Protocol { proxy: proxy.to_string(), why: "the head of its answer is too long" })
}

/// The length of the head with its empty line, if `head` holds it. Lines end in LF or CR LF, as Go reads
/// them; the first `searched` bytes do not hold the whole end.
fn end_of_head(head: &[u8], searched: usize) -> Option<usize> {
    let newlines = head.iter().enumerate().skip(searched.saturating_sub(3));
    newlines
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(index, _)| index + 1)
        .find(|end| head[*end..].starts_with(b"\r\n") || head[*end..].starts_with(b"\n"))
        .map(|end| end + if head[end] == b'\r' { 2 } else { 1 })
}

/// Code, and code with reason, of `HTTP/1.x CODE REASON`.
fn status(head: &[u8]) -> Option<(u16, String)> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let (version, status) = line.trim_end().split_once(' ')?;
    if !version.starts_with("HTTP/1.") {
        return None;
    }
    let code = status.split(' ').next().filter(|code| code.len() == 3)?.parse().ok()?;
    Some((code, status.chars().take(SHOWN).flat_map(char::escape_debug).collect()))
}

fn failed(proxy: &Proxy, source: io::Error) -> ConnectError {
    ConnectError::Io { proxy: proxy.to_string(), source }
}
