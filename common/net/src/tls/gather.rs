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
use tokio_rustls::TlsStream;

/// Encrypted bytes that may wait for the flush: four frames of 64 KiB, with the overhead of HTTP/2 and TLS.
const MAX_PENDING_BYTES: usize = (256 << 10) + (16 << 10);

/// A TLS stream that sends when it is flushed, or when its buffer is full. Its handshake is complete. Boxed, because a task keeps
/// several copies of what is moved into it.
#[derive(Debug)]
pub struct Gathering<IO>(Box<TlsStream<IO>>);

impl<IO> Gathering<IO> {
    /// Gathers the writes of `stream` from now on.
    pub fn new(stream: impl Into<TlsStream<IO>>) -> Self {
        let mut stream = Box::new(stream.into());
        match &mut *stream {
            TlsStream::Client(stream) => stream.get_mut().1.set_buffer_limit(Some(MAX_PENDING_BYTES)),
            TlsStream::Server(stream) => stream.get_mut().1.set_buffer_limit(Some(MAX_PENDING_BYTES)),
        }
        Gathering(stream)
    }

    /// Encrypts without sending.
    fn writer(&mut self) -> Writer<'_> {
        match &mut *self.0 {
            TlsStream::Client(stream) => stream.get_mut().1.writer(),
            TlsStream::Server(stream) => stream.get_mut().1.writer(),
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gathering<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Gathering<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match io::Write::write_vectored(&mut self.writer(), bufs) {
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
