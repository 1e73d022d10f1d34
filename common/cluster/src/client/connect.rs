//! One connection to the API server: TCP, optionally through a proxy, TLS, HTTP/1.1.
//!
//! Proxies are used as by Go's net/http: with TLS if their URL is `https`, with the authorities of the API's TLS; by
//! `CONNECT` for an API with TLS, and by absolute-form requests for one with plain HTTP.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use net::env_proxy::{Proxy, tunnel};
use net::listen::tune;
use net::tls::{HandshakeError, explained};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

use super::ApiError;
use crate::config::{Config, PresentedCredentials, name_in_tls};

/// How long sent bytes may stay unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// How long an address is tried alone before the next one is tried in parallel (as in Go).
const HEAD_START: Duration = Duration::from_millis(300);

/// A connection that takes one request at a time.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// TCP, TLS over it, or a tunnel through either.
type Stream = Box<dyn Io>;

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Opens a connection. Has no time-out of its own.
pub(super) async fn connect(config: &Config, presented: &PresentedCredentials) -> Result<Sender, ApiError> {
    let server = &config.server;
    let failed = |why: &dyn Display| ApiError::unreachable(server, why);
    let mut stream: Stream = match &config.proxy {
        Some(proxy) => through(proxy, config, presented).await?,
        None => Box::new(dial(&server.host, server.port).await.map_err(|error| failed(&error))?),
    };
    if server.https {
        stream = encrypted(config, presented, config.tls.name(&server.host), stream, "").await?;
    }
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    // Ends with the connection, which ends when its sender and the body of its last answer are dropped.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to the Kubernetes API lost");
        }
    });
    Ok(sender)
}

/// A stream through the proxy: for the API's TLS, or for absolute-form requests to an API without TLS.
async fn through(
    proxy: &Proxy,
    config: &Config,
    presented: &PresentedCredentials,
) -> Result<Stream, ApiError> {
    let server = &config.server;
    let failed = |why: &dyn Display| ApiError::unreachable(server, why);
    let tcp = dial(&proxy.host, proxy.port).await;
    let mut stream: Stream = Box::new(tcp.map_err(|error| failed(&format_args!("proxy {proxy}: {error}")))?);
    if proxy.tls {
        let place = format!("proxy {proxy}: ");
        stream = encrypted(config, presented, name_in_tls(&proxy.host), stream, &place).await?;
    }
    if server.https {
        stream = tunnel(stream, proxy, &server.authority()).await.map_err(|error| failed(&error))?;
    }
    Ok(stream)
}

/// TLS to the server `name`; `place` is the prefix of errors.
async fn encrypted(
    config: &Config,
    presented: &PresentedCredentials,
    name: Result<ServerName<'static>, String>,
    stream: Stream,
    place: &str,
) -> Result<Stream, ApiError> {
    let connect = connector(config, presented).await?.connect(name.map_err(ApiError::tls)?, stream);
    let shaken = Box::pin(explained(connect, || config.tls.authorities())).await;
    let stream = shaken.map_err(|error| {
        let why = match &error {
            HandshakeError::UnknownIssuer { authorities, .. } => format!(" ({authorities})"),
            _ => String::new(),
        };
        ApiError::unreachable(&config.server, &format_args!("{place}{error}{why}"))
    })?;
    Ok(Box::new(stream))
}

/// Reads the files on a blocking thread: a network file system may hang.
async fn connector(config: &Config, presented: &PresentedCredentials) -> Result<TlsConnector, ApiError> {
    let (files, identity) = (config.tls.clone(), presented.identity.clone());
    let built = spawn_blocking(move || files.build(identity.as_ref())).await;
    let built = built.unwrap_or_else(|error| Err(error.to_string()));
    built.map(TlsConnector::from).map_err(ApiError::tls)
}

async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let tcp = race(lookup_host((host, port)).await?.collect()).await?;
    tune(&tcp, Some(USER_TIMEOUT))?;
    Ok(tcp)
}

/// The first connection that succeeds: a name may have an address whose host is down and does not answer.
async fn race(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut addresses = addresses.into_iter();
    let (mut tries, mut last) = (JoinSet::new(), io::Error::other("the name has no address"));
    loop {
        match addresses.next() {
            Some(address) => drop(tries.spawn(TcpStream::connect(address))),
            None if tries.is_empty() => return Err(last),
            None => {}
        }
        tokio::select! {
            Some(ended) = tries.join_next() => match ended {
                Ok(Ok(tcp)) => return Ok(tcp),
                Ok(Err(error)) => last = error,
                Err(panic) => last = io::Error::other(panic),
            },
            () = sleep(HEAD_START), if addresses.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    use super::*;

    /// An address that does not answer while these sockets live: its listener accepts one connection, and one waits.
    async fn silent() -> (Socket, Vec<TcpStream>, SocketAddr) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut waiting = Vec::new();
        while let Ok(tcp) = timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
            waiting.push(tcp.unwrap());
        }
        (listener, waiting, address)
    }

    #[tokio::test]
    async fn an_address_that_answers_nothing_does_not_keep_from_the_next() {
        let (_listener, _waiting, silent) = silent().await;
        let there = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = there.local_addr().map(|address| (there, address)).unwrap();
        let tcp =
            timeout(Duration::from_secs(20), race(vec![silent, there.1])).await.expect("in time").unwrap();
        assert_eq!(tcp.peer_addr().unwrap(), there.1);
    }

    #[tokio::test]
    async fn refused_connection_tries_the_next_address_and_reports_the_last_error() {
        // Bound, so that no other process gets its port, but not listening.
        let unused = TcpSocket::new_v4().unwrap();
        unused.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let closed = unused.local_addr().unwrap();
        let there = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = there.local_addr().unwrap();
        assert_eq!(race(vec![closed, address]).await.unwrap().peer_addr().unwrap(), address);
        assert_eq!(race(vec![closed]).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(race(vec![]).await.unwrap_err().to_string(), "the name has no address");
    }
}
