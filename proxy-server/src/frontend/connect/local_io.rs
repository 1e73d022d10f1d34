//! The client's socket as the link's task uses it.
//!
//! Holds no buffer while idle. Writes only payload.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use driver::{Chunks, CloseReason, Fill, Linger, LocalIo, Read, poll_discard};
use mux::Cause;
use net::scratch::poll_read_full;
use tokio::time::{Instant, Sleep, sleep};

use super::socket::{LINGER, Socket};
use crate::frontend::barrier::FirstByteBarrier;
use crate::frontend::connection_log::ConnectionLog;

/// Largest single read in bytes, whatever the link permits: two frames on the wire.
const MAX_READ: usize = 128 * 1024;
/// Time limit for the last bytes before an end to leave our own buffer (a TLS session's). Then the socket is reset.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same after the endpoint's own end, where the client may pause as long as with bytes that the link holds.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval of the checks whether a client has gone while the link takes no bytes from it.
const GONE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// A client's socket after its CONNECT was answered.
pub(super) struct SocketIo<S: Socket> {
    socket: S,
    /// Payload that arrived before the connection was established.
    early: Bytes,
    /// The error that ended reading; returned after the bytes that were read together with it.
    failed: Option<io::Error>,
    barrier: FirstByteBarrier,
    state: State,
    log: ConnectionLog,
    /// Since when a write or the end waits for the client, for the write histogram.
    blocked: Option<Instant>,
    /// Next check whether the client has gone, while the link has no room for its bytes.
    look: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum State {
    /// The client may send.
    Open,
    /// The client's end of file or its loss was seen.
    Eof,
    /// Flushing the last bytes, until the deadline; then lingering, unless the client's end was seen.
    Closing { deadline: Pin<Box<Sleep>>, linger: bool },
    /// Everything is sent; waiting for the client's end of file.
    Lingering(Linger),
    /// The end was told, or the socket was reset.
    Ended,
}

impl<S: Socket> SocketIo<S> {
    /// A socket whose client has just been sent its 200; `early` is the payload after the head of its request.
    pub(super) fn new(socket: S, early: Bytes, log: ConnectionLog) -> Self {
        SocketIo {
            socket,
            early,
            failed: None,
            barrier: FirstByteBarrier::start(),
            state: State::Open,
            log,
            blocked: None,
            look: None,
        }
    }

    /// Flushes and shuts down, then lingers. Errors are ignored, because they mean that the client no longer reads.
    fn poll_close(
        &mut self,
        cx: &mut Context<'_>,
        allowance: &mut usize,
        within: Duration,
        poll_shut: fn(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<()> {
        if let State::Open | State::Eof = self.state {
            let linger = matches!(self.state, State::Open);
            self.state = State::Closing { deadline: Box::pin(sleep(within)), linger };
            self.blocked = Some(Instant::now());
        }
        let Self { state, socket, failed, log, blocked, .. } = self;
        if let State::Closing { deadline, linger } = state {
            if poll_shut(Pin::new(&mut *socket), cx).is_pending() {
                // A client may read only after its own writes drain, so we read and discard them.
                if *linger
                    && poll_discard(cx, allowance, |cx, max| poll_read_full(socket, cx, max, failed))
                        .is_ready()
                {
                    *linger = false;
                }
                ready!(deadline.as_mut().poll(cx));
                socket.abort();
                *linger = false;
            }
            log.end_written(blocked.take().map_or(Duration::ZERO, |since| since.elapsed()));
            if !*linger {
                return Poll::Ready(());
            }
            *state = State::Lingering(Linger::new(LINGER));
        }
        let State::Lingering(linger) = state else { return Poll::Ready(()) };
        linger.poll(cx, allowance, |cx, max| poll_read_full(socket, cx, max, failed))
    }
}

impl<S: Socket> Drop for SocketIo<S> {
    /// Resets a socket whose end was not told, because the driver has panicked or was stopped: without a cut, a TLS client takes the
    /// close for an orderly end.
    fn drop(&mut self) {
        if !matches!(self.state, State::Lingering(_) | State::Ended) {
            self.socket.abort();
        }
    }
}

impl<S: Socket> LocalIo for SocketIo<S> {
    fn client(&self) -> &str {
        self.log.client()
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Read>> {
        let sent_before = !self.early.is_empty();
        let bytes = if self.early.is_empty() {
            match ready!(poll_read_full(&mut self.socket, cx, max.min(MAX_READ), &mut self.failed)) {
                Ok(bytes) => bytes,
                // TLS ended without close_notify: a client that closes so reads nothing more.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.state = State::Eof;
                    return Poll::Ready(Ok(Read::Closed));
                }
                Err(error) => {
                    self.state = State::Eof;
                    self.log.read_failed(&error);
                    return Poll::Ready(Err(error));
                }
            }
        } else {
            self.early.split_to(max.clamp(1, self.early.len()))
        };
        if bytes.is_empty() {
            self.state = State::Eof;
            let write_closed = self.socket.is_write_closed();
            return Poll::Ready(Ok(if write_closed { Read::Closed } else { Read::Eof }));
        }
        self.log.from_client(bytes.len());
        self.look = None;
        // Payload that the client sent together with its request does not prove that it has read the 200.
        if !sent_before {
            self.barrier.lift(cx);
        }
        Poll::Ready(Ok(Read::Data(bytes)))
    }

    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A socket that is not read wakes no task, so it is checked periodically.
        let look = self.look.get_or_insert_with(|| Box::pin(sleep(GONE_CHECK_INTERVAL)));
        while look.as_mut().poll(cx).is_ready() {
            if self.socket.may_be_gone() {
                return Poll::Ready(());
            }
            look.as_mut().reset(Instant::now() + GONE_CHECK_INTERVAL);
        }
        Poll::Pending
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, chunks: &mut Chunks<'_>) -> Poll<io::Result<()>> {
        ready!(self.barrier.poll_lifted(cx));
        let start = *self.blocked.get_or_insert_with(Instant::now);
        let written = ready!(chunks.poll_write_to(Pin::new(&mut self.socket), cx));
        self.blocked = None;
        match written {
            Ok(written) => {
                self.log.to_client(written, start.elapsed());
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                self.log.note(&error);
                Poll::Ready(Err(error))
            }
        }
    }

    fn filled(&mut self, fill: Fill) {
        self.log.filled(fill);
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shut_down(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.barrier.poll_lifted(cx));
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        close_reason: &CloseReason,
        allowance: &mut usize,
    ) -> Poll<()> {
        self.log.ended(close_reason);
        let ended = match close_reason {
            CloseReason::Flushed => {
                let within = if let State::Eof = self.state { CLOSE_TIMEOUT } else { FLUSH_TIMEOUT };
                self.poll_close(cx, allowance, within, S::poll_shutdown)
            }
            CloseReason::Broken(cause) if S::CUT_BY_CLOSE || was_given_up(cause) => {
                self.socket.abort();
                self.log.end_written(Duration::ZERO);
                Poll::Ready(())
            }
            CloseReason::Broken(_) => self.poll_close(cx, allowance, CLOSE_TIMEOUT, S::poll_cut),
        };
        if ended.is_ready() {
            self.state = State::Ended;
        }
        ended
    }
}

/// Whether the connection was broken because its client did not read. In all other cases the client still gets the bytes that
/// were written for it.
fn was_given_up(cause: &Cause) -> bool {
    match cause {
        Cause::Stalled | Cause::FlushTimeout | Cause::Overrun => true,
        Cause::LinkLost | Cause::Local(_) | Cause::Peer(_) => false,
    }
}
