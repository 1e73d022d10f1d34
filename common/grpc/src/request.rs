//! A client's new gRPC stream, until it is accepted or refused.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{AsHeaderName, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Response, StatusCode};
use tokio::sync::OwnedSemaphorePermit;

use super::backlog::Backlog;
use super::frame::Queued;
use super::keepalive::KeepaliveHandle;
use super::lingering::LingeringHandle;
use super::status::{self, GRPC};
use super::stream::{Side, WireStream};
use super::{Code, OutFrame, WireError};

/// The only value of a header, if it has one.
///
/// # Errors
/// The number of values, if there are several.
pub fn single(metadata: &HeaderMap, name: impl AsHeaderName) -> Result<Option<&HeaderValue>, usize> {
    let mut values = metadata.get_all(name).iter();
    match (values.next(), values.count()) {
        (value, 0) => Ok(value),
        (_, others) => Err(1 + others),
    }
}

/// A new stream, to be accepted or refused. If dropped without an answer, it is reset.
pub struct Request {
    /// The path, such as `/AgentService/Connect`; matched exactly.
    pub path: String,
    /// The request's headers.
    pub metadata: HeaderMap,
    /// The keepalive of the connection that the stream is on.
    pub keepalive: Arc<KeepaliveHandle>,
    /// Held until the accepted stream is dropped and all its frames were sent.
    pub permit: Option<OwnedSemaphorePermit>,
    /// Whether the connection has had an accepted stream; [`Request::accept`] sets it.
    pub(super) has_accepted: Arc<AtomicBool>,
    pub(super) respond: SendResponse<OutFrame>,
    pub(super) body: RecvStream,
    pub(super) lingering: LingeringHandle,
    pub(super) window: u32,
    /// Where streams wait for the transport.
    pub(super) backlog: Option<Arc<Backlog>>,
}

impl Request {
    /// Refuses a request that is not gRPC, as grpc-go does; the result is then `None`.
    pub(super) fn require_grpc(self, method: &Method) -> Option<Self> {
        if *method != Method::POST {
            self.answer(StatusCode::METHOD_NOT_ALLOWED, Code::Internal, "gRPC requests are POST");
            return None;
        }
        if !status::is_grpc(&self.metadata) {
            let text = "the content-type is not application/grpc";
            self.answer(StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::InvalidArgument, text);
            return None;
        }
        Some(self)
    }

    /// Accepts the stream: admits the connection, and sends the response headers with `metadata` at once.
    pub fn accept(mut self, metadata: HeaderMap) -> Result<WireStream, WireError> {
        let mut response = Response::new(());
        *response.headers_mut() = metadata;
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        // The response wakes the connection's driver.
        self.has_accepted.store(true, Ordering::Release);
        let send = self.respond.send_response(response, false).map_err(|e| WireError::at_server(&e))?;
        let side = Side::Server(self.lingering, Queued::new(self.permit));
        Ok(WireStream::new(Some((send, self.body)), side, self.keepalive, self.window, self.backlog))
    }

    /// Returns when the client has reset the stream, or its connection has ended.
    pub async fn lost(&mut self) {
        let _reason = poll_fn(|cx| self.respond.poll_reset(cx)).await;
    }

    /// Refuses with a status, in one HEADERS frame.
    pub fn refuse(self, code: Code, message: &str) {
        self.answer(StatusCode::OK, code, message);
    }

    /// An answer without a body: HTTP status and gRPC status in one HEADERS frame.
    fn answer(mut self, http: StatusCode, code: Code, message: &str) {
        let mut response = Response::new(());
        *response.status_mut() = http;
        *response.headers_mut() = status::trailers(code, message);
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        // An error means that the client has already gone.
        let _gone = self.respond.send_response(response, true);
    }
}

impl std::fmt::Debug for Request {
    /// Without the metadata, which may contain a token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("path", &self.path).finish_non_exhaustive()
    }
}
