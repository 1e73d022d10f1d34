//! One connection to the API server: TCP, perhaps through a proxy, TLS, HTTP/1.1.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use transport::env_proxy::{self, EnvProxy};
use transport::listen::{KeepAlive, tune};

use super::ApiError;
use crate::config::{Config, Shown};

/// How long what was sent may stay unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection that takes one request at a time.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// Opens a connection. Not bounded in time by itself.
pub(super) async fn connect(
    config: &Config,
    environment: &EnvProxy,
    shown: &Shown,
) -> Result<Sender, ApiError> {
    let server = &config.server;
    let failed = |why: String| ApiError::Unreachable { at: server.authority(), why };
    let tcp = dial(config, environment).await.map_err(failed)?;
    tune(&tcp, KeepAlive::default(), Some(USER_TIMEOUT)).map_err(|error| failed(error.to_string()))?;
    if !server.https {
        return speak(tcp).await.map_err(failed);
    }
    let tls = config.tls.build(shown.identity.as_ref())?;
    let name = config.tls.name(&server.host)?;
    let stream = TlsConnector::from(tls).connect(name, tcp).await;
    speak(stream.map_err(|error| failed(format!("TLS: {error}")))?).await.map_err(failed)
}

async fn dial(config: &Config, environment: &EnvProxy) -> Result<TcpStream, String> {
    let server = &config.server;
    let proxy = match &config.proxy {
        Some(proxy) => Some(proxy),
        None if server.https => {
            environment.proxy_for(&server.host, server.port).map_err(|e| e.to_string())?
        }
        None => None,
    };
    match proxy {
        Some(proxy) => {
            env_proxy::connect_through(proxy, &server.authority()).await.map_err(|e| e.to_string())
        }
        None => TcpStream::connect((server.host.as_str(), server.port))
            .await
            .map_err(|e: io::Error| e.to_string()),
    }
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
