//! One gRPC stream over h2, as [`Wire`].
//!
//! ```text
//!            send / poll_ready                   finish, fail     
//!   Open ─────────────────────────▶ Open ───────────────────────────▶ Finished
//!            poll_packet                       None, or an error
//!   Open ─────────────────────────▶ Open ───────────────────────────▶ Ended
//! ```
//!
//! The two directions are independent. A stream that is dropped before both have ended is reset with CANCEL, with two
//! exceptions. A client's stream that is Finished but not Ended goes to the connection's driver, so that all sent bytes arrive.
//! A server's stream that is Finished leaves its queued frames to the driver.

use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use mux::Packet;
use parking_lot::Mutex;

use super::backlog::Backlog;
use super::deframe::{Deframer, MESSAGE_LIMIT};
use super::frame::{OVERHEAD, OutFrame, Queued};
use super::keepalive::KeepaliveHandle;
use super::lingering::{LingeringHandle, Mailbox};
use super::packet::decode;
use super::settings::SEND_BUFFER;
use super::{Code, Incoming, Wire, WireError, status};
use crate::joined::Joined;

/// The capacity that the stream requests from h2 at a time, in bytes: as many as h2 may queue, plus the heads of four frames.
const RESERVE: usize = SEND_BUFFER + 4 * OVERHEAD;

/// The stream returns window to the peer in steps of at least this many bytes, because each step takes the connection's lock.
/// It is a small part of every window.
const MIN_WINDOW_UPDATE: usize = 32 << 10;

/// The smallest result of [`Wire::poll_ready`], in bytes, because smaller frames cost too much. So h2 may hold up to this many bytes
/// beyond the peer's window.
const MIN_READY_BYTES: usize = 4 << 10;

/// Both directions of an h2 stream.
pub(super) type Directions = (SendStream<OutFrame>, RecvStream);

/// Streams that are finished and wait for the server's end, see [`WireStream`].
pub(super) type Linger = Mailbox<Directions>;

/// The handle for further requests. None are sent: it fails after GOAWAY, which nothing else shows while a stream is open.
/// The connection stays open as long as it exists.
pub(super) type Requests = Mutex<SendRequest<OutFrame>>;

/// Our end of the stream.
#[derive(Debug)]
pub(super) enum Side {
    /// The driver's list that receives a finished stream with queued frames, and the count of its frames that h2 has not sent.
    Server(LingeringHandle, Queued),
    /// The driver's list that receives a finished stream when it is dropped before the server has ended it, and the
    /// connection's handle for requests, which keeps the connection open.
    Client { linger: Arc<Linger>, _requests: Arc<Requests> },
}

/// One gRPC stream of packets.
#[derive(Debug)]
pub struct WireStream {
    /// `None` if the stream ended with its headers.
    send: Option<SendStream<OutFrame>>,
    /// `None` if the stream ended with its headers, and after an error: HTTP/2 drops the frames that nobody will read.
    recv: Option<RecvStream>,
    /// Bytes that [`Wire::poll_hold`] has read. They precede the bytes that HTTP/2 holds.
    ahead: Joined,
    deframer: Deframer,
    /// See [`Wire::limit_messages`].
    message_limit: usize,
    side: Side,
    /// The connection's keepalive.
    keepalive: Arc<KeepaliveHandle>,
    /// The transport's limit on sends; `None`: the stream does not wait for the transport.
    backlog: Option<Arc<Backlog>>,
    /// The peer's initial window, in bytes.
    window: usize,
    /// Window of consumed bytes, to be returned to the peer.
    owed: usize,
    /// Window of packets read ahead, withheld from the peer; `None` unless [`Wire::hold_back`] is on.
    held: Option<usize>,
    /// We sent the end of our direction.
    finished: bool,
    /// We saw the end of the peer's direction.
    ended: bool,
}

impl WireStream {
    /// `window`: the peer's initial window, in bytes. `backlog`: the transport's, if [`Wire::poll_ready`] is to be pending while it
    /// accepts no bytes.
    pub(super) fn new(
        directions: Option<Directions>,
        side: Side,
        keepalive: Arc<KeepaliveHandle>,
        window: u32,
        backlog: Option<Arc<Backlog>>,
    ) -> Self {
        let ended = directions.is_none();
        let (send, recv) = directions.unzip();
        WireStream {
            send,
            recv,
            ahead: Joined::default(),
            deframer: Deframer::default(),
            message_limit: MESSAGE_LIMIT,
            side,
            keepalive,
            backlog,
            window: window as usize,
            owed: 0,
            held: None,
            finished: false,
            ended,
        }
    }

