//! One dial through one frontend, and the endpoint's answer.

use std::fmt::Display;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use commands::probe::{IdentityFlags, LIMIT, Place, Refused, Tunnel};
use net::host_port::host_port;
use net::tls::any_server;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::time::{Instant, timeout};

use super::verdict::Failure;

/// The time limit of an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// The most bytes of an answer that are compared.
const MOST: usize = 1 << 20;

/// The question to the endpoint after the dial.
#[derive(Debug)]
pub(super) struct Ask {
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
    /// The first [`MOST`] bytes of the body. Headers are left out: they contain the time.
    pub(super) body: Vec<u8>,
}

/// Connects to the frontend, dials and asks. Returns the seconds until the dial was answered, and the answer.
pub(super) async fn dial(
    place: &Place,
    identity: &IdentityFlags,
    target: &str,
    ask: &Ask,
) -> Result<(f64, Answer), Failure> {
    let began = Instant::now();
    let dialed = async {
        let io = place.connect(identity).await.map_err(|text| Refused { stage: "frontend", text })?;
        Tunnel::dial(io, place.protocol(), target).await
    };
    let dialed = timeout(LIMIT, dialed).await;
    let mut tunnel = dialed.map_err(|_| Failure::new("frontend", "it timed out"))??;
    let seconds = began.elapsed().as_secs_f64();
    let answer = timeout(ANSWER_LIMIT, answer(&mut tunnel, target, ask)).await;
    tunnel.close().await;
    let late = |_| Failure::new("answer", "it timed out");
    Ok((seconds, answer.map_err(late)?.map_err(|text| Failure::new("answer", &text))?))
}

async fn answer(tunnel: &mut Tunnel, target: &str, ask: &Ask) -> Result<Answer, String> {
    let mut answer = Answer::default();
    let mut plain = Vec::new();
    let mut tls = match ask.tls {
        true => Some(handshake(tunnel, target, &mut plain).await?),
        false => None,
    };
    if let Some(tls) = &tls {
        answer.chain =
            tls.peer_certificates().unwrap_or_default().iter().map(|der| der.clone().into_owned()).collect();
    }
    let Some(path) = &ask.get else { return Ok(answer) };
    // HTTP/1.0: an answer in one piece, and its end is the connection's.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {target}\r\nConnection: close\r\n\r\n").into_bytes();
    let bytes = match &mut tls {
        Some(tls) => {
            tls.writer().write_all(&request).map_err(text)?;
            send(tunnel, tls).await?;
            read_within(tunnel, tls, plain).await?
        }
        None => {
            tunnel.send(request).await?;
            read(tunnel).await?
        }
    };
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.filter(|_| bytes.starts_with(b"HTTP/")).ok_or("the endpoint's answer is not HTTP")?;
    answer.body = bytes.get(end + 4..).unwrap_or_default().to_vec();
    answer.status = String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned();
    Ok(answer)
}

/// The endpoint's bytes up to its end.
async fn read(tunnel: &mut Tunnel) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    while all.len() < MOST {
        match tunnel.receive().await? {
            bytes if bytes.is_empty() => break,
            bytes => all.extend_from_slice(&bytes),
        }
    }
    all.truncate(MOST);
    Ok(all)
}

/// The same within TLS, after the `plain` that has arrived.
async fn read_within(
    tunnel: &mut Tunnel,
    tls: &mut ClientConnection,
    mut plain: Vec<u8>,
) -> Result<Vec<u8>, String> {
    while plain.len() < MOST && receive(tunnel, tls, &mut plain).await? {}
    plain.truncate(MOST);
    Ok(plain)
}

/// A TLS session with the endpoint. Its certificate is compared; only the handshake's signature is verified, because nothing
/// secret is sent. The endpoint may send plaintext with its last message of the handshake.
async fn handshake(
    tunnel: &mut Tunnel,
    target: &str,
    plain: &mut Vec<u8>,
) -> Result<ClientConnection, String> {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(text)?.dangerous();
    let config = config.with_custom_certificate_verifier(any_server()).with_no_client_auth();
    let host = host_port(target).map_or(target, |(host, _)| host);
    let name = ServerName::try_from(host.to_owned()).map_err(text)?;
    let mut tls = ClientConnection::new(Arc::new(config), name).map_err(text)?;
    loop {
        send(tunnel, &mut tls).await?;
        if !tls.is_handshaking() {
            return Ok(tls);
        }
        if !receive(tunnel, &mut tls, plain).await? {
            return Err("the endpoint closed the connection within the TLS handshake".to_owned());
        }
    }
}

