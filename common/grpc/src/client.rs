//! Opens one gRPC stream on one connection, from an agent to a server.
//!
//! A separate task drives the connection; its [`ConnectionHandle`] owns the task. The connection ends with its stream.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::Connection;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use mux::Packet;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::buffered::{Buffered, Flusher, MAX_GATHERED_OVER_TLS, buffered};
use super::keepalive::{Keepalive, KeepaliveHandle};
use super::pinger::Pinger;
use super::server::ConnectionError;
use super::settings::{STREAM_WINDOW, client_builder};
use super::status::{self, GRPC, GRPC_STATUS};
use super::stream::{Linger, Requests, Side, WireStream};
use super::{Code, OutFrame, WireError};

const USER_AGENT_VALUE: HeaderValue =
    HeaderValue::from_static(concat!("konnectivity/", env!("CARGO_PKG_VERSION")));

/// A stream whose server has answered.
#[derive(Debug)]
pub struct Connected {
    /// The stream.
    pub stream: WireStream,
    /// The response headers.
    pub metadata: HeaderMap,
    /// The connection below the stream.
    pub connection: ConnectionHandle,
}

/// Owns the task that drives a connection: dropping it ends the connection at once.
#[derive(Debug)]
pub struct ConnectionHandle {
    task: JoinHandle<Result<(), ConnectionError>>,
    /// The connection's keepalive.
    pub keepalive: Arc<KeepaliveHandle>,
    /// Canceled once the server, or a proxy before it, has sent GOAWAY. The stream continues.
    pub going_away: CancellationToken,
}

impl ConnectionHandle {
    /// Waits for the connection's end.
    pub async fn closed(&mut self) -> Result<(), ConnectionError> {
        // Only the handle aborts the task, and the task does not panic.
        (&mut self.task).await.unwrap_or(Ok(()))
    }

    /// Lets the connection end with its stream (finished and dropped before), and aborts it after `within`.
    pub async fn close(mut self, within: Duration) {
        let _cut_off = timeout(within, self.closed()).await;
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads a stream to its end and drops the bytes.
fn poll_to_end(recv: &mut RecvStream, cx: &mut Context<'_>) -> Poll<()> {
    while let Some(Ok(chunk)) = ready!(recv.poll_data(cx)) {
        let _closed = recv.flow_control().release_capacity(chunk.len());
    }
    Poll::Ready(())
}

/// Opens the stream `path` on a new transport, and returns when the server's response headers have arrived. The client of a
/// frontend sends its `first` packet with the request: Go's server answers a Proxy stream no sooner.
///
/// The error is the server's status if it refuses, and DeadlineExceeded after `deadline`.
pub async fn connect<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    io: IO,
    keepalive: Keepalive,
    (authority, path): (&str, &str),
    metadata: HeaderMap,
    first: Option<Packet<Bytes>>,
    deadline: Instant,
) -> Result<Connected, WireError> {
    let request = request(authority, path, metadata)?;
    let late = || WireError::new(Code::DeadlineExceeded, "the server did not answer the stream in time");
    timeout_at(deadline, open(io, keepalive, request, first)).await.unwrap_or_else(|_| Err(late()))
}

fn request(authority: &str, path: &str, metadata: HeaderMap) -> Result<Request<()>, WireError> {
    let uri = Uri::builder().scheme("https").authority(authority).path_and_query(path).build();
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = uri.map_err(|e| {
        WireError::new(Code::Internal, format!("{authority:?} is not a valid authority: {e}"))
    })?;
    *request.headers_mut() = metadata;
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    request.headers_mut().insert(CONTENT_TYPE, GRPC);
    request.headers_mut().insert(USER_AGENT, USER_AGENT_VALUE);
    Ok(request)
}

async fn open<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    io: IO,
    keepalive: Keepalive,
    request: Request<()>,
    first: Option<Packet<Bytes>>,
) -> Result<Connected, WireError> {
    let (io, flusher) = buffered(io, MAX_GATHERED_OVER_TLS, None);
    let handshake = client_builder().handshake::<_, OutFrame>(io).await;
    let (requests, mut connection) = handshake.map_err(|e| WireError::at_client(&e))?;
    let keepalive = KeepaliveHandle::new(keepalive);
    let pinger =
        Pinger::new(connection.ping_pong(), Arc::clone(&keepalive), STREAM_WINDOW, flusher.backlog());
    let (linger, backlog) = (Arc::<Linger>::default(), flusher.backlog());
    let going_away = CancellationToken::new();
    let requests = Arc::new(Mutex::new(requests));
    let goaway = (Arc::downgrade(&requests), going_away.clone());
    let task = tokio::spawn(drive(connection, flusher, pinger, Arc::clone(&linger), goaway));
    let connection = ConnectionHandle { task, keepalive: Arc::clone(&keepalive), going_away };
    let sent = send_request(&requests, request, first).await;
    let (send, response) = sent.map_err(|e| keepalive.explain(&e, WireError::at_client(&e)))?;
    let (head, recv) = response.into_parts();
    let directions = opens_stream(&head)?.then_some((send, recv));
    let side = Side::Client { linger, _requests: requests };
    let stream = WireStream::new(directions, side, keepalive, STREAM_WINDOW, Some(backlog));
    Ok(Connected { stream, metadata: head.headers, connection })
}

