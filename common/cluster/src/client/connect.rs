//! One connection to the API server: TCP, perhaps through a proxy, TLS, HTTP/1.1.
//!
//! Proxies are spoken to as by Go's net/http: in TLS if their URL is `https`, believing whom the API's TLS believes; by
//! `CONNECT` before an API in TLS, and with whole requests before one in plain HTTP.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use transport::env_proxy::{Proxy, tunnel};
use transport::listen::{KeepAlive, tune};

use super::ApiError;
use crate::config::{Config, Shown, name_in_tls};

/// How long what was sent may stay unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection that takes one request at a time.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// TCP, TLS over it, or a tunnel through either.
type Stream = Box<dyn Io>;

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Opens a connection. Not bounded in time by itself.
pub(super) async fn connect(config: &Config, shown: &Shown) -> Result<Sender, ApiError> {
    let server = &config.server;
    let failed = |why: String| ApiError::Unreachable { at: server.authority(), why };
    let stream = match &config.proxy {
        Some(proxy) => through(proxy, config, shown).await?,
        None => Box::new(dial(&server.host, server.port).await.map_err(|error| failed(error.to_string()))?),
    };
    if !server.https {
        return speak(stream).await.map_err(failed);
    }
    let tls = config.tls.build(shown.identity.as_ref())?;
    let name = config.tls.name(&server.host)?;
    let stream = TlsConnector::from(tls).connect(name, stream).await;
    speak(stream.map_err(|error| failed(format!("TLS: {error}")))?).await.map_err(failed)
}

/// What behind a proxy takes the API's TLS, or whole requests for an API without.
async fn through(proxy: &Proxy, config: &Config, shown: &Shown) -> Result<Stream, ApiError> {
    let server = &config.server;
    let failed = |why: String| ApiError::Unreachable { at: server.authority(), why };
    let tcp = dial(proxy.host(), proxy.port()).await;
    let mut stream: Stream = Box::new(tcp.map_err(|error| failed(format!("proxy {proxy}: {error}")))?);
    if proxy.is_tls() {
        let tls = TlsConnector::from(config.tls.build(shown.identity.as_ref())?);
        let shaken = tls.connect(name_in_tls(proxy.host())?, stream).await;
        stream = Box::new(shaken.map_err(|error| failed(format!("proxy {proxy}: TLS: {error}")))?);
    }
    if server.https {
        let tunnelled = tunnel(stream, proxy, &server.authority()).await;
        stream = tunnelled.map_err(|error| failed(error.to_string()))?;
    }
    Ok(stream)
}

async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect((host, port)).await?;
    tune(&tcp, KeepAlive::default(), Some(USER_TIMEOUT))?;
    Ok(tcp)
}

async fn speak<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static>(io: IO) -> Result<Sender, String> {
    let (sender, connection) = handshake(TokioIo::new(io)).await.map_err(|error| error.to_string())?;
    // Ends with the connection, which ends when its sender and the body of its last answer are dropped.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to the Kubernetes API lost");
        }
    });
    Ok(sender)
}