    fn end(&mut self, code: Code, message: &str) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let Some(send) = &mut self.send else { return };
        // An error means that the stream has ended already: `poll_packet` returns the reason.
        let _gone = match self.side {
            Side::Server(..) => send.send_trailers(status::trailers(code, message)),
            Side::Client { .. } => send.send_data(OutFrame::empty(), true),
        };
    }

    fn error(&self, error: &h2::Error) -> WireError {
        let explained = match self.side {
            Side::Server(..) => WireError::at_server(error),
            Side::Client { .. } => WireError::at_client(error),
        };
        self.keepalive.explain(error, explained)
    }

    /// The reason why h2 accepts no more data; `None` if the peer has finished in order, which [`Wire::poll_packet`] reports.
    fn why_closed(&mut self) -> Option<WireError> {
        if self.finished {
            return Some(WireError::new(Code::Internal, "sent on a stream behind its end"));
        }
        let Some(send) = &mut self.send else {
            return Some(WireError::new(Code::Internal, "sent on a stream that is over"));
        };
        match (send.poll_reset(&mut Context::from_waker(Waker::noop())), &self.side) {
            (Poll::Ready(Ok(Reason::NO_ERROR)), Side::Client { .. }) => None,
            (Poll::Ready(Ok(reason)), Side::Server(..)) => {
                Some(WireError::new(Code::Canceled, format!("stream error received: {reason}")))
            }
            (Poll::Ready(Ok(reason)), Side::Client { .. }) => {
                Some(WireError::new(status::code_of(reason), format!("stream error received: {reason}")))
            }
            (Poll::Ready(Err(error)), _) => Some(self.error(&error)),
            (Poll::Pending, Side::Client { .. }) => None,
            (Poll::Pending, Side::Server(..)) => Some(WireError::new(Code::Internal, "the stream is closed")),
        }
    }

    /// The end after the last message: a client reads the status in the trailers.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        let Some(recv) = &mut self.recv else { return Poll::Ready(Ok(())) };
        if let Side::Client { .. } = self.side {
            match ready!(recv.poll_trailers(cx)) {
                Ok(Some(trailers)) => status::verdict(&trailers)?,
                Ok(None) => {
                    let text = "the server closed the stream without trailers";
                    return Poll::Ready(Err(WireError::new(Code::Internal, text)));
                }
                Err(error) => return Poll::Ready(Err(self.error(&error))),
            }
        }
        Poll::Ready(match self.deframer.at_boundary() {
            true => Ok(()),
            false => Err(WireError::new(Code::Internal, "the stream ended inside a message")),
        })
    }

    /// The next whole message, or the end.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, WireError>> {
        loop {
            let (message, mut used) = self.deframer.step()?;
            let Some(recv) = &mut self.recv else { return Poll::Ready(Ok(None)) };
            if message.is_none() && self.deframer.expects() > self.message_limit {
                let text = format!("a message of more than {} bytes came too early", self.message_limit);
                return Poll::Ready(Err(WireError::new(Code::ResourceExhausted, text)));
            }
            if let Some(held) = &mut self.held {
                // Frames of 16 KiB split messages, so parts count too. A message larger than the window is the exception,
                // if no other window is withheld: it could not arrive otherwise.
                let larger = self.deframer.expects() > self.window;
                if message.is_some() || *held > 0 || !larger {
                    *held += std::mem::take(&mut used);
                }
            }
            self.owed += used;
            // A message larger than the window arrives only if its parts return their window.
            if self.owed >= MIN_WINDOW_UPDATE
                && self.backlog.as_ref().is_none_or(|backlog| backlog.poll_give_back(cx).is_ready())
            {
                // h2 refuses only a release of more bytes than were received, or after the stream's end.
                let _closed = recv.flow_control().release_capacity(std::mem::take(&mut self.owed));
            }
            if message.is_some() {
                return Poll::Ready(Ok(message));
            }
            if !self.ahead.is_empty() {
                self.deframer.push(self.ahead.take(usize::MAX));
                continue;
            }
            match ready!(recv.poll_data(cx)) {
                Some(Ok(chunk)) => self.deframer.push(chunk),
                Some(Err(error)) => return Poll::Ready(Err(self.error(&error))),
                None => return self.poll_end(cx).map_ok(|()| None),
            }
        }
    }
}

