//! The read-ahead under a TLS stream: rustls asks its socket for 4 KiB at a time, and with more buffered below it the
//! number of system calls stops being what limits bulk transfers.
//!
//! Nothing is buffered, or allocated for it, before the handshake is over: until then the peer may be anybody.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A socket that is read ahead of its reader, from [`ReadAhead::begin`] on.
#[derive(Debug)]
pub struct ReadAhead<IO> {
    io: IO,
    /// Empty before the begin.
    buffer: Box<[u8]>,
    /// The reader has still to get what of the buffer lies between.
    next: usize,
    end: usize,
}

impl<IO> ReadAhead<IO> {
    /// For a handshake: reads pass through.
    pub fn new(io: IO) -> Self {
        Self { io, buffer: Box::default(), next: 0, end: 0 }
    }

    /// Reads up to `bytes` ahead from now on. Once, when the peer is known.
    pub fn begin(&mut self, bytes: usize) {
        debug_assert!(self.next == self.end, "begun once: nothing was read ahead before");
        self.buffer = vec![0; bytes].into_boxed_slice();
    }

    /// The socket.
    pub fn get_ref(&self) -> &IO {
        &self.io
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for ReadAhead<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { io, buffer, next, end } = self.get_mut();
        if next == end {
            if out.remaining() >= buffer.len() {
                return Pin::new(io).poll_read(cx, out);
            }
            let mut ahead = ReadBuf::new(buffer);
            ready!(Pin::new(io).poll_read(cx, &mut ahead))?;
            (*next, *end) = (0, ahead.filled().len());
        }
        let until = (*end).min(*next + out.remaining());
        out.put_slice(&buffer[*next..until]);
        *next = until;
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for ReadAhead<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// Whether the socket has nothing left to read: what was read ahead is what it lacks.
    fn is_drained(ahead: &mut ReadAhead<tokio::io::DuplexStream>) -> bool {
        let mut byte = [0];
        let mut cx = Context::from_waker(std::task::Waker::noop());
        Pin::new(&mut ahead.io).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    #[tokio::test]
    async fn nothing_is_kept_for_a_peer_before_its_handshake_is_over() {
        let (mut near, far) = duplex(1 << 10);
        let mut ahead = ReadAhead::new(far);
        near.write_all(b"hello").await.unwrap();
        assert_eq!(ahead.read_u8().await.unwrap(), b'h');
        assert_eq!((ahead.buffer.len(), ahead.end), (0, 0));
        assert!(!is_drained(&mut ahead), "no more was read than was asked for");
    }

    #[tokio::test]
    async fn one_read_of_the_socket_serves_many_and_nothing_is_lost() {
        let (mut near, far) = duplex(1 << 10);
        let mut ahead = ReadAhead::new(far);
        near.write_all(b"abcdef").await.unwrap();
        assert_eq!(ahead.read_u8().await.unwrap(), b'a');
        ahead.begin(8);
        assert_eq!(ahead.read_u8().await.unwrap(), b'b');
        assert!(is_drained(&mut ahead));
        near.write_all(&[b'g'; 100]).await.unwrap();
        drop(near);
        let mut rest = Vec::new();
        ahead.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, [b"cdef".as_slice(), &[b'g'; 100]].concat());
    }
}
