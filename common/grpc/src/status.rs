//! gRPC statuses: maps HTTP/2 errors and HTTP answers to codes; reads and writes trailers.
//!
//! The codes are those that grpc-go gives for the same event, because dashboards match on them as metric labels.

use bytes::Bytes;
use h2::Reason;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

use super::{Code, WireError};

pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(super) const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The only content type that we send.
pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The characters that must be encoded in `grpc-message`: everything except printable ASCII, and `%`.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// The longest message, in bytes, that is copied from a peer or an error.
const MAX_MESSAGE_BYTES: usize = 256;

impl WireError {
    /// An error with one line of text: control characters are escaped, and the text is cut at 256 bytes.
    pub fn new(code: Code, message: impl AsRef<str>) -> Self {
        let mut text = String::new();
        for c in message.as_ref().chars() {
            let before = text.len();
            if c.is_control() {
                text.extend(c.escape_default())
            } else {
                text.push(c)
            }
            if text.len() > MAX_MESSAGE_BYTES {
                text.truncate(before);
                break;
            }
        }
        WireError { code, message: text }
    }

    /// The error of a client's stream.
    pub(super) fn at_client(error: &h2::Error) -> Self {
        let code = match error.reason() {
            Some(reason) if error.is_reset() => code_of(reason),
            // A lost connection, whichever side broke it.
            _ if error.is_go_away() || error.is_io() => Code::Unavailable,
            _ => Code::Internal,
        };
        WireError::new(code, words(error))
    }

    /// The error of a server's stream.
    ///
    /// A Go handler sees a reset and a lost connection in the same way: its context is canceled.
    pub(super) fn at_server(error: &h2::Error) -> Self {
        let code = match error.is_remote() || error.is_io() || error.is_go_away() {
            true => Code::Canceled,
            false => Code::Internal,
        };
        WireError::new(code, words(error))
    }
}

/// The error's text. For a connection that ended without close_notify, rustls's text is a link to its manual.
pub(super) fn words(error: &h2::Error) -> String {
    let text = error.to_string();
    if text.contains("close_notify") {
        "the peer closed the connection without close_notify".to_owned()
    } else {
        text
    }
}

/// grpc-go's table of RST_STREAM reasons (internal/transport/http_util.go).
pub(super) fn code_of(reason: Reason) -> Code {
    match reason {
        Reason::FLOW_CONTROL_ERROR | Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
        Reason::REFUSED_STREAM => Code::Unavailable,
        Reason::CANCEL => Code::Canceled,
        Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
        reason if u32::from(reason) <= u32::from(Reason::HTTP_1_1_REQUIRED) => Code::Internal,
        _ => Code::Unknown,
    }
}

/// The code for an HTTP status of an answer that is not gRPC
/// (<https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>).
pub(super) fn code_of_http(status: StatusCode) -> Code {
    match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

/// Whether a content type is gRPC with protobuf messages: `application/grpc`, optionally with `+proto` or parameters.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let lower = value.to_ascii_lowercase();
    matches!(lower.strip_prefix(b"application/grpc"), Some([] | [b'+' | b';', ..]))
}

/// `grpc-status` and `grpc-message` to be sent.
pub(super) fn trailers(code: Code, message: &str) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(GRPC_STATUS, HeaderValue::from(code as u16));
    if !message.is_empty() {
        let encoded = percent_encode(message.as_bytes(), MESSAGE).to_string();
        // Only printable ASCII is left, which is valid in every header value.
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(encoded)) {
            trailers.insert(GRPC_MESSAGE, value);
        }
    }
    trailers
}

/// The result in a peer's trailers. An invalid number is Unknown, like a missing one.
pub(super) fn verdict(trailers: &HeaderMap) -> Result<(), WireError> {
    let Some(status) = trailers.get(GRPC_STATUS) else {
        return Err(WireError::new(Code::Unknown, "the stream ended without a grpc-status"));
    };
    let number = status.to_str().ok().and_then(|text| text.parse::<u32>().ok());
    let code = number.and_then(Code::from_number).unwrap_or(Code::Unknown);
    if code == Code::OK {
        return Ok(());
    }
    let raw = trailers.get(GRPC_MESSAGE).map(HeaderValue::as_bytes).unwrap_or_default();
    let text = String::from_utf8_lossy(raw);
    Err(WireError::new(code, percent_decode_str(&text).decode_utf8_lossy()))
}
