//! Serves one HTTP/2 connection: turns its requests into [`Request`]s, finds lost peers, and ends in order.
//!
//! Knows no services: the caller checks the path. Never derives anything from `:authority`.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep};

use super::OutFrame;
use super::admission::{Charge, Unadmitted};
use super::buffered::{Buffered, Flusher, MAX_GATHERED_OVER_TLS, buffered};
use super::keepalive::KeepaliveHandle;
use super::lingering::LingeringStreams;
use super::pinger::{PeerLost, Pinger};
use super::request::Request;
use super::settings::{ADMISSION_TIMEOUT, ServerSettings};

/// Why a connection did not end in order.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The peer's first bytes are not those of HTTP/2.
    #[error("the peer does not speak HTTP/2")]
    NotHttp2,
    /// The peer broke HTTP/2, ended the connection with an error, or was lost.
    #[error("HTTP/2: {}", super::status::words(.0))]
    Http2(#[from] h2::Error),
    /// A flush of the transport failed.
    #[error("transport: {0}")]
    Io(#[from] io::Error),
    /// The keepalive ended the connection.
    #[error(transparent)]
    Keepalive(#[from] PeerLost),
    /// No stream was accepted in time.
    #[error("no stream was accepted in time")]
    NotAdmitted,
    /// The peer sent too much before a stream was accepted.
    #[error("the peer sent too much before a stream was accepted")]
    UnadmittedMemory,
    /// No stream was opened in time after the last one ended.
    #[error("no stream was opened in time")]
    NoStream,
}

impl ConnectionError {
    /// Whether the peer closed or reset the transport, as clients do after their last stream.
    pub fn is_closed_by_peer(&self) -> bool {
        let kind = match self {
            ConnectionError::Http2(error) => error.get_io().map(io::Error::kind),
            ConnectionError::Io(error) => Some(error.kind()),
            _ => None,
        };
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(kind, Some(BrokenPipe | ConnectionReset | UnexpectedEof))
    }
}

/// Serves a connection until its peer ends it or it fails. Calls `on_stream`, which must not block, for each new stream.
///
/// Once `shutdown` completes, the server sends GOAWAY: the client finishes its streams, those included that it opened before it read
/// GOAWAY, and the connection ends with the last one.
pub async fn serve_connection<IO: AsyncRead + AsyncWrite + Unpin>(
    io: IO,
    settings: &ServerSettings,
    mut on_stream: impl FnMut(Request),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ConnectionError> {
    let mut shutdown = pin!(shutdown);
    // Boxed, because the handshake's state would otherwise be kept as long as the connection, three times its size.
    let Some(mut serving) = Box::pin(handshake(io, settings, shutdown.as_mut())).await? else {
        return Ok(());
    };
    poll_fn(|cx| {
        if !serving.goaway_sent && shutdown.as_mut().poll(cx).is_ready() {
            serving.goaway_sent = true;
            serving.connection.graceful_shutdown();
        }
        serving.poll(cx, &mut on_stream)
    })
    .await
}

/// `None` if `shutdown` completes first.
async fn handshake<'s, IO: AsyncRead + AsyncWrite + Unpin>(
    io: IO,
    settings: &'s ServerSettings,
    mut shutdown: Pin<&mut impl Future<Output = ()>>,
) -> Result<Option<Serving<'s, IO>>, ConnectionError> {
    let (io, flusher) = buffered(io, settings.max_gathered, Some(&settings.turns));
    let mut overdue = Some(Box::pin(sleep(ADMISSION_TIMEOUT)));
    let mut handshake = pin!(settings.builder().handshake::<_, OutFrame>(io));
    let connection = poll_fn(|cx| {
        if let Poll::Ready(connection) = handshake.as_mut().poll(cx) {
            // The handshake ends with the client's preface: its settings come later.
            return Poll::Ready(connection.map(Some).map_err(|error| match error.is_io() {
                true => ConnectionError::from(error),
                false => ConnectionError::NotHttp2,
            }));
        }
        if shutdown.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(None));
        }
        poll_turn_end(cx, &flusher, &mut overdue, false)
    });
    let Some(mut connection) = connection.await? else { return Ok(None) };
    let keepalive = KeepaliveHandle::new(settings.keepalive);
    let window = settings.first_windows().1;
    let pinger = Pinger::new(connection.ping_pong(), Arc::clone(&keepalive), window, flusher.backlog());
    Ok(Some(Serving {
        settings,
        connection,
        lingering: LingeringStreams::default(),
        flusher,
        pinger,
        keepalive,
        has_accepted: Arc::default(),
        admitted: false,
        // An authenticated client may connect long before its first stream.
        overdue: overdue.filter(|_| settings.unadmitted.is_some()),
        unadmitted: settings.unadmitted.as_ref().map(Unadmitted::join),
        goaway_sent: false,
    }))
}

