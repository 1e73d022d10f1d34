//! What an HTTP-CONNECT frontend needs of a socket beyond reading and writing: a head that shares no read with
//! payload, an abortive close, and the difference between "sends no more" and "is gone".

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// Whether a client's read can bring the head together with what is written after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Separation {
    /// It cannot, whenever the next byte is written.
    Certain,
    /// It can, unless the client reads first: wait a little.
    ByTime,
}

/// A descriptor that says nothing (`/dev/null`), passed with a head so that a Unix socket keeps it apart.
#[derive(Debug, Clone)]
pub struct ReadBarrier(Option<Arc<OwnedFd>>);

impl ReadBarrier {
    /// Opens `/dev/null`. Where that fails, heads are separated by time alone, which is logged once here.
    pub fn open() -> Self {
        match std::fs::File::open("/dev/null") {
            Ok(file) => ReadBarrier(Some(Arc::new(file.into()))),
            Err(error) => {
                tracing::warn!(%error, "cannot open /dev/null: CONNECT heads are separated from payload by time only");
                ReadBarrier(None)
            }
        }
    }
}

#[cfg(test)]
impl ReadBarrier {
    /// Heads separated by time alone.
    pub fn none() -> Self {
        ReadBarrier(None)
    }
}

/// A frontend's socket.
pub trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Writes a head, and says whether it is certain to be read alone.
    fn send_head(
        &mut self,
        head: &[u8],
        barrier: &ReadBarrier,
    ) -> impl Future<Output = io::Result<Separation>> + Send;

    /// Makes the coming close a reset, where the transport has one.
    fn abort(&self);

    /// After an end of file: whether the peer does not listen either. `false` when that cannot be known.
    fn is_deaf(&self) -> bool {
        false
    }

    /// How long to wait for the peer's end of file before an orderly close. A close with unread input, or input
    /// that comes later, resets a TCP connection and destroys what the peer has not received yet.
    const LINGER: Duration;
}

impl Socket for UnixStream {
    /// A socket pair's data survives the close of one end.
    const LINGER: Duration = Duration::ZERO;

    /// A message with a descriptor ends the read that takes it, in Linux (`unix_stream_read_generic`). The
    /// client's kernel discards the descriptor, for want of room for it, in any plain read.
    async fn send_head(&mut self, head: &[u8], barrier: &ReadBarrier) -> io::Result<Separation> {
        if let Some(null) = &barrier.0 {
            match self.async_io(Interest::WRITABLE, || send_with(self, head, null)).await {
                Ok(sent) if sent == head.len() => return Ok(Separation::Certain),
                Ok(sent) => {
                    self.write_all(head.get(sent..).unwrap_or_default()).await?;
                    return Ok(Separation::ByTime);
                }
                // ETOOMANYREFS, say: too many descriptors of this user are under way.
                Err(error) => tracing::debug!(%error, "no descriptor passed with a CONNECT head"),
            }
        }
        self.write_all(head).await?;
        Ok(Separation::ByTime)
    }

    fn abort(&self) {}

    fn is_deaf(&self) -> bool {
        // Nothing is sent by this, but the peer's state is checked.
        matches!(rustix::net::send(self, &[], SendFlags::NOSIGNAL), Err(rustix::io::Errno::PIPE))
    }
}

fn send_with(socket: &UnixStream, head: &[u8], descriptor: &OwnedFd) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(head)], &mut control, SendFlags::NOSIGNAL)?)
}

impl Socket for TlsStream<BufReader<TcpStream>> {
    const LINGER: Duration = TCP_LINGER;

    /// What is flushed here is a record, and Go reads one record at a time.
    async fn send_head(&mut self, head: &[u8], _barrier: &ReadBarrier) -> io::Result<Separation> {
        self.write_all(head).await?;
        self.flush().await?;
        Ok(Separation::Certain)
    }

    fn abort(&self) {
        abort_tcp(self.get_ref().0.get_ref());
    }
}

/// Long enough for a FIN to cross the world and its answer to come back.
const TCP_LINGER: Duration = Duration::from_secs(1);

fn abort_tcp(socket: &TcpStream) {
    if let Err(error) = SockRef::from(socket).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "no reset on close");
    }
}

#[cfg(test)]
impl Socket for tokio::io::DuplexStream {
    const LINGER: Duration = TCP_LINGER;

    async fn send_head(&mut self, head: &[u8], _barrier: &ReadBarrier) -> io::Result<Separation> {
        self.write_all(head).await?;
        Ok(Separation::ByTime)
    }

    fn abort(&self) {}
}

/// Plain TCP is no frontend; the tests of resets use it.
#[cfg(test)]
impl Socket for TcpStream {
    const LINGER: Duration = TCP_LINGER;

    async fn send_head(&mut self, head: &[u8], _barrier: &ReadBarrier) -> io::Result<Separation> {
        self.write_all(head).await?;
        Ok(Separation::ByTime)
    }

    fn abort(&self) {
        abort_tcp(self);
    }
}
