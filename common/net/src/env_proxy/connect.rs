//! `CONNECT`: opens a tunnel through a proxy.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::url::Proxy;

/// The longest time until a proxy has opened a tunnel (grpc-go's own limit for a connection attempt).
pub const PROXY_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest head of a proxy's answer, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The longest part of a proxy's status line in an error, in characters.
const MAX_STATUS_LINE_CHARS: usize = 128;

/// A failed tunnel: the target has characters that would break the request, the proxy cannot be reached or refuses, or its
/// answer is not HTTP or does not end. The text contains no credentials.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ConnectError(String);

/// Opens a tunnel to `target`, `host:port`, over a connection that the caller made to the proxy (with TLS, if the proxy
/// requires it). The proxy resolves the target's name. The returned stream starts with the target's first byte.
///
/// # Errors
/// See [`ConnectError`].
pub async fn tunnel<IO>(io: IO, proxy: &Proxy, target: &str) -> Result<IO, ConnectError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    if target.is_empty() || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ConnectError(format!("{target:?} is not host:port")));
    }
    let opened = tokio::time::timeout(PROXY_TIMEOUT, negotiate(io, proxy, target)).await;
    let opened = opened.unwrap_or_else(|_| Err(format!(": no tunnel within {} s", PROXY_TIMEOUT.as_secs())));
    opened.map_err(|why| ConnectError(format!("proxy {proxy}{why}")))
}

/// The error is the end of a sentence that begins with the proxy.
async fn negotiate<IO>(mut io: IO, proxy: &Proxy, target: &str) -> Result<IO, String>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    io.write_all(request(proxy, target).as_bytes()).await.map_err(failed)?;
    io.flush().await.map_err(failed)?;
    let head = read_head(&mut io).await?;
    match status(&head) {
        Some((200..300, _)) => Ok(io),
        Some((_, status)) => Err(format!(" refused the tunnel to {target}: {status}")),
        None => Err(" does not speak HTTP: its answer has no HTTP status line".to_owned()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "map_err hands it in")]
fn failed(error: io::Error) -> String {
    format!(": {error}")
}

fn request(proxy: &Proxy, target: &str) -> String {
    let header = |value| format!("Proxy-Authorization: {value}\r\n");
    let authorization = proxy.authorization.as_ref().map(header).unwrap_or_default();
    let agent = concat!("konnectivity/", env!("CARGO_PKG_VERSION"));
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: {agent}\r\n{authorization}\r\n")
}

/// Reads the head byte by byte, because the bytes after it belong to the target; tunnels are rare. Lines end in LF or
/// CR LF, as in Go.
async fn read_head<IO: AsyncRead + Unpin>(io: &mut IO) -> Result<Vec<u8>, String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while head.len() < MAX_HEAD_BYTES {
        if io.read(&mut byte).await.map_err(failed)? == 0 {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        head.extend_from_slice(&byte);
        if head.ends_with(b"\n\r\n") || head.ends_with(b"\n\n") {
            return Ok(head);
        }
    }
    Err(" does not speak HTTP: the head of its answer is too long".to_owned())
}

/// The code, and code with reason, of `HTTP/1.x CODE REASON`.
fn status(head: &[u8]) -> Option<(u16, String)> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let (version, status) = line.trim_end().split_once(' ')?;
    if !version.starts_with("HTTP/1.") {
        return None;
    }
    let code = status.split(' ').next().filter(|code| code.len() == 3)?.parse().ok()?;
    Some((code, status.chars().take(MAX_STATUS_LINE_CHARS).flat_map(char::escape_debug).collect()))
}
