//! The bare relay: a Unix socket, TLS over TCP, a TCP connection, and nothing else. One TLS connection for each connection, no
//! multiplexing, no protocol except one line with the target: the limit of tokio and rustls on this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::pki::Pki;

const BUFFER: usize = 64 * 1024;

/// The relay's process on the clients' side. Runs until it is killed.
pub async fn ingress_relay(socket: &Path, egress_relay: SocketAddr, pki: &Path) -> Result<()> {
    let connector = TlsConnector::from(Pki::open(pki).agent_client()?);
    let listener = UnixListener::bind(socket)?;
    loop {
        let (client, _) = listener.accept().await?;
        let connector = connector.clone();
        tokio::spawn(async move {
            let tcp = TcpStream::connect(egress_relay).await?;
            tcp.set_nodelay(true)?;
            let tls = connector.connect(ServerName::from(egress_relay.ip()), tcp).await?;
            join(client, tls).await
        });
    }
}

/// The relay's process on the endpoints' side. Runs until it is killed.
pub async fn egress_relay(port: u16, pki: &Path) -> Result<()> {
    let acceptor = TlsAcceptor::from(Pki::open(pki).agent_server()?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let acceptor = Arc::new(acceptor);
    loop {
        let (tcp, _) = listener.accept().await?;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            tcp.set_nodelay(true)?;
            let mut tls = acceptor.accept(tcp).await?;
            let mut line = Vec::new();
            loop {
                match tls.read_u8().await? {
                    b'\n' => break,
                    byte => line.push(byte),
                }
            }
            let endpoint = TcpStream::connect(String::from_utf8(line)?).await?;
            endpoint.set_nodelay(true)?;
            join(tls, endpoint).await
        });
    }
}

async fn join(
    mut one: impl AsyncRead + AsyncWrite + Unpin,
    mut two: impl AsyncRead + AsyncWrite + Unpin,
) -> Result<()> {
    copy_bidirectional_with_sizes(&mut one, &mut two, BUFFER, BUFFER).await?;
    Ok(())
}
