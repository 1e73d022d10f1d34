//! Gathers the writes of a TLS stream into few system calls: each write is encrypted at once, and the flush sends the
//! encrypted bytes together.
//!
//! tokio-rustls sends after each write. HTTP/2 writes frame by frame, so that would be a system call, and a wake-up of
//! the peer, for each frame.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::Writer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{ClientStream, ServerStream};

/// Encrypted bytes that may wait for the flush: four frames of 64 KiB, with the overhead of HTTP/2 and TLS.
const LIMIT: usize = (256 << 10) + (16 << 10);

/// A TLS stream of a client or server.
pub trait Session: AsyncRead + AsyncWrite + Unpin {
    /// Encrypts without sending.
    fn writer(&mut self) -> Writer<'_>;

    /// Limits the encrypted bytes that may wait.
    fn limit(&mut self, bytes: usize);
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Session for ServerStream<IO> {
    fn writer(&mut self) -> Writer<'_> {
        self.get_mut().1.writer()
    }

    fn limit(&mut self, bytes: usize) {
        self.get_mut().1.set_buffer_limit(Some(bytes));
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Session for ClientStream<IO> {
    fn writer(&mut self) -> Writer<'_> {
        self.get_mut().1.writer()
    }

    fn limit(&mut self, bytes: usize) {
        self.get_mut().1.set_buffer_limit(Some(bytes));
    }
}

impl<S: Session> Session for Box<S> {
    fn writer(&mut self) -> Writer<'_> {
        (**self).writer()
    }

    fn limit(&mut self, bytes: usize) {
        (**self).limit(bytes);
    }
}

/// A TLS stream that sends when it is flushed, or when its buffer is full. Its handshake is complete.
#[derive(Debug)]
pub struct Gathering<S>(S);

impl<S: Session> Gathering<S> {
    /// Gathers the writes of `stream` from now on.
    pub fn new(mut stream: S) -> Self {
        stream.limit(LIMIT);
        Gathering(stream)
    }

    /// The TLS stream.
    pub fn get_ref(&self) -> &S {
        &self.0
    }
}

impl<S: Session> AsyncRead for Gathering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: Session> AsyncWrite for Gathering<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match io::Write::write_vectored(&mut self.0.writer(), bufs) {
            // The buffer is full: some of it must be sent first.
            Ok(0) => Pin::new(&mut self.0).poll_write_vectored(cx, bufs),
            encrypted => Poll::Ready(encrypted),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