async fn send_request(
    requests: &Requests,
    request: Request<()>,
    first: Option<Packet<Bytes>>,
) -> Result<(h2::SendStream<OutFrame>, Response<RecvStream>), h2::Error> {
    poll_fn(|cx| requests.lock().poll_ready(cx)).await?;
    let (response, mut send) = requests.lock().send_request(request, false)?;
    if let Some(packet) = first {
        send.send_data(OutFrame::new(packet), false)?;
    }
    Ok((send, response.await?))
}

/// Whether a stream follows the response headers; false if they had the status OK.
fn opens_stream(head: &http::response::Parts) -> Result<bool, WireError> {
    let text = |what: &str| format!("the answer is not gRPC: {what}, HTTP status {}", head.status);
    if head.headers.contains_key(GRPC_STATUS) {
        status::verdict(&head.headers)?;
        return Ok(false);
    }
    if head.status != StatusCode::OK {
        return Err(WireError::new(status::code_of_http(head.status), text("no grpc-status")));
    }
    if !status::is_grpc(&head.headers) {
        return Err(WireError::new(Code::Unknown, text("another content-type")));
    }
    Ok(true)
}

/// The task of a connection, which cancels `going_away` once the server has sent GOAWAY. No `async fn`, because that would keep
/// the arguments twice.
fn drive<IO: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<Buffered<IO>, OutFrame>,
    flusher: Flusher<IO>,
    mut pinger: Pinger,
    linger: Arc<Linger>,
    // Weak, because the connection ends with its stream.
    (requests, going_away): (Weak<Requests>, CancellationToken),
) -> impl Future<Output = Result<(), ConnectionError>> {
    // These streams must exist until the connection has ended.
    let mut lingering = Vec::new();
    poll_fn(move |cx| {
        lingering.extend(linger.take(cx));
        lingering.retain_mut(|(_send, recv)| poll_to_end(recv, cx).is_pending());
        if let Poll::Ready(end) = Pin::new(&mut connection).poll(cx) {
            return Poll::Ready(end.map_err(ConnectionError::from));
        }
        if !going_away.is_cancelled()
            && let Some(requests) = requests.upgrade()
            && let Poll::Ready(Err(_)) = requests.lock().poll_ready(cx)
        {
            going_away.cancel();
        }
        if let Poll::Ready(dead) = pinger.poll(cx, flusher.moved()) {
            return Poll::Ready(Err(dead.into()));
        }
        pinger.fit_window(cx, STREAM_WINDOW, |window| connection.set_initial_window_size(window));
        match flusher.poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            _ => Poll::Pending,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_of_a_connection_keeps_its_arguments_once() {
        fn sizes<A, B, C, D, E, Task>(_: fn(A, B, C, D, E) -> Task) -> (usize, usize) {
            (size_of::<(A, B, C, D, E)>(), size_of::<Task>())
        }
        let (arguments, task) = sizes(drive::<tokio::io::DuplexStream>);
        assert!(task < arguments + 256, "{task} bytes for {arguments} bytes of arguments");
    }
}
