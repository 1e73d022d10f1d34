//! What an HTTP-CONNECT frontend needs of a socket beyond reading and writing: a head that shares no read with
//! payload, an end that does not pass for an orderly one, an abortive close, and the difference between "sends no more"
//! and "is gone".

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::unix::pipe::Receiver;
use tokio::net::{TcpStream, UnixStream};
use transport::tls::{ReadAhead, ServerStream};

use crate::front::hold::Hold;

/// A frontend's socket.
pub trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Writes a head, and says how long to hold payload back so that no read of the client brings both.
    fn send_head(&mut self, head: &[u8]) -> impl Future<Output = io::Result<Hold>> + Send;

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

    /// Passes the end of a pipe with the head. Any plain read that takes the head discards the descriptor, for want
    /// of room for it, which closes the pipe and so tells that the head has been read. Besides, a message with a
    /// descriptor ends the read that takes it (`unix_stream_read_generic` in Linux), but a client that takes a
    /// short read for "nothing more" (tokio's sockets) would then miss payload that is there already.
    async fn send_head(&mut self, head: &[u8]) -> io::Result<Hold> {
        match pipe() {
            Ok((ours, theirs)) => {
                match self.async_io(Interest::WRITABLE, || send_with(self, head, &theirs)).await {
                    Ok(sent) if sent == head.len() => return Ok(Hold::until_read(ours)),
                    Ok(sent) => {
                        self.write_all(head.get(sent..).unwrap_or_default()).await?;
                        return Ok(Hold::by_time());
                    }
                    // ETOOMANYREFS, say: too many descriptors of this user are under way.
                    Err(error) => tracing::debug!(%error, "no descriptor passed with a CONNECT head"),
                }
            }
            Err(error) => tracing::debug!(%error, "no pipe for a CONNECT head"),
        }
        self.write_all(head).await?;
        Ok(Hold::by_time())
    }

    fn abort(&self) {}

    fn is_deaf(&self) -> bool {
        // Nothing is sent by this, but the peer's state is checked.
        matches!(rustix::net::send(self, &[], SendFlags::NOSIGNAL), Err(rustix::io::Errno::PIPE))
    }
}

fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (ours, theirs) = io::pipe()?;
    Ok((Receiver::from_owned_fd(ours.into())?, theirs.into()))
}

fn send_with(socket: &UnixStream, head: &[u8], descriptor: &OwnedFd) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(head)], &mut control, SendFlags::NOSIGNAL)?)
}

impl Socket for ServerStream<ReadAhead<TcpStream>> {
    const LINGER: Duration = ROUND_TRIP;

    /// What is flushed here is a record, and Go reads one record at a time. Others read all that there is.
    async fn send_head(&mut self, head: &[u8]) -> io::Result<Hold> {
        self.write_all(head).await?;
        self.flush().await?;
        Ok(Hold::by_time())
    }

    fn poll_cut(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        Pin::new(self.get_mut().get_mut().0).poll_shutdown(cx)
    }

    fn abort(&self) {
        abort_tcp(self.get_ref().0.get_ref());
    }

    /// A reset, or an end of file behind bytes that nobody reads: one who has only ceased to send looks the same.
    fn may_be_gone(&self) -> bool {
        has_ended(self.get_ref().0.get_ref())
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

    async fn send_head(&mut self, head: &[u8]) -> io::Result<Hold> {
        self.write_all(head).await?;
        Ok(Hold::by_time())
    }

    fn abort(&self) {}
}

/// Plain TCP is no frontend; the tests of resets use it.
#[cfg(test)]
impl Socket for TcpStream {
    const LINGER: Duration = ROUND_TRIP;

    async fn send_head(&mut self, head: &[u8]) -> io::Result<Hold> {
        self.write_all(head).await?;
        Ok(Hold::by_time())
    }

    fn abort(&self) {
        abort_tcp(self);
    }
}
