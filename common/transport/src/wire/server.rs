//! Serves one HTTP/2 connection: its requests become [`Request`]s, its dead peers are found, its end is orderly.
//!
//! Knows nothing of services: a path is the caller's to judge. Never derives anything from `:authority`.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep};

use super::buffered::{Buffered, Buffering, Flusher, buffered};
use super::keepalive::{Dead, Pinger, Pulse};
use super::request::Request;
use super::settings::{Farewell, ServerSettings};
use super::tail::Tailing;
use super::{Code, OutFrame};

/// Why a connection ended otherwise than by its peer's orderly goodbye.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The peer broke HTTP/2, ended the connection with an error, or was lost.
    #[error("HTTP/2: {0}")]
    Http2(#[from] h2::Error),
    /// The transport failed under a flush.
    #[error("transport: {0}")]
    Io(#[from] io::Error),
    /// Nothing answered a ping: the peer is dead or cut off.
    #[error("keepalive: no answer to a ping in time")]
    KeepaliveTimeout,
    /// No stream was opened in time: the first, or another one behind the last that ended.
    #[error("no stream was opened in time")]
    NoStream,
}

/// Serves a connection until its peer ends it or it fails. `on_stream` gets each new stream; it must not block.
pub async fn serve_connection<IO, F>(
    io: IO,
    settings: &ServerSettings,
    on_stream: F,
) -> Result<(), ConnectionError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    F: FnMut(Request),
{
    serve(io, settings, on_stream, pending()).await
}

/// Like [`serve_connection`]; once `shutdown` completes, the connection takes no new streams,
/// and ends with its last stream in the way of [`ServerSettings::farewell`].
pub async fn serve_connection_until<IO, F>(
    io: IO,
    settings: &ServerSettings,
    on_stream: F,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ConnectionError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    F: FnMut(Request),
{
    serve(io, settings, on_stream, shutdown).await
}

async fn serve<IO, F>(
    io: IO,
    settings: &ServerSettings,
    mut on_stream: F,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ConnectionError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    F: FnMut(Request),
{
    let mut shutdown = pin!(shutdown);
    // In a box: what a handshake needs would otherwise be kept as long as the connection, three times its size.
    let Some(mut serving) = Box::pin(handshake(io, settings, shutdown.as_mut())).await? else {
        return Ok(());
    };
    let mut shutdown = Some(shutdown);
    poll_fn(|cx| {
        if let Some(over) = &mut shutdown
            && over.as_mut().poll(cx).is_ready()
        {
            shutdown = None;
            serving.leave();
        }
        serving.poll(cx, &mut on_stream)
    })
    .await
}

/// `None` if `shutdown` completes first.
async fn handshake<IO: AsyncRead + AsyncWrite + Unpin>(
    io: IO,
    settings: &ServerSettings,
    mut shutdown: Pin<&mut impl Future<Output = ()>>,
) -> Result<Option<Serving<IO>>, ConnectionError> {
    let (io, flusher) = buffered(io, settings.buffering);
    let mut streamless = settings.first_stream_timeout.map(|limit| Box::pin(sleep(limit)));
    let mut handshake = pin!(settings.builder().handshake::<_, OutFrame>(io));
    let connection = poll_fn(|cx| {
        if let Poll::Ready(connection) = handshake.as_mut().poll(cx) {
            return Poll::Ready(connection.map(Some).map_err(ConnectionError::from));
        }
        if shutdown.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(None));
        }
        poll_turn_end(cx, &flusher, &mut streamless)
    });
    let Some(mut connection) = connection.await? else { return Ok(None) };
    let pulse = Pulse::new(settings.keepalive);
    let pinger = Pinger::new(connection.ping_pong(), Arc::clone(&pulse));
    Ok(Some(Serving {
        connection,
        tailing: Tailing::default(),
        flusher,
        pinger,
        pulse,
        streamless,
        next_stream: settings.next_stream_timeout,
        farewell: settings.farewell,
        leaving: Leaving::No,
        window: settings.initial_stream_window,
        follows: settings.buffering == Buffering::OVER_TLS,
    }))
}

/// Flushes what the turn has written, and looks whether a stream is overdue.
fn poll_turn_end<T, IO: AsyncWrite + Unpin>(
    cx: &mut Context<'_>,
    flusher: &Flusher<IO>,
    streamless: &mut Option<Pin<Box<Sleep>>>,
) -> Poll<Result<T, ConnectionError>> {
    if let Poll::Ready(Err(error)) = flusher.poll_flush(cx) {
        return Poll::Ready(Err(error.into()));
    }
    match streamless {
        Some(timer) => {
            ready!(timer.as_mut().poll(cx));
            Poll::Ready(Err(ConnectionError::NoStream))
        }
        None => Poll::Pending,
    }
}

/// A connection past its handshake. Dropping it ends its streams.
struct Serving<IO> {
    connection: Connection<Buffered<IO>, OutFrame>,
    /// Behind the connection, whose end it outlives.
    tailing: Tailing,
    flusher: Flusher<IO>,
    pinger: Pinger,
    pulse: Arc<Pulse>,
    /// While there is no stream, where that is bounded.
    streamless: Option<Pin<Box<Sleep>>>,
    /// The bound behind the first one.
    next_stream: Option<Duration>,
    farewell: Farewell,
    leaving: Leaving,
    /// Of each stream, in bytes.
    window: u32,
    /// Whether streams wait for the transport.
    follows: bool,
}

/// How far the connection is on its way out.
#[derive(PartialEq, Eq)]
enum Leaving {
    No,
    /// New streams are refused; GOAWAY follows the last of the others.
    WhenIdle,
    /// GOAWAY was sent.
    Said,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Serving<IO> {
    fn leave(&mut self) {
        match self.farewell {
            Farewell::GoAway => self.say_goodbye(),
            Farewell::WhenIdle => self.leaving = Leaving::WhenIdle,
        }
    }

    fn say_goodbye(&mut self) {
        self.leaving = Leaving::Said;
        self.connection.graceful_shutdown();
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        on_stream: &mut impl FnMut(Request),
    ) -> Poll<Result<(), ConnectionError>> {
        loop {
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.streamless = None;
                    self.admit(request, respond, on_stream);
                }
                // Peers may hang up as soon as they have read GOAWAY.
                Poll::Ready(Some(Err(error))) if self.leaving == Leaving::Said && error.is_io() => {
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending if self.leaving == Leaving::WhenIdle && !self.connection.has_streams() => {
                    self.say_goodbye();
                }
                Poll::Pending => break,
            }
        }
        self.tailing.poll(cx);
        let idle = !self.connection.has_streams();
        if let Poll::Ready(Dead) = self.pinger.poll(cx, self.flusher.bytes_read(), idle) {
            return Poll::Ready(Err(ConnectionError::KeepaliveTimeout));
        }
        self.pinger.fit_window(cx, |window| self.connection.set_initial_window_size(window));
        if idle && self.streamless.is_none() {
            self.streamless = self.next_stream.map(|limit| Box::pin(sleep(limit)));
        }
        poll_turn_end(cx, &self.flusher, &mut self.streamless)
    }

    /// Refuses what is no gRPC, as grpc-go does, and hands the rest to the caller.
    fn admit(
        &self,
        request: http::Request<RecvStream>,
        respond: SendResponse<OutFrame>,
        on_stream: &mut impl FnMut(Request),
    ) {
        let (pulse, tails) = (Arc::clone(&self.pulse), self.tailing.tails());
        let backlog = self.follows.then(|| self.flusher.backlog());
        let Some(request) = Request::admit(request, respond, pulse, tails, self.window, backlog) else {
            return;
        };
        if self.leaving == Leaving::No {
            on_stream(request);
        } else {
            request.refuse(Code::Unavailable, "the server is shutting down");
        }
    }
}
