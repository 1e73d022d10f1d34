//! The read-ahead below a TLS stream or h2: rustls reads 4 KiB at a time, h2 at most a frame; with a larger buffer below
//! them, system calls no longer limit bulk transfers.
//!
//! Nothing is read ahead before the handshake is complete, and a server limits the bytes that its unauthenticated peer
//! may send until then. The thread lends a buffer that is held only while it has unread bytes, so an idle connection
//! has none.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// The peer has sent more than the limit before the end of its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent too many bytes before the end of its handshake")]
pub struct TooLarge;

/// A socket that is read ahead of its reader, from [`ReadAhead::begin`] on.
#[derive(Debug)]
pub struct ReadAhead<IO> {
    io: IO,
    /// Bytes that the peer may still send before [`ReadAhead::begin`].
    allowed: usize,
    /// The most bytes of one read; zero before [`ReadAhead::begin`].
    most: usize,
    /// The unread bytes are between `next` and `end`; the buffer is empty while there are none.
    buffer: Box<[u8]>,
    next: usize,
    end: usize,
}

impl<IO> ReadAhead<IO> {
    /// For a handshake with a peer that we dialed: reads pass through.
    pub fn new(io: IO) -> Self {
        Self::bounded(io, usize::MAX)
    }

    /// For a handshake with an unauthenticated peer: reads pass through until the peer has sent `bytes` bytes (and up
    /// to one more read), and then fail with [`TooLarge`].
    pub fn bounded(io: IO, bytes: usize) -> Self {
        Self { io, allowed: bytes, most: 0, buffer: Box::default(), next: 0, end: 0 }
    }

    /// The peer may send this many bytes from now until [`ReadAhead::begin`].
    pub fn allow(&mut self, bytes: usize) {
        self.allowed = bytes;
    }

    /// Reads up to `bytes` ahead from now on. Called once, when the peer is authenticated.
    pub fn begin(&mut self, bytes: usize) {
        debug_assert!(self.next == self.end, "begun once: nothing was read ahead before");
        self.most = bytes;
    }

    /// The socket.
    pub fn get_ref(&self) -> &IO {
        &self.io
    }

    /// The socket. Bytes read from it directly are lost to the reader.
    pub fn get_mut(&mut self) -> &mut IO {
        &mut self.io
    }
}

impl<IO: AsyncRead + Unpin> ReadAhead<IO> {
    fn poll_read_bounded(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.allowed == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, TooLarge)));
        }
        let before = out.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, out))?;
        self.allowed = self.allowed.saturating_sub(out.filled().len() - before);
        Poll::Ready(Ok(()))
    }

    /// Reads once into a buffer that this thread lends.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = lend(self.most);
        let mut ahead = ReadBuf::new(&mut buffer);
        let read = Pin::new(&mut self.io).poll_read(cx, &mut ahead);
        (self.next, self.end) = (0, ahead.filled().len());
        self.buffer = buffer;
        if self.end == 0 {
            self.give_back();
        }
        read
    }

    fn give_back(&mut self) {
        (self.next, self.end) = (0, 0);
        give_back(std::mem::take(&mut self.buffer));
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for ReadAhead<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.next == this.end {
            if this.most == 0 {
                return this.poll_read_bounded(cx, out);
            }
            if out.remaining() >= this.most {
                return Pin::new(&mut this.io).poll_read(cx, out);
            }
            ready!(this.poll_fill(cx))?;
        }
        let until = this.end.min(this.next + out.remaining());
        out.put_slice(&this.buffer[this.next..until]);
        this.next = until;
        if this.next == this.end {
            this.give_back();
        }
        Poll::Ready(Ok(()))
    }
}

/// Buffers that a thread keeps between reads: one of each of the three sizes in use.
const SPARES: usize = 3;

thread_local! {
    static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of that length: a spare one, or a new one if there is none.
fn lend(bytes: usize) -> Box<[u8]> {
    SPARE.with_borrow_mut(|spares| {
        let found = spares.iter().position(|spare| spare.len() == bytes);
        found.map_or_else(|| vec![0; bytes].into_boxed_slice(), |at| spares.swap_remove(at))
    })
}

fn give_back(buffer: Box<[u8]>) {
    SPARE.with_borrow_mut(|spares| {
        let known = spares.iter().any(|spare| spare.len() == buffer.len());
        if !buffer.is_empty() && !known && spares.len() < SPARES {
            spares.push(buffer);
        }
    });
}

writes_pass_through!(ReadAhead);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// Whether the socket has nothing left to read, because all of it was read ahead.
    fn is_drained(ahead: &mut ReadAhead<tokio::io::DuplexStream>) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(std::task::Waker::noop());
        Pin::new(&mut ahead.io).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    #[tokio::test]
    async fn nothing_is_kept_for_a_peer_before_its_handshake_is_over() {
        let (mut client_io, server_io) = duplex(1 << 10);
        let mut ahead = ReadAhead::new(server_io);
        client_io.write_all(b"hello").await.unwrap();
        assert_eq!(ahead.read_u8().await.unwrap(), b'h');
        assert_eq!((ahead.buffer.len(), ahead.end), (0, 0));
        assert!(!is_drained(&mut ahead), "no more was read than was asked for");
    }

    #[tokio::test]
    async fn one_read_of_the_socket_serves_many_and_nothing_is_lost() {
        let (mut client_io, server_io) = duplex(1 << 10);
        let mut ahead = ReadAhead::new(server_io);
        client_io.write_all(b"abcdef").await.unwrap();
        assert_eq!(ahead.read_u8().await.unwrap(), b'a');
        ahead.begin(8);
        assert_eq!(ahead.read_u8().await.unwrap(), b'b');
        assert!(is_drained(&mut ahead));
        client_io.write_all(&[b'g'; 100]).await.unwrap();
        drop(client_io);
        let mut rest = Vec::new();
        ahead.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, [b"cdef".as_slice(), &[b'g'; 100]].concat());
    }

    #[tokio::test]
    async fn an_idle_connection_holds_no_buffer() {
        let (mut client_io, server_io) = duplex(1 << 10);
        let mut ahead = ReadAhead::new(server_io);
        ahead.begin(512);
        client_io.write_all(b"ab").await.unwrap();
        assert_eq!((ahead.buffer.len(), ahead.read_u8().await.unwrap()), (0, b'a'));
        assert_eq!(ahead.buffer.len(), 512, "a byte is left in it");
        assert_eq!((ahead.read_u8().await.unwrap(), ahead.buffer.len()), (b'b', 0));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut byte = [0];
        assert!(Pin::new(&mut ahead).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending());
        assert_eq!(ahead.buffer.len(), 0);
    }

    #[tokio::test]
    async fn bytes_before_the_end_of_the_handshake_are_limited() {
        let (mut client_io, server_io) = duplex(1 << 10);
        let mut ahead = ReadAhead::bounded(server_io, 4);
        client_io.write_all(&[7; 100]).await.unwrap();
        let mut some = [0; 3];
        ahead.read_exact(&mut some).await.unwrap();
        ahead.read_exact(&mut some).await.unwrap();
        let error = ahead.read_u8().await.unwrap_err();
        assert!(error.get_ref().is_some_and(|inner| inner.is::<TooLarge>()), "{error}");
        ahead.allow(94);
        let mut rest = [0; 94];
        ahead.read_exact(&mut rest).await.unwrap();
        assert_eq!(ahead.read_u8().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