/// Flushes what the turn has written, and checks whether a stream is overdue.
fn poll_turn_end<T, IO: AsyncWrite + Unpin>(
    cx: &mut Context<'_>,
    flusher: &Flusher<IO>,
    overdue: &mut Option<Pin<Box<Sleep>>>,
    admitted: bool,
) -> Poll<Result<T, ConnectionError>> {
    if let Poll::Ready(Err(error)) = flusher.poll_flush(cx) {
        return Poll::Ready(Err(error.into()));
    }
    let Some(timer) = overdue else { return Poll::Pending };
    ready!(timer.as_mut().poll(cx));
    Poll::Ready(Err(if admitted { ConnectionError::NoStream } else { ConnectionError::NotAdmitted }))
}

/// A connection past its handshake. Dropping it ends its streams.
struct Serving<'s, IO> {
    settings: &'s ServerSettings,
    connection: Connection<Buffered<IO>, OutFrame>,
    /// Declared after the connection, so that it is dropped later.
    lingering: LingeringStreams,
    flusher: Flusher<IO>,
    pinger: Pinger,
    keepalive: Arc<KeepaliveHandle>,
    /// Whether a stream was ever accepted. Refused streams do not count, because any peer can open them.
    has_accepted: Arc<AtomicBool>,
    /// Whether the driver has seen that.
    admitted: bool,
    /// The peer's charge until then, unless it was authenticated before.
    unadmitted: Option<Charge>,
    /// The time-out, if set: until a stream is accepted, and later until one is opened while there is none.
    overdue: Option<Pin<Box<Sleep>>>,
    goaway_sent: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Serving<'_, IO> {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        on_stream: &mut impl FnMut(Request),
    ) -> Poll<Result<(), ConnectionError>> {
        loop {
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => self.pass_on(request, respond, on_stream),
                // Peers may disconnect as soon as they have read GOAWAY.
                Poll::Ready(Some(Err(error))) if self.goaway_sent && error.is_io() => {
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        self.lingering.poll(cx);
        if let Poll::Ready(lost) = self.pinger.poll(cx, self.flusher.moved()) {
            return Poll::Ready(Err(lost.into()));
        }
        self.fit_overdue(!self.connection.has_streams());
        if let Some(charge) = &mut self.unadmitted {
            if !charge.read(self.flusher.moved().read) {
                return Poll::Ready(Err(ConnectionError::UnadmittedMemory));
            }
        } else {
            let window = self.settings.initial_stream_window;
            self.pinger.fit_window(cx, window, |window| self.connection.set_initial_window_size(window));
        }
        poll_turn_end(cx, &self.flusher, &mut self.overdue, self.admitted)
    }

    /// The time-out of a connection runs until its first accepted stream, whatever else was opened, and again after its
    /// last stream.
    fn fit_overdue(&mut self, idle: bool) {
        if !self.has_accepted.load(Ordering::Acquire) {
            return;
        }
        let first = !std::mem::replace(&mut self.admitted, true);
        if self.unadmitted.take().is_some() {
            self.connection.set_target_window_size(self.settings.initial_connection_window);
        }
        if first || !idle {
            self.overdue = None;
        }
        if idle && self.overdue.is_none() {
            self.overdue = self.settings.next_stream_timeout.map(|limit| Box::pin(sleep(limit)));
        }
    }

    /// Refuses requests that are not gRPC, as grpc-go does, and passes the others to the caller.
    fn pass_on(
        &mut self,
        request: http::Request<RecvStream>,
        respond: SendResponse<OutFrame>,
        on_stream: &mut impl FnMut(Request),
    ) {
        if let Some(charge) = &mut self.unadmitted {
            charge.opened(request.headers());
        }
        // Over the Unix socket streams do not wait for the transport.
        let waits = self.settings.max_gathered == MAX_GATHERED_OVER_TLS;
        let (head, body) = request.into_parts();
        let request = Request {
            path: head.uri.path().to_owned(),
            metadata: head.headers,
            keepalive: Arc::clone(&self.keepalive),
            permit: None,
            has_accepted: Arc::clone(&self.has_accepted),
            respond,
            body,
            lingering: self.lingering.handle(),
            window: self.settings.initial_stream_window,
            backlog: waits.then(|| self.flusher.backlog()),
        };
        if let Some(request) = request.require_grpc(&head.method) {
            on_stream(request);
        }
    }
}
