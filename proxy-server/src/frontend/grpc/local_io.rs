//! The local end of a gRPC frontend's established connection: its Proxy stream as the link's task sees it.
//!
//! This module only frames packets; the state machine decides what they mean.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use driver::{Chunks, CloseReason, LocalIo, Read};
use grpc::joined::Joined;
use grpc::{Code, MESSAGE_LIMIT, Wire, WireError};
use mux::Packet;
use tokio::time::{Instant, Sleep, sleep};

use super::LINGER;
use super::chunk_sizer::ChunkSizer;
use super::machine::{CONNECTION, Order};
use super::stream::{PACKETS_PER_TURN, Stream};
use crate::frontend::barrier::FirstByteBarrier;
use crate::frontend::connection_log::ConnectionLog;

/// How long the answer to a CLOSE_REQ may take. A Go client waits 10 s for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// While the link takes nothing, the frontend returns the window of waiting bytes at this interval, if they are fewer than
/// [`MAX_AHEAD`]. A client whose window is used up cannot send its CLOSE_REQ; Go's client then waits without a time limit.
const WINDOW_RETURN_INTERVAL: Duration = Duration::from_secs(5);
const MAX_AHEAD: usize = 512 << 10;

/// Messages below this length, in bytes, are joined into up to [`GATHERED`] bytes.
const SMALL: usize = 4 << 10;
const GATHERED: usize = 16 << 10;

/// See the module.
pub struct GrpcIo<W> {
    stream: Stream<W>,
    /// Bytes received from the client that the link has not read: the rest of a DATA that was larger than a read, joined small
    /// messages, and bytes read ahead while the link had no credit.
    ahead: Joined,
    /// The first bytes of `ahead`, whose window the client has back.
    returned: usize,
    /// Bytes that the link has read from `ahead` while their window is still withheld.
    gone_on: usize,
    /// When the client gets window for more bytes.
    more: Option<Pin<Box<Sleep>>>,
    /// The client has closed after the bytes in `ahead`. When this expires, the close is answered even if they are still queued.
    closed: Option<Pin<Box<Sleep>>>,
    /// The endpoint sends no more, and the client has its CLOSE_RSP. When this expires, the client's last bytes have arrived.
    half_closed: Option<Pin<Box<Sleep>>>,
    barrier: FirstByteBarrier,
    log: ConnectionLog,
    chunks: ChunkSizer,
    /// The start of the wait for the client's window, for the write histogram.
    blocked: Option<Instant>,
    /// The linger after the terminal packet.
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<W: Wire> GrpcIo<W> {
    /// `stream` has just sent its DIAL_RSP.
    pub fn new(mut stream: Stream<W>, log: ConnectionLog) -> Self {
        stream.wire.limit_messages(MESSAGE_LIMIT);
        GrpcIo {
            stream,
            ahead: Joined::default(),
            returned: 0,
            gone_on: 0,
            more: None,
            closed: None,
            half_closed: None,
            barrier: FirstByteBarrier::start(),
            log,
            chunks: ChunkSizer::default(),
            blocked: None,
            lingering: None,
        }
    }

    fn broken(&mut self, error: WireError) -> io::Error {
        self.log.note(&error);
        match error.code {
            // The client has canceled its stream. As with a socket, this does not count as a loss.
            Code::Canceled => {
                io::Error::new(io::ErrorKind::ConnectionReset, format!("connection reset by peer: {error}"))
            }
            _ => io::Error::other(error),
        }
    }

    /// The next order. It lifts the barrier: a client that sends or closes has registered its connection.
    fn poll_order(&mut self, cx: &mut Context<'_>) -> Poll<Order> {
        let order = ready!(self.stream.poll_order(cx));
        self.barrier.lift(cx);
        Poll::Ready(order)
    }

    /// Joins a small message with the messages that have arrived after it, so that they share one packet of the link.
    fn gather(&mut self, cx: &mut Context<'_>, first: Bytes) {
        self.ahead.join(first);
        let last = self.stream.received + PACKETS_PER_TURN;
        while self.ahead.len() < GATHERED && self.closed.is_none() && self.stream.received < last {
            let Poll::Ready(order) = self.poll_order(cx) else { return };
            self.put_ahead(order);
        }
    }

    /// Returns the withheld window once the link has taken nothing for a while.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.ahead.len() >= MAX_AHEAD || self.stream.wire.held() == 0 {
            return Poll::Pending;
        }
        ready!(self.more.get_or_insert_with(|| Box::pin(sleep(WINDOW_RETURN_INTERVAL))).as_mut().poll(cx));
        self.more = None;
        self.stream.wire.hold_back(false);
        self.stream.wire.hold_back(true);
        (self.returned, self.gone_on) = (self.ahead.len(), 0);
        Poll::Ready(())
    }

    fn put_ahead(&mut self, order: Order) {
        match order {
            Order::Deliver(payload) => self.ahead.join(payload),
            _ => self.closed = Some(Box::pin(sleep(ANSWER_TIMEOUT))),
        }
    }

    /// Sends CLOSE_RSP unless the client already has its terminal packet, or has left.
    fn send_end(&mut self, text: &str) {
        let packet = self.stream.machine.handle_backend_end(text);
        self.pass_on_end(packet);
    }

    fn pass_on_end(&mut self, packet: Option<Packet<Bytes>>) {
        if let Some(Err(error)) = packet.map(|packet| self.stream.pass_on(packet)) {
            self.log.note(&error);
        }
    }
}

