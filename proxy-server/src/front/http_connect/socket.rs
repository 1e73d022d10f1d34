//! What an HTTP-CONNECT frontend needs of a socket beyond reading and writing: an end that does not pass for an orderly
//! one, an abortive close, and the difference between "sends no more" and "is gone".

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::SendFlags;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use transport::listen::LinkSocket;
use transport::tls::{ReadAhead, ServerStream};

/// A frontend's socket.
pub trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Pushes out what was written, then sends the end of file, without TLS's word for an orderly end (close_notify): its
    /// peer can tell that bytes may be missing. A plain socket's cannot.
    fn poll_cut(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_shutdown(cx)
    }

    /// Makes the coming close a reset, where the transport has one: the peer loses what it has not received yet.
    fn abort(&self);

    /// After an end of file: whether the peer does not listen either. `false` when that cannot be known.
    fn is_deaf(&self) -> bool {
        false
    }

    /// While nobody reads what the peer sends: whether it seems to have gone.
    fn may_be_gone(&self) -> bool {
        self.is_deaf()
    }

    /// How long to wait for the peer's end of file before an orderly close. A close with unread input resets the
    /// connection: TCP's peer loses what it has not received yet (also by input that comes later), a Unix socket's
    /// is told ECONNRESET where the end of file was due.
    const LINGER: Duration;

    /// Whether a close at once, with input unread, costs the peer nothing of what was written, and tells it by an error that
    /// bytes may be missing.
    const CUT_BY_CLOSE: bool = false;
}

impl Socket for UnixStream {
    const LINGER: Duration = ROUND_TRIP;

    /// The peer reads what was written, then ECONNRESET if it has sent what nobody read (`unix_release_sock` in Linux), else an
    /// end of file: nothing else can be told on a Unix socket.
    const CUT_BY_CLOSE: bool = true;

    fn abort(&self) {}

    fn is_deaf(&self) -> bool {
        // Nothing is sent by this, but the peer's state is checked.
        matches!(rustix::net::send(self, &[], SendFlags::NOSIGNAL), Err(rustix::io::Errno::PIPE))
    }
}

impl Socket for ServerStream<ReadAhead<LinkSocket>> {
    const LINGER: Duration = ROUND_TRIP;

    fn poll_cut(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        Pin::new(self.get_mut().get_mut().0).poll_shutdown(cx)
    }

    fn abort(&self) {
        abort_tcp(self.get_ref().0.get_ref().stream());
    }

    /// A reset, or an end of file behind bytes that nobody reads: one who has only ceased to send looks the same.
    fn may_be_gone(&self) -> bool {
        has_ended(self.get_ref().0.get_ref().stream())
    }
}

/// Whether the peer has sent its end of file or a reset, read or not.
pub(super) fn has_ended(socket: &TcpStream) -> bool {
    let mut events = [PollFd::new(socket, PollFlags::RDHUP)];
    let looked = rustix::event::poll(&mut events, Some(&Timespec::default()));
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    looked.is_ok() && events.iter().any(|event| event.revents().intersects(ended))
}

/// Long enough for a FIN to cross the world and its answer to come back.
const ROUND_TRIP: Duration = Duration::from_secs(1);

fn abort_tcp(socket: &TcpStream) {
    if let Err(error) = SockRef::from(socket).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "no reset on close");
    }
}

#[cfg(test)]
impl Socket for tokio::io::DuplexStream {
    const LINGER: Duration = ROUND_TRIP;

    fn abort(&self) {}
}

/// Plain TCP is no frontend; the tests of resets use it.
#[cfg(test)]
impl Socket for TcpStream {
    const LINGER: Duration = ROUND_TRIP;

    fn abort(&self) {
        abort_tcp(self);
    }
}
