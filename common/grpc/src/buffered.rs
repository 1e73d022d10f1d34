//! The adapter between h2 and its transport: it gathers small writes, flushes once per turn, and limits how long a turn reads.
//!
//! h2 writes and flushes after every DATA frame above 256 bytes. Under TLS each such write costs a record and a
//! system call. The adapter only copies a write that fits into its buffer, and ignores h2's flush. Once h2 has
//! nothing more to do in this turn, the driver writes and flushes by [`Flusher::poll_flush`]. Larger writes go to the
//! transport at once, in one vectored write after the gathered bytes.
//!
//! The adapter loses no byte: the next flush writes everything that h2 regards as written. A flush that could not finish
//! has registered the driver's waker, and the driver's next turn continues it. The adapter reads in [`Turn`]s.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::admission::MAX_CONNECTION_BYTES;
use super::backlog::Backlog;
use super::pinger::BytesMoved;
use super::turns::{BusyTurns, Turn};

/// The most bytes of writes that the adapter gathers over TLS: small frames share one record, and TLS encrypts large frames without
/// a copy.
pub(super) const MAX_GATHERED_OVER_TLS: usize = 16 << 10;

/// The same for a plain socket with frames of up to 16 KiB: a copy costs less than a system call and a wake-up of the peer for each
/// frame.
pub(super) const MAX_GATHERED_OVER_SOCKET: usize = 64 << 10;

/// A turn that writes at most this many bytes is quiet: its buffer has only this size, and is freed after the flush.
const SMALL_TURN: usize = 1 << 10;

/// The most bytes of one read, while a connection reads its first [`MAX_CONNECTION_BYTES`]. h2 decodes them before it reads again,
/// and the turn is checked only then: 8 KiB of compressed headers take half a millisecond. A peer that is not admitted can send no
/// more than these first bytes; for others the limit would cost a twentieth of the throughput.
pub(super) const MAX_FIRST_READ: u64 = 8 << 10;

/// The transport that h2 owns. The lock is never contended, because h2 and the driver run in one task.
#[derive(Debug)]
pub(super) struct Buffered<IO>(Arc<Mutex<Inner<IO>>>);

/// The driver's handle to the same transport.
#[derive(Debug)]
pub(super) struct Flusher<IO> {
    inner: Arc<Mutex<Inner<IO>>>,
    backlog: Arc<Backlog>,
}

#[derive(Debug)]
struct Inner<IO> {
    io: IO,
    /// The most bytes that `gathered` may have.
    max_gathered: usize,
    /// Bytes that h2 regards as written. The transport has accepted the first `written` of them.
    gathered: Vec<u8>,
    written: usize,
    /// The largest length of `gathered` since the last flush.
    peak: usize,
    /// h2 has written since the transport's last complete flush.
    dirty: bool,
    /// The transport accepted no bytes of the last write. h2 will repeat it.
    refused: bool,
    /// Bytes read so far, by which the keepalive sees that the peer is alive, and bytes that h2 has written.
    moved: BytesMoved,
    turn: Turn,
}

/// Splits a transport into h2's part and the driver's part. `max_gathered`: in bytes. `turns`: see [`Turn::new`].
pub(super) fn buffered<IO>(
    io: IO,
    max_gathered: usize,
    turns: Option<&BusyTurns>,
) -> (Buffered<IO>, Flusher<IO>) {
    let inner = Inner {
        io,
        max_gathered,
        gathered: Vec::new(),
        written: 0,
        peak: 0,
        dirty: false,
        refused: false,
        moved: BytesMoved::default(),
        turn: Turn::new(turns),
    };
    let inner = Arc::new(Mutex::new(inner));
    (Buffered(Arc::clone(&inner)), Flusher { inner, backlog: Arc::default() })
}

