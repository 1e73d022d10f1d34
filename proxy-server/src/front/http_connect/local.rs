//! The frontend's socket as the link's task sees it.
//!
//! Holds no buffer while idle. Never writes a byte of its own.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use relay::{Ending, Linger, Local, Queue, Read, throw_away};
use tokio::time::{Instant, Sleep, sleep};
use transport::scratch::poll_read_full;
use tunnel::Cause;

use super::socket::Socket;
use crate::front::account::Account;
use crate::front::barrier::FirstByteBarrier;

/// Bytes of one read at most, whatever the link offers: two frames on the wire.
const LARGEST_READ: usize = 128 * 1024;
/// For the last bytes before an end to leave a buffer of ours (a TLS session's). Then it is a reset.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// How often one looks whether a client has gone whose bytes nobody takes.
const LOOK_AFTER: Duration = Duration::from_secs(10);

/// A client's socket behind an answered CONNECT.
#[derive(Debug)]
pub(super) struct SocketLocal<S> {
    socket: S,
    /// Payload that came before the connection was established.
    early: Bytes,
    /// What ended reading, behind bytes that were read together with it.
    failed: Option<io::Error>,
    barrier: FirstByteBarrier,
    state: State,
    account: Account,
    /// Since when the client takes nothing, or is to hear of the end, for the write histogram.
    blocked: Option<Instant>,
    /// When to look whether the client has gone, while the link has no room for what it sends.
    look: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum State {
    /// The client may send.
    Open,
    /// The client's end of file, or its loss, has been seen.
    Eof,
    /// Pushing the last bytes out, until the deadline; lingering comes next if the client's end was not seen.
    Closing { deadline: Pin<Box<Sleep>>, linger: bool },
    /// All is sent; waiting for the client's end of file.
    Lingering(Linger),
}

impl<S: Socket> SocketLocal<S> {
    /// The client has just been sent its 200; `early` is what followed the head of its request.
    pub(super) fn new(socket: S, early: Bytes, account: Account) -> Self {
        SocketLocal {
            socket,
            early,
            failed: None,
            barrier: FirstByteBarrier::start(),
            state: State::Open,
            account,
            blocked: None,
            look: None,
        }
    }

    /// Empty at end of file.
    fn poll_socket(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>> {
        poll_read_full(&mut self.socket, cx, max.min(LARGEST_READ), &mut self.failed)
    }

    /// Flushes and shuts down, then lingers. What fails here failed because nobody listens any more.
    fn poll_close(
        &mut self,
        cx: &mut Context<'_>,
        allowance: &mut usize,
        poll_shut: fn(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<()> {
        if let State::Open | State::Eof = self.state {
            let linger = matches!(self.state, State::Open);
            self.state = State::Closing { deadline: Box::pin(sleep(CLOSE_WITHIN)), linger };
            self.blocked = Some(Instant::now());
        }
        let Self { state, socket, failed, account, blocked, .. } = self;
        if let State::Closing { deadline, linger } = state {
            if poll_shut(Pin::new(&mut *socket), cx).is_pending() {
                // A client that reads once it has written must get rid of what it writes.
                if *linger
                    && throw_away(cx, allowance, |cx, max| poll_read_full(socket, cx, max, failed)).is_ready()
                {
                    *linger = false;
                }
                ready!(deadline.as_mut().poll(cx));
                socket.abort();
                *linger = false;
            }
            account.told_end(blocked.take().map_or(Duration::ZERO, |since| since.elapsed()));
            if !*linger {
                return Poll::Ready(());
            }
            *state = State::Lingering(Linger::new(S::LINGER));
        }
        let State::Lingering(linger) = state else { return Poll::Ready(()) };
        linger.poll(cx, allowance, |cx, max| poll_read_full(socket, cx, max, failed))
    }
}

impl<S: Socket> Local for SocketLocal<S> {
    fn poll_read(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Read>> {
        let sent_before = !self.early.is_empty();
        let bytes = if self.early.is_empty() {
            match ready!(self.poll_socket(cx, max)) {
                Ok(bytes) => bytes,
                // TLS ended without a word of it: whoever closes like that does not read on.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.state = State::Eof;
                    return Poll::Ready(Ok(Read::Closed));
                }
                Err(error) => {
                    self.state = State::Eof;
                    self.account.read_failed(&error);
                    return Poll::Ready(Err(error));
                }
            }
        } else {
            self.early.split_to(max.clamp(1, self.early.len()))
        };
        if bytes.is_empty() {
            self.state = State::Eof;
            let deaf = self.socket.is_deaf();
            return Poll::Ready(Ok(if deaf { Read::Closed } else { Read::Eof }));
        }
        self.account.from_client(bytes.len());
        self.look = None;
        // What the client sent with its request does not show that it has read the 200.
        if !sent_before {
            self.barrier.lift(cx);
        }
        Poll::Ready(Ok(Read::Data(bytes)))
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Nothing wakes who does not read: it looks from time to time.
        let look = self.look.get_or_insert_with(|| Box::pin(sleep(LOOK_AFTER)));
        while look.as_mut().poll(cx).is_ready() {
            if self.socket.may_be_gone() {
                return Poll::Ready(());
            }
            look.as_mut().reset(Instant::now() + LOOK_AFTER);
        }
        Poll::Pending
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, queue: &mut Queue) -> Poll<io::Result<()>> {
        ready!(self.barrier.poll_lifted(cx));
        let start = *self.blocked.get_or_insert_with(Instant::now);
        let written = ready!(queue.poll_write_to(Pin::new(&mut self.socket), cx));
        self.blocked = None;
        match written {
            Ok(written) => {
                self.account.to_client(written, start.elapsed());
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                self.account.note(&error);
                Poll::Ready(Err(error))
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shut_down(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        ready!(self.barrier.poll_lifted(cx));
        Pin::new(&mut self.socket).poll_shutdown(cx).map_ok(|()| true)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>, ending: &Ending, allowance: &mut usize) -> Poll<()> {
        self.account.ended(ending);
        match ending {
            Ending::Flushed => self.poll_close(cx, allowance, S::poll_shutdown),
            Ending::Broken(cause) if S::CUT_BY_CLOSE || was_given_up(cause) => {
                self.socket.abort();
                self.account.told_end(Duration::ZERO);
                Poll::Ready(())
            }
            Ending::Broken(_) => self.poll_close(cx, allowance, S::poll_cut),
        }
    }
}

/// Whether the connection broke because its client did not read. Else the client gets what was written: all that there
/// was, unless it was its own socket that failed.
fn was_given_up(cause: &Cause) -> bool {
    match cause {
        Cause::Stalled | Cause::FlushTimeout | Cause::Overrun => true,
        Cause::LinkLost | Cause::Local(_) | Cause::Peer(_) => false,
    }
}
