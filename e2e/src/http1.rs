//! The HTTP/1.1 of the harness: a GET with its whole answer, and the head of a CONNECT answer.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest accepted head in bytes.
const HEAD_LIMIT: usize = 64 * 1024;

/// The head of an answer.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// The status code.
    pub status: u16,
    /// The reason phrase.
    pub reason: String,
    /// Header fields in order, names in lower case.
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// The first field of that name (in lower case).
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let mut words = first.splitn(3, ' ');
        let version = words.next().unwrap_or_default();
        anyhow::ensure!(version.starts_with("HTTP/1."), "not an HTTP/1 answer: {first:?}");
        let status = words
            .next()
            .and_then(|word| word.parse().ok())
            .with_context(|| format!("no status: {first:?}"))?;
        let reason = words.next().unwrap_or_default().to_owned();
        let fields = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Ok(Self { status, reason, fields })
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Status and fields.
    pub head: Head,
    /// The body as text.
    pub body: String,
}

/// Reads a head; returns it with the bytes that followed in the same read.
pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Result<(Head, Vec<u8>)> {
    let mut seen = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let count = stream.read(&mut chunk).await?;
        anyhow::ensure!(count > 0, "the stream ended inside a head: {:?}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(chunk.get(..count).unwrap_or_default());
        if let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = seen.split_off(end + 4);
            seen.truncate(end);
            let text = String::from_utf8(seen).context("a head that is not text")?;
            return Ok((Head::parse(&text)?, rest));
        }
        anyhow::ensure!(seen.len() < HEAD_LIMIT, "a head of more than {HEAD_LIMIT} bytes");
    }
}

/// GETs a path over a separate connection.
pub async fn get(address: SocketAddr, path: &str) -> Result<Answer> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    get_over(stream, &address.to_string(), path).await
}

/// POSTs JSON over a separate connection.
pub async fn post(address: SocketAddr, path: &str, body: &str) -> Result<Answer> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    let fields = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    let request =
        format!("POST {path} HTTP/1.1\r\nHost: {address}\r\n{fields}Connection: close\r\n\r\n{body}");
    answer(stream, &request).await
}

/// GETs a path over a stream, and ends the stream.
pub async fn get_over(
    stream: impl AsyncRead + AsyncWriteExt + Unpin,
    host: &str,
    path: &str,
) -> Result<Answer> {
    answer(stream, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).await
}

async fn answer(mut stream: impl AsyncRead + AsyncWriteExt + Unpin, request: &str) -> Result<Answer> {
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let (head, mut body) = read_head(&mut stream).await?;
    match head.field("content-length").and_then(|length| length.parse::<usize>().ok()) {
        Some(length) => {
            let missing = length.saturating_sub(body.len());
            (&mut stream).take(missing as u64).read_to_end(&mut body).await?;
        }
        None => {
            stream.read_to_end(&mut body).await?;
        }
    }
    if head.field("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        body = unchunk(&body)?;
    }
    Ok(Answer { head, body: String::from_utf8_lossy(&body).into_owned() })
}

fn unchunk(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end =
            rest.windows(2).position(|window| window == b"\r\n").context("a chunk without a size line")?;
        let (size, tail) = rest.split_at(end);
        let size =
            std::str::from_utf8(size).ok().and_then(|text| usize::from_str_radix(text.trim(), 16).ok());
        let size = size.context("a chunk without a size")?;
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(tail.get(2..2 + size).context("a chunk cut short")?);
        rest = tail.get(size + 4..).context("a chunk without an end")?;
    }
}

#[cfg(test)]
mod tests {
    use super::{read_head, unchunk};

    #[tokio::test]
    async fn head_is_split_from_the_bytes_behind_it() {
        let mut input = &b"HTTP/1.1 200 Connection Established\r\nA-b: c\r\n\r\npayload"[..];
        let (head, rest) = read_head(&mut input).await.unwrap();
        assert_eq!((head.status, head.reason.as_str()), (200, "Connection Established"));
        assert_eq!(head.field("a-b"), Some("c"));
        assert_eq!(rest, b"payload");
    }

    #[test]
    fn chunks_are_joined() {
        assert_eq!(unchunk(b"3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n").unwrap(), b"abcd");
        assert!(unchunk(b"5\r\nabc").is_err());
    }
}
