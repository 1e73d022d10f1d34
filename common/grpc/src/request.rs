//! A client's new gRPC stream, until it is accepted or refused.

use std::sync::Arc;

use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{AsHeaderName, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Response, StatusCode};

use super::admission::Admission;
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
    /// Whether the connection has had an accepted stream; [`Request::accept`] grants it.
    pub admission: Admission,
    respond: SendResponse<OutFrame>,
    body: RecvStream,
    lingering: LingeringHandle,
    window: u32,
    /// Where streams wait for the transport.
    backlog: Option<Arc<Backlog>>,
}

impl Request {
    /// Reads a request. A request that is not gRPC is refused, as by grpc-go, and the result is `None`.
    pub(super) fn read(
        request: http::Request<RecvStream>,
        respond: SendResponse<OutFrame>,
        keepalive: Arc<KeepaliveHandle>,
        admission: Admission,
        lingering: LingeringHandle,
        window: u32,
        backlog: Option<Arc<Backlog>>,
    ) -> Option<Self> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let request = Request {
            path,
            metadata: head.headers,
            keepalive,
            admission,
            respond,
            body,
            lingering,
            window,
            backlog,
        };
        if head.method != Method::POST {
            request.answer(StatusCode::METHOD_NOT_ALLOWED, Code::Internal, "gRPC requests are POST");
            return None;
        }
        if !status::is_grpc(&request.metadata) {
            let text = "the content-type is not application/grpc";
            request.answer(StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::InvalidArgument, text);
            return None;
        }
        Some(request)
    }

    /// Accepts the stream: admits the connection, and sends the response headers with `metadata` at once.
    pub fn accept(mut self, metadata: HeaderMap) -> Result<WireStream, WireError> {
        let mut response = Response::new(());
        *response.headers_mut() = metadata;
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        self.admission.grant();
        let send = self.respond.send_response(response, false).map_err(|e| WireError::at_server(&e))?;
        let side = Side::Server(self.lingering, Queued::default());
        let stream = WireStream::new(Some((send, self.body)), side, self.keepalive, self.window);
        Ok(self.backlog.into_iter().fold(stream, WireStream::following))
    }

    /// Refuses with a status, in one HEADERS frame.
    pub fn refuse(self, code: Code, message: &str) {
        self.answer(StatusCode::OK, code, message);
    }

    fn answer(mut self, http: StatusCode, code: Code, message: &str) {
        // An error means that the client has already gone.
        let _gone = self.respond.send_response(status::trailers_only(http, code, message), true);
    }
}

impl std::fmt::Debug for Request {
    /// Without the metadata, which may contain a token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("path", &self.path).finish_non_exhaustive()
    }
}
