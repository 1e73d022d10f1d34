//! A table of paths, with answers in the format of Go's net/http.

use std::future::Future;
use std::io::Write;
use std::pin::Pin;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderName, HeaderValue, LOCATION,
};
use http::{HeaderMap, StatusCode, Version};
use http_body_util::Full;

/// A complete answer.
pub type Response = http::Response<Full<Bytes>>;
/// A request; its extensions have the peer's address and a short body, see `server`.
pub(super) type Request = http::request::Parts;

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;
type Handler = Box<dyn Fn(&Request) -> Answer + Send + Sync>;

pub(super) const TEXT: &str = "text/plain; charset=utf-8";
pub(super) const HTML: &str = "text/html; charset=utf-8";

/// Maps paths to handlers. All methods get the same answer, as from Go's handlers.
#[derive(Default)]
pub struct Routes {
    table: Vec<(&'static str, Handler)>,
    /// Whether a client that has closed its sending side is answered.
    pub(super) half_close: bool,
}

impl Routes {
    /// Answers also clients that have closed their sending side, as Go does. Only for short answers: a client that leaves does
    /// not end its answer.
    pub(super) fn half_close(self) -> Self {
        Self { half_close: true, ..self }
    }

    /// Adds a handler for this path; with a trailing slash also for every path below without its own route.
    pub(super) fn at(
        self,
        path: &'static str,
        answer: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.at_length(path, move |request| std::future::ready(answer(request)))
    }

    /// The same for an asynchronous answer.
    pub(super) fn at_length<F: Future<Output = Response> + Send + 'static>(
        mut self,
        path: &'static str,
        answer: impl Fn(&Request) -> F + Send + Sync + 'static,
    ) -> Self {
        let handler = move |request: &Request| -> Answer { Box::pin(answer(request)) };
        self.table.push((path, Box::new(handler)));
        self
    }

    /// The answer to a request.
    pub(super) async fn answer(&self, request: &Request) -> Response {
        if request.version == Version::HTTP_11 && !request.headers.contains_key(HOST) {
            return no_host();
        }
        let wanted = request.uri.path();
        let exact = self.table.iter().find(|(path, _)| *path == wanted);
        let below = || self.table.iter().find(|(path, _)| path.ends_with('/') && wanted.starts_with(path));
        match exact.or_else(below) {
            Some((_, handler)) => handler(request).await,
            None => not_found("404 page not found\n"),
        }
    }
}

/// An answer that is compressed if the client accepts gzip. Prometheus does.
pub(super) fn compressible(headers: &HeaderMap, kind: &'static str, body: String) -> Response {
    let accepted = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = accepted.flat_map(|value| value.split(',')).map(|coding| coding.replace(' ', ""));
    // A weight of zero refuses it; other weights do not matter.
    let is_gzip = |coding: String| {
        let (name, weight) = coding.split_once(';').unwrap_or((&coding, ""));
        name.eq_ignore_ascii_case("gzip") && weight.strip_prefix("q=").is_none_or(|q| q.parse() != Ok(0.0))
    };
    if !codings.any(is_gzip) {
        return reply(StatusCode::OK, kind, body);
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail; if it did, the body would be sent uncompressed.
    let Ok(packed) = gzip.write_all(body.as_bytes()).and_then(|()| gzip.finish()) else {
        return reply(StatusCode::OK, kind, body);
    };
    let mut response = reply(StatusCode::OK, kind, packed);
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

/// An answer with this content type and body.
pub(super) fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Plain text.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Response {
    reply(status, TEXT, body)
}

/// An error in the format of Go's `http.Error`.
pub(super) fn error(status: StatusCode, body: impl Into<Bytes>) -> Response {
    const NO_SNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
    let mut response = text(status, body);
    response.headers_mut().insert(NO_SNIFF, HeaderValue::from_static("nosniff"));
    response
}

/// HTTP/1.1 requires the field `Host`. The answer is Go's to a request without it.
fn no_host() -> Response {
    let mut response = text(StatusCode::BAD_REQUEST, "400 Bad Request: missing required Host header");
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

pub(super) fn not_found(body: impl Into<Bytes>) -> Response {
    error(StatusCode::NOT_FOUND, body)
}

/// 301.
pub(super) fn moved(location: &str) -> Response {
    let Ok(value) = HeaderValue::from_str(location) else {
        return error(StatusCode::BAD_REQUEST, "400 Bad Request\n");
    };
    let mut response = text(StatusCode::MOVED_PERMANENTLY, "Moved Permanently\n");
    response.headers_mut().insert(LOCATION, value);
    response
}