impl Wire for WireStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, WireError>> {
        let Some(send) = &mut self.send else {
            return self.why_closed().map_or(Poll::Pending, |error| Poll::Ready(Err(error)));
        };
        loop {
            send.reserve_capacity(RESERVE);
            let capacity = send.capacity();
            if capacity > 0 {
                // Unused reserved window would be missing for the connection's other streams.
                send.reserve_capacity(0);
                let room = match &self.backlog {
                    Some(backlog) => ready!(backlog.poll_ready(cx)),
                    None => usize::MAX,
                };
                return Poll::Ready(Ok(capacity.saturating_sub(OVERHEAD).min(room).max(MIN_READY_BYTES)));
            }
            // A stream that waits may be closed by its client, and never send again: it reserves little of the next window.
            send.reserve_capacity(MIN_READY_BYTES);
            match ready!(send.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(self.error(&error))),
                // A peer that has finished accepts nothing more; `poll_packet` reports its end.
                None => return self.why_closed().map_or(Poll::Pending, |error| Poll::Ready(Err(error))),
            }
        }
    }

    fn send(&mut self, packet: Packet<Bytes>) -> Result<(), WireError> {
        if let Packet::Data { payload, .. } = &packet
            && payload.is_empty()
        {
            // The Go client takes an empty DATA for an end of file, so we never send one.
            return Ok(());
        }
        let mut frame = OutFrame::new(packet);
        if let Side::Server(_, queued) = &self.side {
            frame = frame.counted(queued);
        }
        let bytes = frame.remaining();
        if !self.finished
            && let Some(send) = &mut self.send
        {
            // Counted before it is sent: the driver, on another thread, may flush the frame before `send_data` returns, and
            // the flush resets the count.
            if let Some(backlog) = &self.backlog {
                backlog.handed_over(bytes);
            }
            if send.send_data(frame, false).is_ok() {
                return Ok(());
            }
        }
        self.why_closed().map_or(Ok(()), Err)
    }

    fn poll_packet(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Incoming, WireError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let message = ready!(self.poll_message(cx)).inspect_err(|_| {
            self.ended = true;
            self.recv = None;
        });
        Poll::Ready(match message {
            Ok(Some(message)) => Some(Ok(decode(message))),
            Ok(None) => {
                self.ended = true;
                None
            }
            Err(error) => Some(Err(error)),
        })
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.send {
            Some(send) => send.poll_reset(cx).map(drop),
            None => Poll::Ready(()),
        }
    }

    fn poll_hold(&mut self, cx: &mut Context<'_>) {
        let Some(recv) = &mut self.recv else { return };
        // HTTP/2 returns an error or the end of the stream again when `poll_packet` asks.
        while let Poll::Ready(Some(Ok(chunk))) = recv.poll_data(cx) {
            self.ahead.join(chunk);
        }
    }

    fn hold_back(&mut self, on: bool) {
        if on {
            self.held.get_or_insert(0);
        } else if let (Some(held), Some(recv)) = (self.held.take(), &mut self.recv) {
            // h2 refuses only after the stream's end.
            let _closed = recv.flow_control().release_capacity(held);
        }
    }

    fn held(&self) -> usize {
        if self.recv.is_none() {
            return 0;
        }
        self.ahead.len() + self.deframer.waiting() + self.held.unwrap_or_default()
    }

    fn limit_messages(&mut self, bytes: usize) {
        self.message_limit = bytes;
    }

    fn rtt(&self) -> Option<Duration> {
        self.keepalive.rtt()
    }

    fn fail(&mut self, error: &WireError) {
        if matches!(self.side, Side::Server(..)) {
            self.end(error.code, &error.message);
        }
    }

    fn finish(&mut self) {
        self.end(Code::OK, "");
    }
}

impl Drop for WireStream {
    fn drop(&mut self) {
        let Some(mut send) = self.send.take() else { return };
        match (&mut self.side, self.recv.take()) {
            (Side::Client { linger, .. }, Some(recv)) if self.finished && !self.ended => {
                linger.push((send, recv))
            }
            // h2 sends the queued frames and, if the client has not ended, RST_STREAM with NO_ERROR.
            (Side::Server(lingering, queued), recv) if self.finished => {
                drop(recv);
                if let Some(lingering) = lingering.upgrade().filter(|_| !queued.is_empty()) {
                    lingering.push((send, queued.all_sent()));
                }
            }
            _ if self.finished && self.ended => {}
            _ => send.send_reset(Reason::CANCEL),
        }
    }
}

#[cfg(test)]
impl WireStream {
    /// The slices that [`Wire::poll_hold`] has queued.
    pub(super) fn slices_ahead(&self) -> usize {
        self.ahead.slices()
    }
}
