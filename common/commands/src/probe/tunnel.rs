//! A client of the gRPC and of the HTTP CONNECT frontend: one dial, a few bytes, and the close.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use grpc::{Connected, Incoming, Keepalive, Wire, connect};
use http::HeaderMap;
use mux::{ConnectId, DialId, Packet};
use net::host_port::host_port;
use net::tls::{any_server, client_config};
use rustls::ClientConnection;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::{AfterDial, STAGE_TIMEOUT};

/// The longest answer to CONNECT, in bytes.
const MAX_ANSWER_BYTES: usize = 16 * 1024;
/// The time limit of the close: a server that does not answer does not matter any more.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of our only dial.
const DIAL: DialId = DialId(1);

/// A byte stream to a frontend.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A frontend's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// A Proxy stream of gRPC.
    Grpc,
    /// HTTP/1.1 CONNECT.
    HttpConnect,
}

impl Protocol {
    /// The name in flags, logs and the status.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Grpc => "grpc",
            Protocol::HttpConnect => "http-connect",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        [Protocol::Grpc, Protocol::HttpConnect].into_iter().find(|protocol| protocol.name() == name)
    }
}

/// A dial that failed, and the stage that this belongs to.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// `frontend`, `selection`, `agent` or `connect`.
    pub stage: &'static str,
    /// The peer's text.
    pub text: String,
}

impl Refused {
    /// The frontend's fault, or our misunderstanding of it.
    #[expect(clippy::needless_pass_by_value, reason = "map_err hands errors in")]
    fn frontend(text: impl ToString) -> Self {
        Self { stage: "frontend", text: text.to_string() }
    }

    pub(crate) fn agent(text: String) -> Self {
        Self { stage: "agent", text }
    }

    /// The stage of a text that the server answered; its own texts are in `DialFailure`, all others are the agent's.
    fn answered(text: &str) -> Self {
        let has = |part: &str| text.contains(part);
        let stage =
            if has("No agent available") || has("too many connections, try") || has("out of memory for conn")
            {
                "selection"
            } else if has("timed out waiting for backend dial") || has("Backend context error") {
                "agent"
            } else {
                "connect"
            };
        Self { stage, text: text.trim().to_owned() }
    }
}

/// An open connection through the tunnel.
pub enum Tunnel {
    /// A Proxy stream, and the connection on it.
    Grpc(Box<Connected>, ConnectId),
    /// The socket, and bytes that came with the answer.
    HttpConnect(Box<dyn Io>, Bytes),
}

impl Tunnel {
    /// Dials over a connection to a frontend.
    ///
    /// # Errors
    /// The stage that failed, and its text.
    pub async fn dial(io: Box<dyn Io>, protocol: Protocol, target: &str) -> Result<Self, Refused> {
        match protocol {
            Protocol::Grpc => dial_grpc(io, target).await,
            Protocol::HttpConnect => dial_connect(io, target).await,
        }
    }

