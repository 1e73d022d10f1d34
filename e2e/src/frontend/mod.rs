//! Independent clients of both frontends, which behave as kube-apiserver does.

mod connect;
mod shared;
mod tunnel;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Result;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Channel;

pub use self::shared::SharedConnection;
pub use self::tunnel::Tunnel;
use crate::adversarial::{PacketStream, channel};
use crate::http1::Head;
use crate::pki::Pki;
use crate::wait::within;

/// The server's `--mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `--mode=grpc`.
    Grpc,
    /// `--mode=http-connect`.
    HttpConnect,
}

impl Mode {
    /// The flag's value.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::HttpConnect => "http-connect",
        }
    }
}

/// Any byte stream.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Where a frontend listens.
#[derive(Clone, Debug)]
pub enum Place {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP with mutual TLS.
    Tls(SocketAddr),
}

/// One server's frontend.
#[derive(Clone, Debug)]
pub struct Frontend {
    /// Its mode.
    pub mode: Mode,
    /// Where it listens.
    pub place: Place,
    pki: Pki,
    client: Option<Arc<ClientConfig>>,
}

/// Why a dial failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The gRPC frontend answered with an error.
    #[error("DIAL_RSP: {0}")]
    Refused(String),
    /// The HTTP CONNECT frontend answered with another status than 200.
    #[error("HTTP {}: {body}", head.status)]
    Http {
        /// The head.
        head: Head,
        /// The body.
        body: String,
    },
    /// The stream ended without an answer.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// The frontend could not be reached, or another error occurred.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl DialError {
    /// The frontend's text: the error of the DIAL_RSP or the body.
    pub fn text(&self) -> &str {
        match self {
            Self::Refused(text) | Self::Http { body: text, .. } | Self::NoAnswer(text) => text,
            Self::Other(_) => "",
        }
    }

    /// The HTTP status, if the frontend sent one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Http { head, .. } => Some(head.status),
            _ => None,
        }
    }
}

/// An open connection through the tunnel.
pub enum Conn {
    /// Over a gRPC stream.
    Grpc(Box<Tunnel>),
    /// Over HTTP CONNECT: the socket itself.
    Connect(Box<dyn Io>),
}

impl Frontend {
    /// The client of a frontend.
    pub fn new(mode: Mode, place: Place, pki: Pki) -> Self {
        Self { mode, place, pki, client: None }
    }

    /// The same client, which reads its certificate now instead of for each dial: for many dials per second.
    pub fn reading_once(self) -> Result<Self> {
        let client = Some(self.client_config()?);
        Ok(Self { client, ..self })
    }

    fn client_config(&self) -> Result<Arc<ClientConfig>> {
        let alpn = match self.mode {
            Mode::Grpc => "h2",
            Mode::HttpConnect => "http/1.1",
        };
        self.client.clone().map_or_else(|| self.pki.frontend_client(&[alpn]), Ok)
    }

    /// A connected socket (with TLS if the frontend uses it), before any protocol.
    pub async fn socket(&self) -> Result<Box<dyn Io>> {
        match &self.place {
            Place::Unix(path) => {
                // `@` begins the name of an abstract socket, as in Go. The system marks it by a zero byte.
                let name = path.to_str().and_then(|path| path.strip_prefix('@'));
                let address = name.map_or_else(|| path.clone(), |name| format!("\0{name}").into());
                Ok(Box::new(UnixStream::connect(address).await?))
            }
            Place::Tls(address) => Ok(Box::new(tls_socket(*address, self.client_config()?).await?)),
        }
    }

    /// A separate HTTP/2 connection, for several streams.
    pub async fn channel(&self) -> Result<Channel> {
        channel(self.socket().await?).await
    }

    /// A gRPC stream on a separate connection.
    pub async fn packets(&self) -> Result<PacketStream> {
        Ok(PacketStream::proxy(self.channel().await?))
    }

    /// Dials `host:port` over a separate connection, as kube-apiserver does.
    pub async fn dial(&self, target: &str) -> Result<Conn, DialError> {
        match self.mode {
            Mode::Grpc => Ok(Conn::Grpc(Box::new(Tunnel::dial(self.packets().await?, target).await?))),
            Mode::HttpConnect => Ok(Conn::Connect(connect::dial(self.socket().await?, target).await?)),
        }
    }

    /// Dials and expects a failure.
    pub async fn dial_error(&self, target: &str) -> Result<DialError> {
        match self.dial(target).await {
            Ok(_) => anyhow::bail!("the dial of {target} succeeded"),
            Err(error) => Ok(error),
        }
    }
}

/// A TLS connection to an address of the loopback interface.
pub async fn tls_socket(address: SocketAddr, config: Arc<ClientConfig>) -> Result<TlsStream<TcpStream>> {
    tls_over(TcpStream::connect(address).await?, config).await
}

/// TLS over an existing connection.
pub async fn tls_over(stream: TcpStream, config: Arc<ClientConfig>) -> Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    let name = ServerName::from(stream.peer_addr()?.ip());
    Ok(within("a TLS handshake", TlsConnector::from(config).connect(name, stream)).await??)
}

impl AsyncRead for Conn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Grpc(tunnel) => Pin::new(tunnel).poll_read(cx, buf),
            Self::Connect(socket) => Pin::new(socket).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Grpc(tunnel) => Pin::new(tunnel).poll_write(cx, buf),
            Self::Connect(socket) => Pin::new(socket).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Grpc(tunnel) => Pin::new(tunnel).poll_flush(cx),
            Self::Connect(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Grpc(tunnel) => Pin::new(tunnel).poll_shutdown(cx),
            Self::Connect(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}
