//! The endpoint of all connections: sends, receives or echoes bytes, depending on the first byte of a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::netns::Namespace;

/// The size of one read or write.
pub(super) const PIECE: usize = 256 << 10;

/// The commands in the first byte of a connection.
pub(super) const DOWNLOAD: u8 = b'D';
pub(super) const UPLOAD: u8 = b'U';
pub(super) const ECHO: u8 = b'E';

/// A listener in a namespace; dropping it ends it.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    /// Bytes of uploads so far.
    pub(super) received: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Endpoint {
    pub(super) fn start(at: &Namespace, tls: Option<TlsAcceptor>) -> Result<Self> {
        let listener = at.listen((at.address, 0).into())?;
        let address = listener.local_addr()?;
        let received = Arc::<AtomicU64>::default();
        let count = Arc::clone(&received);
        let task = tokio::spawn(async move {
            let mut serving = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while serving.try_join_next().is_some() {}
                let (count, tls) = (Arc::clone(&count), tls.clone());
                serving.spawn(async move {
                    stream.set_nodelay(true)?;
                    match tls {
                        Some(tls) => serve(tls.accept(stream).await?, count).await,
                        None => serve(stream, count).await,
                    }
                });
            }
        });
        Ok(Self { address, received, task: task.abort_handle() })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves one connection. An error ends the connection, which the client notices.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    received: Arc<AtomicU64>,
) -> std::io::Result<()> {
    match stream.read_u8().await? {
        DOWNLOAD => {
            let zeros = vec![0; PIECE];
            loop {
                stream.write_all(&zeros).await?;
            }
        }
        UPLOAD => count(&mut stream, &received).await,
        _ => {
            let mut piece = vec![0; PIECE];
            while let size @ 1.. = stream.read(&mut piece).await? {
                stream.write_all(&piece[..size]).await?;
                stream.flush().await?;
            }
            Ok(())
        }
    }
}

/// Reads to the end, and counts the bytes.
pub(super) async fn count(from: &mut (impl AsyncRead + Unpin), into: &AtomicU64) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    while let size @ 1.. = from.read(&mut piece).await? {
        into.fetch_add(size as u64, Ordering::Relaxed);
    }
    Ok(())
}