    /// Sends bytes to the endpoint.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn send(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        match self {
            Tunnel::Grpc(connected, id) => {
                let data = Packet::Data { id: *id, payload: bytes.into() };
                connected.stream.send(data).map_err(|error| error.to_string())
            }
            Tunnel::HttpConnect(io, _) => {
                io.write_all(&bytes).await.map_err(|error| error.to_string())?;
                io.flush().await.map_err(|error| error.to_string())
            }
        }
    }

    /// The endpoint's next bytes; empty at the end.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn receive(&mut self) -> Result<Bytes, String> {
        match self {
            Tunnel::Grpc(connected, _) => loop {
                match next(connected).await? {
                    Some(Packet::Data { payload, .. }) => return Ok(payload),
                    Some(Packet::CloseRsp { error, .. }) if !error.is_empty() => return Err(error),
                    Some(Packet::CloseRsp { .. }) | None => return Ok(Bytes::new()),
                    Some(_) => {}
                }
            },
            Tunnel::HttpConnect(_, early) if !early.is_empty() => Ok(std::mem::take(early)),
            Tunnel::HttpConnect(io, _) => {
                let mut bytes = vec![0; MAX_ANSWER_BYTES];
                let count = io.read(&mut bytes).await.map_err(|error| error.to_string())?;
                bytes.truncate(count);
                Ok(bytes.into())
            }
        }
    }

    /// Sends a ClientHello or a GET, and judges the first bytes of the answer.
    pub(super) async fn first_byte(&mut self, then: AfterDial, target: &str) -> Result<String, String> {
        let host = host_port(target).map_or(target, |(host, _)| host);
        let greeting = match then {
            AfterDial::Tls => client_hello(host)?,
            _ => format!("GET / HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n").into_bytes(),
        };
        self.send(greeting).await?;
        let bytes = self.receive().await?;
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().next().unwrap_or_default().chars().take(80).collect::<String>();
        match (then, bytes.first()) {
            (_, None) => Err("the endpoint has closed the connection without a byte".to_owned()),
            (AfterDial::Tls, Some(22)) => Ok("the endpoint answers with TLS".to_owned()),
            (AfterDial::Tls, Some(21)) => Ok("the endpoint answers with TLS, and an alert".to_owned()),
            (AfterDial::Tls, _) => Err(format!("the endpoint does not answer with TLS, but {line:?}")),
            _ if line.starts_with("HTTP/") => Ok(format!("the endpoint answers {line}")),
            _ => Err(format!("the endpoint does not answer with HTTP, but {line:?}: is it TLS?")),
        }
    }

    /// Closes the connection, and waits up to 1 s for the answer.
    pub async fn close(self) {
        if let Tunnel::Grpc(mut connected, id) = self {
            let closed = async {
                connected.stream.send(Packet::CloseReq { id }).ok()?;
                while !matches!(next(&mut connected).await.ok()??, Packet::CloseRsp { .. }) {}
                Some(())
            };
            // The server closes the connection with its stream, too.
            let _ = timeout(CLOSE_TIMEOUT, closed).await;
        }
    }
}

/// The next packet of a Proxy stream; `None` at its end.
async fn next(connected: &mut Connected) -> Result<Option<Packet<Bytes>>, String> {
    loop {
        match poll_fn(|cx| connected.stream.poll_packet(cx)).await {
            None => return Ok(None),
            Some(Ok(Incoming::Packet(packet))) => return Ok(Some(packet)),
            Some(Ok(Incoming::Unknown(_))) => {}
            Some(Ok(Incoming::Malformed(why))) => return Err(why.to_owned()),
            Some(Err(error)) => return Err(error.to_string()),
        }
    }
}

async fn dial_grpc(io: Box<dyn Io>, target: &str) -> Result<Tunnel, Refused> {
    let (stream, deadline) = (("localhost", "/ProxyService/Proxy"), Instant::now() + STAGE_TIMEOUT);
    let (protocol, address) = ("tcp".to_owned(), target.to_owned());
    let dial = Packet::DialReq { random: DIAL, protocol, address, trace: None };
    let connected = connect(io, Keepalive::DEFAULT, stream, HeaderMap::new(), Some(dial), deadline).await;
    let mut connected = connected.map_err(not_http2)?;
    loop {
        match next(&mut connected).await.map_err(not_http2)? {
            Some(Packet::DialRsp { outcome: Ok(id), .. }) => {
                return Ok(Tunnel::Grpc(Box::new(connected), id));
            }
            Some(Packet::DialRsp { outcome: Err(error), .. }) => return Err(Refused::answered(&error)),
            Some(Packet::DialCls { .. }) => {
                return Err(Refused::agent("the dial was canceled (DIAL_CLS)".to_owned()));
            }
            None => return Err(Refused::frontend("the stream ended without an answer")),
            Some(_) => {}
        }
    }
}

/// The start of an HTTP/1 answer is an impossible length of a frame.
#[expect(clippy::needless_pass_by_value, reason = "map_err hands errors in")]
fn not_http2(error: impl ToString) -> Refused {
    match error.to_string() {
        text if text.contains("frame with invalid size") => {
            Refused::frontend("its answer is not HTTP/2: does it speak HTTP CONNECT?")
        }
        text => Refused::frontend(text),
    }
}

