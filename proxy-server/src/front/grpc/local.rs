//! A frontend's Proxy stream as the link's task sees it, once its connection is established.
//!
//! Framing only: what a packet means is the machine's.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use relay::{Ending, Local, Queue, Read};
use tokio::time::{Instant, Sleep, sleep};
use transport::joined::Joined;
use transport::wire::{Code, Wire, WireError};
use tunnel::Packet;

use super::LINGER;
use super::machine::{CONNECTION, Order};
use super::pieces::Pieces;
use super::stream::Stream;
use crate::front::account::Account;
use crate::front::barrier::FirstByteBarrier;

/// A Go client waits 10 s for the answer to its CLOSE_REQ.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A client's stream with an established connection.
#[derive(Debug)]
pub struct GrpcLocal<W> {
    stream: Stream<W>,
    /// What was taken from the stream and not read yet: the rest of a DATA that was larger than a read, and what was
    /// read ahead while the link had no room.
    ahead: Joined,
    /// Bytes of it that have gone on, while their window is still held back.
    gone_on: usize,
    /// The client has closed, behind what is ahead: when that is answered, whatever is still on its way.
    closed: Option<Pin<Box<Sleep>>>,
    barrier: FirstByteBarrier,
    account: Account,
    pieces: Pieces,
    /// Since when the client grants nothing, for the write histogram.
    blocked: Option<Instant>,
    /// Since the terminal packet.
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<W: Wire> GrpcLocal<W> {
    /// `stream` has just sent its DIAL_RSP.
    pub fn new(stream: Stream<W>, account: Account) -> Self {
        GrpcLocal {
            stream,
            ahead: Joined::default(),
            gone_on: 0,
            closed: None,
            barrier: FirstByteBarrier::start(),
            account,
            pieces: Pieces::default(),
            blocked: None,
            lingering: None,
        }
    }

    fn broken(&mut self, error: WireError) -> io::Error {
        self.account.note(&error);
        match error.code {
            // Its client has left: as with a socket, that is no loss of ours.
            Code::Canceled => {
                io::Error::new(io::ErrorKind::ConnectionReset, format!("connection reset by peer: {error}"))
            }
            _ => io::Error::other(error),
        }
    }

    /// The next order. A client that sends or closes has registered its connection.
    fn poll_order(&mut self, cx: &mut Context<'_>) -> Poll<Order> {
        let order = ready!(self.stream.poll_order(cx));
        self.barrier.lift(cx);
        Poll::Ready(order)
    }

    /// Sends CLOSE_RSP unless the client has had its terminal packet, or is gone.
    fn send_end(&mut self, text: &str) {
        if let Some(packet) = self.stream.machine().handle_backend_end(text)
            && let Err(error) = self.stream.pass_on(packet)
        {
            self.account.note(&error);
        }
    }
}

impl<W: Wire + Send> Local for GrpcLocal<W> {
    fn poll_read(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Read>> {
        if self.ahead.is_empty() {
            if self.closed.is_some() || self.stream.machine().is_over() {
                return Poll::Ready(Ok(Read::Closed));
            }
            self.stream.hold_back(false);
            self.gone_on = 0;
            match ready!(self.poll_order(cx)) {
                Order::Deliver(payload) => self.ahead.push(payload),
                // A lost stream closes too: what it had sent is to be delivered.
                _ => return Poll::Ready(Ok(Read::Closed)),
            }
        }
        let bytes = self.ahead.take(max);
        self.gone_on += bytes.len();
        self.account.from_client(bytes.len());
        Poll::Ready(Ok(Read::Data(bytes)))
    }

    /// Reads ahead, no further than the client's window reaches, to see its close. That is answered in time although
    /// what came before it is still on its way.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.hold_back(true);
        while self.closed.is_none() {
            match ready!(self.poll_order(cx)) {
                Order::Deliver(payload) => self.ahead.join(payload),
                _ => self.closed = Some(Box::pin(sleep(ANSWER_WITHIN))),
            }
        }
        if let Some(answer) = &mut self.closed
            && answer.as_mut().poll(cx).is_ready()
        {
            self.send_end("");
        }
        // What bounds it is the window, which is not given back.
        let mut allowance = usize::MAX;
        if self.stream.poll_drained(cx, &mut allowance).is_ready() {
            self.account.left();
        }
        Poll::Ready(())
    }

    /// What was read ahead is held back, but for a message that is larger than the window; what has gone on is not here any
    /// more.
    fn held(&mut self) -> usize {
        self.stream.held().saturating_sub(self.gone_on).max(self.ahead.len())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, queue: &mut Queue) -> Poll<io::Result<()>> {
        if self.closed.is_some() {
            // Nobody listens any more.
            queue.clear();
            return Poll::Ready(Ok(()));
        }
        ready!(self.barrier.poll_lifted(cx));
        let start = *self.blocked.get_or_insert_with(Instant::now);
        let room = ready!(self.stream.poll_ready(cx));
        self.blocked = None;
        let room = room.map_err(|error| self.broken(error))?;
        let waited = start.elapsed();
        let payload = queue.take_slice(room.min(self.pieces.most(waited)));
        let length = payload.len();
        self.pieces.sent(length);
        if let Err(error) = self.stream.send(Packet::Data { id: CONNECTION, payload }) {
            return Poll::Ready(Err(self.broken(error)));
        }
        self.account.to_client(length, waited);
        Poll::Ready(Ok(()))
    }

    /// The wire's driver flushes.
    fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// No packet says so to a gRPC client: CLOSE_RSP it is.
    fn poll_shut_down(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        Poll::Ready(Ok(false))
    }

    fn poll_end(&mut self, cx: &mut Context<'_>, ending: &Ending, allowance: &mut usize) -> Poll<()> {
        if self.lingering.is_none() {
            // Nobody else reads any more. What the client sends lifts the barrier, and goes nowhere.
            while !self.barrier.is_lifted() && self.poll_order(cx).is_ready() {}
            if !self.stream.is_lost() {
                ready!(self.barrier.poll_lifted(cx));
            }
            self.account.ended(ending);
            self.send_end(&ending.wire_text());
        }
        if self.stream.is_lost() {
            return Poll::Ready(());
        }
        let deadline = self.lingering.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if deadline.as_mut().poll(cx).is_pending() {
            ready!(self.stream.poll_drained(cx, allowance));
        }
        self.stream.finish();
        Poll::Ready(())
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