impl<W: Wire + Send> LocalIo for GrpcIo<W> {
    fn client(&self) -> &str {
        self.log.client()
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Read>> {
        self.more = None;
        if self.ahead.is_empty() {
            if self.closed.is_some() || self.stream.machine.is_over() {
                return Poll::Ready(Ok(Read::Closed));
            }
            self.stream.wire.hold_back(false);
            self.gone_on = 0;
            match self.poll_order(cx) {
                Poll::Ready(Order::Deliver(payload)) if payload.len() < SMALL => self.gather(cx, payload),
                Poll::Ready(Order::Deliver(payload)) => self.ahead.push(payload),
                // A lost stream counts as closed, too: the bytes that the client has sent are still delivered.
                Poll::Ready(_) => return Poll::Ready(Ok(Read::Closed)),
                Poll::Pending => {
                    let Some(half_closed) = &mut self.half_closed else { return Poll::Pending };
                    ready!(half_closed.as_mut().poll(cx));
                    return Poll::Ready(Ok(Read::Closed));
                }
            }
        }
        let bytes = self.ahead.take(max);
        let returned = self.returned.min(bytes.len());
        self.returned -= returned;
        self.gone_on += bytes.len() - returned;
        self.log.from_client(bytes.len());
        Poll::Ready(Ok(Read::Data(bytes)))
    }

    /// Reads ahead, within the client's window, to see its close. So the close is answered in time even if earlier bytes are
    /// still queued.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.wire.hold_back(true);
        let last = self.stream.received + PACKETS_PER_TURN;
        while self.closed.is_none() {
            if self.stream.received >= last {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.poll_order(cx) {
                Poll::Ready(order) => self.put_ahead(order),
                Poll::Pending => ready!(self.poll_more(cx)),
            }
        }
        if let Some(answer) = &mut self.closed
            && answer.as_mut().poll(cx).is_ready()
        {
            self.send_end("");
        }
        // The withheld window limits the discarded bytes.
        let mut allowance = usize::MAX;
        if self.stream.poll_drained(cx, &mut allowance).is_ready() {
            self.log.left();
        }
        Poll::Ready(())
    }

    /// The stream counts all bytes whose window is withheld, including those that the link has read since. A message larger
    /// than the window does not withhold it, and is counted in `ahead`.
    fn held(&mut self) -> usize {
        (self.stream.wire.held().saturating_sub(self.gone_on) + self.returned).max(self.ahead.len())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, chunks: &mut Chunks<'_>) -> Poll<io::Result<()>> {
        if self.closed.is_some() {
            // A client that has closed reads nothing more.
            chunks.take_all();
            return Poll::Ready(Ok(()));
        }
        ready!(self.barrier.poll_lifted(cx));
        let start = *self.blocked.get_or_insert_with(Instant::now);
        let room = ready!(self.stream.poll_ready(cx));
        self.blocked = None;
        let room = room.map_err(|error| self.broken(error))?;
        let waited = start.elapsed();
        let payload = chunks.take_slice(room.min(self.chunks.next_size(waited)));
        let length = payload.len();
        self.chunks.sent(length);
        if let Err(error) = self.stream.send(Packet::Data { id: CONNECTION, payload }) {
            return Poll::Ready(Err(self.broken(error)));
        }
        self.log.to_client(length, waited);
        Poll::Ready(Ok(()))
    }

    /// No packet tells a gRPC client about a half-close, so CLOSE_RSP ends the connection for it. What it had sent before is still
    /// read.
    fn poll_shut_down(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.barrier.poll_lifted(cx));
        let packet = self.stream.machine.handle_backend_fin();
        self.pass_on_end(packet);
        let half_closed = self.half_closed.insert(Box::pin(sleep(LINGER)));
        // Its expiry wakes the connection, which is then read.
        let _pending = half_closed.as_mut().poll(cx);
        Poll::Ready(Ok(()))
    }

    fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        close_reason: &CloseReason,
        allowance: &mut usize,
    ) -> Poll<()> {
        if self.lingering.is_none() {
            // The link no longer reads from this client. A packet from the client lifts the barrier, and is discarded.
            while !self.barrier.is_lifted() && self.poll_order(cx).is_ready() {}
            if !self.stream.lost {
                ready!(self.barrier.poll_lifted(cx));
            }
            self.log.ended(close_reason);
            self.send_end(&close_reason.wire_text());
        }
        if self.stream.lost {
            return Poll::Ready(());
        }
        let deadline = self.lingering.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if deadline.as_mut().poll(cx).is_pending() {
            ready!(self.stream.poll_drained(cx, allowance));
        }
        self.stream.wire.finish();
        Poll::Ready(())
    }
}

#[cfg(test)]
#[path = "local_io_tests.rs"]
mod tests;