async fn dial_connect(mut io: Box<dyn Io>, target: &str) -> Result<Tunnel, Refused> {
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    io.write_all(request.as_bytes()).await.map_err(Refused::frontend)?;
    io.flush().await.map_err(Refused::frontend)?;
    let mut answer = Vec::new();
    let (head, rest) = loop {
        let count =
            (&mut io).take(MAX_ANSWER_BYTES as u64).read_buf(&mut answer).await.map_err(Refused::frontend)?;
        if let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = answer.split_off(end + 4);
            break (String::from_utf8_lossy(&answer).into_owned(), rest);
        }
        if count == 0 || answer.len() >= MAX_ANSWER_BYTES {
            return Err(Refused::frontend("its answer is not HTTP: does it speak gRPC?"));
        }
    };
    if head.split(' ').nth(1) == Some("200") {
        return Ok(Tunnel::HttpConnect(io, rest.into()));
    }
    let mut body = rest;
    // What has arrived counts, also without an end.
    let _ = timeout(CLOSE_TIMEOUT, (&mut io).take(MAX_ANSWER_BYTES as u64).read_to_end(&mut body)).await;
    let body = String::from_utf8_lossy(&body).into_owned();
    Err(Refused::answered(if body.trim().is_empty() {
        head.lines().next().unwrap_or_default()
    } else {
        &body
    }))
}

/// The first bytes of a TLS client. No certificate is judged: the server's first byte suffices.
fn client_hello(host: &str) -> Result<Vec<u8>, String> {
    let config = client_config(any_server(), None, Vec::new()).map_err(|error| error.to_string())?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("{host}: {error}"))?;
    let client = ClientConnection::new(config, name);
    let mut hello = Vec::new();
    client.map_err(|error| error.to_string())?.write_tls(&mut hello).map_err(|error| error.to_string())?;
    Ok(hello)
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[test]
    fn failures_belong_to_stages() {
        for (text, stage) in [
            ("currently no tunnels available: No agent available", "selection"),
            ("Failed to tunnel dial request: too many connections, try again later\r\n", "selection"),
            ("Backend dial timeout: timed out waiting for backend dial\r\n", "agent"),
            ("Backend context error: context canceled", "agent"),
            ("dial tcp 10.0.0.1:80: connect: connection refused", "connect"),
            ("dial tcp 10.0.0.1:80: i/o timeout", "connect"),
            ("destination is denied", "connect"),
        ] {
            assert_eq!(Refused::answered(text), Refused { stage, text: text.trim().to_owned() });
        }
    }

    #[tokio::test]
    async fn frontend_of_the_other_protocol_is_told() {
        for (protocol, answer, text) in [
            (
                Protocol::Grpc,
                &b"HTTP/1.1 405 Method Not Allowed\r\n\r\n"[..],
                "its answer is not HTTP/2: does it speak HTTP CONNECT?",
            ),
            (Protocol::HttpConnect, &[0; 9], "its answer is not HTTP: does it speak gRPC?"),
        ] {
            let (near, mut far) = duplex(1 << 10);
            let peer = async move {
                far.write_all(answer).await.unwrap();
                far.shutdown().await.unwrap();
                let _ = far.read_to_end(&mut Vec::new()).await;
            };
            let (dialed, ()) = tokio::join!(Tunnel::dial(Box::new(near), protocol, "a:1"), peer);
            assert_eq!(dialed.err(), Some(Refused::frontend(text)));
        }
    }

    #[test]
    fn hello_is_a_handshake_record_with_the_name() {
        let hello = client_hello("kubelet.example").unwrap();
        assert_eq!(hello[0], 22);
        assert!(hello.windows(15).any(|window| window == b"kubelet.example"));
        assert_eq!(client_hello("10.0.0.1").unwrap()[0], 22);
    }
}
