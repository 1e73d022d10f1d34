//! One dial through one frontend, and the endpoint's answer.

use std::fmt::Display;
use std::io::ErrorKind;
use std::time::Duration;

use commands::probe::{FrontendAddress, IdentityFlags, Io, Refused, STAGE_TIMEOUT, Tunnel};
use net::host_port::host_port;
use net::tls::{any_server, client_config};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::verdict::Failure;

/// The time limit of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// The most bytes of an answer that are compared.
const MAX_COMPARED_BYTES: u64 = 1 << 20;
/// Bytes that wait between the tunnel and its user, in each direction.
const PIPE_BYTES: usize = 64 << 10;

/// The question to the endpoint after the dial.
#[derive(Debug)]
pub(super) struct EndpointRequest {
    /// For its certificates.
    pub(super) tls: bool,
    /// For the page of this path.
    pub(super) get: Option<String>,
}

/// The answer of an endpoint; equal if nothing differs that should be the same each time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// Its certificate chain, DER.
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// The first line of HTTP.
    pub(super) status: String,
    /// The first [`MAX_COMPARED_BYTES`] bytes of the body. Headers are left out: they contain the time.
    pub(super) body: Vec<u8>,
}

/// Connects to the frontend, dials and asks. Returns the seconds until the dial was answered, and the answer.
pub(super) async fn dial(
    place: &FrontendAddress,
    identity: &IdentityFlags,
    target: &str,
    ask: &EndpointRequest,
) -> Result<(f64, Answer), Failure> {
    let began = Instant::now();
    let dialed = async {
        let io = place.connect(identity).await.map_err(|text| Refused { stage: "frontend", text })?;
        Tunnel::dial(io, place.protocol, target).await
    };
    let dialed = timeout(STAGE_TIMEOUT, dialed).await;
    let mut tunnel = dialed.map_err(|_| Failure::new("frontend", "it timed out"))??;
    let seconds = began.elapsed().as_secs_f64();
    let (near, far) = duplex(PIPE_BYTES);
    let answer = timeout(ANSWER_TIMEOUT, async {
        tokio::select! {
            answer = ask.answer(near, target) => answer,
            Err(error) = carry(&mut tunnel, far) => Err(error),
        }
    });
    let answer = answer.await;
    tunnel.close().await;
    let late = |_| Failure::new("answer", "it timed out");
    Ok((seconds, answer.map_err(late)?.map_err(|text| Failure::new("answer", &text))?))
}

/// Carries bytes between the tunnel and `io` until the endpoint's end.
async fn carry(tunnel: &mut Tunnel, mut io: DuplexStream) -> Result<(), String> {
    let mut buffer = vec![0; PIPE_BYTES];
    loop {
        tokio::select! {
            bytes = tunnel.receive() => match bytes? {
                bytes if bytes.is_empty() => return Ok(()),
                bytes => io.write_all(&bytes).await.map_err(text)?,
            },
            count = io.read(&mut buffer) => tunnel.send(buffer[..count.map_err(text)?].to_vec()).await?,
        }
    }
}

impl EndpointRequest {
    /// Asks the endpoint behind `io`.
    async fn answer(&self, io: DuplexStream, target: &str) -> Result<Answer, String> {
        let (mut answer, mut io): (_, Box<dyn Io>) = (Answer::default(), Box::new(io));
        if self.tls {
            let tls = handshake(io, target).await?;
            let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
            answer.chain = chain.iter().map(|der| der.clone().into_owned()).collect();
            io = Box::new(tls);
        }
        let Some(path) = &self.get else { return Ok(answer) };
        // HTTP/1.0: an answer in one piece, and its end is the connection's.
        let request = format!("GET {path} HTTP/1.0\r\nHost: {target}\r\nConnection: close\r\n\r\n");
        io.write_all(request.as_bytes()).await.map_err(text)?;
        io.flush().await.map_err(text)?;
        let mut bytes = Vec::new();
        match io.take(MAX_COMPARED_BYTES).read_to_end(&mut bytes).await {
            // TLS that ends without close_notify.
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(text(error)),
            _ => {}
        }
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.filter(|_| bytes.starts_with(b"HTTP/")).ok_or("the endpoint's answer is not HTTP")?;
        answer.body = bytes.get(end + 4..).unwrap_or_default().to_vec();
        answer.status = String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned();
        Ok(answer)
    }
}

/// A TLS session with the endpoint. Its certificate is compared; only the handshake's signature is verified, because nothing
/// secret is sent.
async fn handshake(io: Box<dyn Io>, target: &str) -> Result<TlsStream<Box<dyn Io>>, String> {
    let config = client_config(any_server(), None, Vec::new()).map_err(text)?;
    let host = host_port(target).map_or(target, |(host, _)| host);
    let name = ServerName::try_from(host.to_owned()).map_err(text)?;
    TlsConnector::from(config).connect(name, io).await.map_err(text)
}

fn text(error: impl Display) -> String {
    error.to_string()
}
