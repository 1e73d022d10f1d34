//! What the HTTP CONNECT frontend needs of a socket beyond reading and writing: an end that is not mistaken for an orderly one,
//! an abortive close, and the distinction between a half-closed and a gone peer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use net::listen::LinkSocket;
use net::tls::{ReadAhead, ServerStream};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::SendFlags;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// A frontend's socket.
pub trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Flushes, then ends TLS within a record and without close_notify, so that the peer knows that bytes may be missing. On a
    /// plain socket the peer cannot know.
    fn poll_cut(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_shutdown(cx)
    }

    /// Makes the next close a reset if the transport has one: the peer loses the bytes that it has not received.
    fn abort(&self);

    /// After an end of file: whether the peer does not read either. `false` if the transport cannot tell.
    fn is_write_closed(&self) -> bool {
        false
    }

    /// While the peer's bytes are not read: whether the peer seems to have gone.
    fn may_be_gone(&self) -> bool {
        self.is_write_closed()
    }

    /// Whether an immediate close with unread input loses none of the written bytes, and tells the peer by an error that bytes
    /// may be missing.
    const CUT_BY_CLOSE: bool = false;
}

impl Socket for UnixStream {
    /// The peer reads the written bytes, then ECONNRESET if its own bytes were not all read (`unix_release_sock` in Linux),
    /// else an end of file. A Unix socket has no other signal.
    const CUT_BY_CLOSE: bool = true;

    fn abort(&self) {}

    fn is_write_closed(&self) -> bool {
        // Sends nothing, but makes the kernel check the peer's state.
        matches!(rustix::net::send(self, &[], SendFlags::NOSIGNAL), Err(rustix::io::Errno::PIPE))
    }
}

/// The first byte of a TLS record. The end of file behind it is an error for every client. Go's TLS, and so kube-apiserver, takes an
/// end between two records for an orderly one, with or without close_notify.
const APPLICATION_DATA: u8 = 23;

impl Socket for ServerStream<ReadAhead<LinkSocket>> {
    fn poll_cut(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        let mut socket = Pin::new(self.get_mut().get_mut().0);
        ready!(socket.as_mut().poll_write(cx, &[APPLICATION_DATA]))?;
        socket.poll_shutdown(cx)
    }

    fn abort(&self) {
        abort_tcp(self.get_ref().0.get_ref().stream());
    }

    /// True after a reset, or after an end of file behind unread bytes. A half-closed peer looks the same.
    fn may_be_gone(&self) -> bool {
        has_ended(self.get_ref().0.get_ref().stream())
    }
}

/// Whether the kernel has received the peer's end of file or a reset, read or not.
pub(super) fn has_ended(socket: &TcpStream) -> bool {
    let mut events = [PollFd::new(socket, PollFlags::RDHUP)];
    let looked = rustix::event::poll(&mut events, Some(&Timespec::default()));
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    looked.is_ok() && events.iter().any(|event| event.revents().intersects(ended))
}

/// How long to wait for the peer's end of file before an orderly close: long enough for a FIN and its answer on any path. A close
/// with unread input resets the connection: a TCP peer loses the bytes that it has not received (also if the input arrives
/// later), and a Unix socket's peer gets ECONNRESET instead of the end of file.
pub(super) const LINGER: Duration = Duration::from_secs(1);

fn abort_tcp(socket: &TcpStream) {
    if let Err(error) = SockRef::from(socket).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "no reset on close");
    }
}

#[cfg(test)]
impl Socket for tokio::io::DuplexStream {
    fn abort(&self) {}
}

/// For the tests of resets; frontends have no plain TCP.
#[cfg(test)]
impl Socket for TcpStream {
    fn abort(&self) {
        abort_tcp(self);
    }
}