impl<IO: AsyncWrite + Unpin> Flusher<IO> {
    /// Writes and flushes at the end of a turn. Pending while the transport is blocked: the waker is registered, and the driver
    /// calls again when woken.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.inner.lock();
        inner.turn.end(cx);
        let flushed = inner.poll_flush(cx);
        let refused = std::mem::take(&mut inner.refused);
        drop(inner);
        self.backlog.flushed(flushed.is_ready() && !refused);
        flushed
    }

    /// The limit that the connection's streams check before they send.
    pub(super) fn backlog(&self) -> Arc<Backlog> {
        Arc::clone(&self.backlog)
    }

    /// The memory kept for later writes, in bytes.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.inner.lock().gathered.capacity()
    }

    /// Bytes so far.
    pub(super) fn moved(&self) -> BytesMoved {
        self.inner.lock().moved
    }
}

impl<IO: AsyncWrite + Unpin> Inner<IO> {
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.dirty {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_drain(cx))?;
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.dirty = false;
        // A connection that has just sent many bytes is likely to send more: only a quiet turn frees the memory.
        if self.peak <= SMALL_TURN {
            self.gathered = Vec::new();
        }
        self.peak = 0;
        Poll::Ready(Ok(()))
    }

    /// Writes the gathered bytes.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.gathered.len() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, &self.gathered[self.written..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
        }
        self.gathered.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    fn gather(&mut self, slices: &[IoSlice<'_>], count: usize) -> usize {
        let room = if self.gathered.len() + count <= SMALL_TURN { SMALL_TURN } else { self.max_gathered };
        if self.gathered.capacity() < room {
            self.gathered.reserve_exact(room - self.gathered.len());
        }
        for slice in slices {
            self.gathered.extend_from_slice(slice);
        }
        self.peak = self.peak.max(self.gathered.len());
        count
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = self.poll_write_slices(cx, slices);
        self.refused = written.is_pending();
        if let Poll::Ready(Ok(count)) = written {
            self.moved.written += count as u64;
        }
        written
    }

    fn poll_write_slices(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let count = slices.iter().map(|slice| slice.len()).sum::<usize>();
        self.dirty = true;
        if self.gathered.len() + count <= self.max_gathered {
            return Poll::Ready(Ok(self.gather(slices, count)));
        }
        if !self.gathered.is_empty() && self.io.is_write_vectored() {
            return self.poll_write_behind(cx, slices, count);
        }
        ready!(self.poll_drain(cx))?;
        match slices {
            [slice] => Pin::new(&mut self.io).poll_write(cx, slice),
            _ => Pin::new(&mut self.io).poll_write_vectored(cx, slices),
        }
    }

    /// Writes the gathered bytes and then the first of `slices`, in one vectored write.
    fn poll_write_behind(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        count: usize,
    ) -> Poll<io::Result<usize>> {
        let pending = self.gathered.len() - self.written;
        let mut all = [IoSlice::new(&[]); 8];
        all[0] = IoSlice::new(&self.gathered[self.written..]);
        let used = slices.len().min(all.len() - 1);
        for (to, from) in all[1..].iter_mut().zip(slices) {
            *to = IoSlice::new(from);
        }
        let sent = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &all[..=used]))?;
        if sent < pending {
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += sent;
            ready!(self.poll_drain(cx))?;
            return match slices {
                [slice] => Pin::new(&mut self.io).poll_write(cx, slice),
                _ => Pin::new(&mut self.io).poll_write_vectored(cx, slices),
            };
        }
        self.gathered.clear();
        self.written = 0;
        let of_slices = sent - pending;
        debug_assert!(of_slices <= count, "the transport wrote no more than it was given");
        if of_slices == 0 {
            // The transport accepted exactly the gathered bytes. h2 would take a count of 0 for the end of the transport.
            return Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        }
        Poll::Ready(Ok(of_slices))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Buffered<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.0.lock();
        ready!(inner.turn.poll_read(cx));
        let before = buf.filled().len();
        let most = if inner.moved.read < MAX_CONNECTION_BYTES as u64 { MAX_FIRST_READ } else { u64::MAX };
        ready!(Pin::new(&mut (&mut inner.io).take(most)).poll_read(cx, buf))?;
        inner.moved.read += (buf.filled().len() - before) as u64;
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Buffered<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().poll_write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().io.is_write_vectored()
    }

    /// Does nothing: the driver flushes at the end of the turn.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.0.lock();
        ready!(inner.poll_flush(cx))?;
        Pin::new(&mut inner.io).poll_shutdown(cx)
    }
}