async fn send(tunnel: &mut Tunnel, tls: &mut ClientConnection) -> Result<(), String> {
    let mut bytes = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut bytes).map_err(text)?;
    }
    if bytes.is_empty() { Ok(()) } else { tunnel.send(bytes).await }
}

/// Appends the next plaintext, up to [`MOST`] bytes and one TLS record. Returns whether more may follow.
async fn receive(
    tunnel: &mut Tunnel,
    tls: &mut ClientConnection,
    plain: &mut Vec<u8>,
) -> Result<bool, String> {
    if tls.process_new_packets().map_err(text)?.peer_has_closed() {
        return Ok(false);
    }
    let bytes = tunnel.receive().await?;
    let mut rest = &bytes[..];
    while !rest.is_empty() && plain.len() < MOST {
        // After close_notify rustls takes no more bytes.
        if tls.read_tls(&mut rest).map_err(text)? == 0 {
            break;
        }
        // rustls fails if it has to keep more than 16 KiB of plaintext.
        let count = tls.process_new_packets().map_err(text)?.plaintext_bytes_to_read();
        tls.reader().take(count as u64).read_to_end(plain).map_err(text)?;
    }
    Ok(!bytes.is_empty())
}

fn text(error: impl Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use bytes::Bytes;
    use rustls::{ServerConfig, ServerConnection};
    use rustls_pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn endpoint() -> ServerConnection {
        let made = rcgen::generate_simple_self_signed(["kubelet.example".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let mut endpoint = ServerConnection::new(Arc::new(config)).unwrap();
        endpoint.set_buffer_limit(None);
        endpoint
    }

    fn sent_by(endpoint: &mut ServerConnection) -> Vec<u8> {
        let mut bytes = Vec::new();
        while endpoint.wants_write() {
            endpoint.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Receives `length` bytes of plaintext, close_notify and `behind` bytes in one DATA; returns the length that was read.
    async fn read_one_data(length: usize, behind: usize) -> Result<usize, String> {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        let (mut tunnel, mut endpoint) = (Tunnel::HttpConnect(Box::new(ours), Bytes::new()), endpoint());
        let mut plain = Vec::new();
        let serving = async {
            let mut bytes = vec![0; 16 * 1024];
            loop {
                let count = theirs.read(&mut bytes).await.unwrap();
                let mut rest = &bytes[..count];
                while !rest.is_empty() {
                    endpoint.read_tls(&mut rest).unwrap();
                    endpoint.process_new_packets().unwrap();
                }
                if !endpoint.is_handshaking() {
                    break;
                }
                theirs.write_all(&sent_by(&mut endpoint)).await.unwrap();
            }
        };
        let (tls, ()) = tokio::join!(handshake(&mut tunnel, "kubelet.example:443", &mut plain), serving);
        endpoint.writer().write_all(&vec![b'x'; length]).unwrap();
        endpoint.send_close_notify();
        let mut data = sent_by(&mut endpoint);
        data.resize(data.len() + behind, 0);
        let Tunnel::HttpConnect(_, next) = &mut tunnel else { unreachable!("made above") };
        *next = data.into();
        Ok(read_within(&mut tunnel, &mut tls?, plain).await?.len())
    }

    /// In a thread of its own: a loop without an end cannot be canceled.
    fn read_in_time(length: usize, behind: usize) -> Result<usize, String> {
        let (done, result) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            done.send(runtime.block_on(read_one_data(length, behind)))
        });
        result.recv_timeout(Duration::from_secs(30)).map_err(text)?
    }

    #[test]
    fn plaintext_above_the_buffer_of_rustls_is_read_from_one_data() {
        assert_eq!(read_in_time(64 * 1024, 0), Ok(64 * 1024));
        assert_eq!(read_in_time(2 * MOST, 0), Ok(MOST));
    }

    #[test]
    fn bytes_behind_close_notify_are_ignored() {
        for length in [0, 100, 64 * 1024] {
            assert_eq!(read_in_time(length, 16 * 1024), Ok(length));
        }
    }
}
