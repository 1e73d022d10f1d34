//! Why a dial failed, typed once; HTTP answer, gRPC text and metric label all come from here.
//!
//! Texts and statuses are those of the Go server, because clients and alerts match on them.

use std::borrow::Cow;

/// The terminal outcome of a dial that brought no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialFailure {
    /// No strategy knows an agent for the target.
    #[error("No agent available")]
    NoAgent,
    /// The agent tried and failed. Never retried: another agent's answer would hide this one's.
    #[error("{}", .0.text())]
    Refused(RemoteError),
    /// The agent did not answer within the dial's deadline.
    #[error("timed out waiting for backend dial")]
    TimedOut,
    /// The deadline came while the request waited for its turn: it was never sent.
    #[error("timed out waiting for backend dial")]
    SendFailed,
    /// The agent's stream ended before an answer, and no other agent could be asked instead.
    #[error("Backend context error: context canceled")]
    LinkLost,
    /// The agent, or this server, already carries as many connections as it may.
    #[error("too many connections, try again later")]
    Full,
    /// Payload that waits for slow readers has used up `--memory-limit`.
    #[error("out of memory for connections: payload that waits for slow readers fills --memory-limit")]
    NoMemory,
    /// The frontend went away. There is nobody left to tell.
    #[error("dial cancelled by the frontend")]
    Cancelled,
}

/// What an agent wrote into a DIAL_RSP, with what the text means. The text is kept as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteError {
    text: String,
    kind: RemoteErrorKind,
}

/// All that can be told from an agent's prose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RemoteErrorKind {
    /// The endpoint did not answer in time.
    Timeout,
    /// The agent ran out of descriptors.
    TooManyOpenFiles,
    /// Everything else: refused, unreachable, not resolved.
    Other,
}

/// The value of the label `reason` of `dial_failure_count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// No agent could take the dial.
    NoAgent,
    /// The agent answered with an error.
    ErrorResponse,
    /// An agent answered a dial that nobody waits for. Counted by the link.
    UnrecognizedResponse,
    /// The agent succeeded, but its answer could not be handed to the frontend. Counted by the frontend.
    SendRsp,
    /// The agent's stream ended first.
    BackendClose,
    /// The deadline came first.
    BackendDialTimeout,
    /// The frontend went first.
    FrontendClose,
}

/// Which header fields go with an error on the HTTP-CONNECT frontend. The Go server writes three kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpHeaders {
    /// `Content-Type: text/plain`
    Plain,
    /// `Content-Type: text/plain; charset=utf-8`
    PlainUtf8,
    /// `Connection: close` before that.
    ClosePlainUtf8,
}

impl RemoteError {
    /// Parses the error text of a DIAL_RSP. An empty text, which would mean success on the wire, is replaced.
    pub fn parse(text: impl Into<String>) -> Self {
        let mut text = text.into();
        if text.is_empty() {
            text.push_str("dial failed");
        }
        let lower = text.to_lowercase();
        // "i/o timeout" contains the last of these; it stands here because the table names it.
        let kind = if ["i/o timeout", "deadline exceeded", "timeout"].iter().any(|t| lower.contains(t)) {
            RemoteErrorKind::Timeout
        } else if lower.contains("too many open files") {
            RemoteErrorKind::TooManyOpenFiles
        } else {
            RemoteErrorKind::Other
        };
        Self { text, kind }
    }

    /// The agent's words, unchanged.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What they mean.
    pub fn kind(&self) -> RemoteErrorKind {
        self.kind
    }
}

impl DialFailure {
    /// The status of the HTTP-CONNECT frontend's answer.
    pub fn http_status(&self) -> u16 {
        match self {
            DialFailure::NoAgent => 500,
            DialFailure::Refused(error) => match error.kind {
                RemoteErrorKind::Timeout => 504,
                RemoteErrorKind::TooManyOpenFiles => 503,
                RemoteErrorKind::Other => 502,
            },
            DialFailure::TimedOut | DialFailure::SendFailed => 504,
            DialFailure::LinkLost | DialFailure::Cancelled => 502,
            DialFailure::Full | DialFailure::NoMemory => 503,
        }
    }

    /// The words behind the status.
    pub fn http_status_text(&self) -> &'static str {
        match self.http_status() {
            500 => "Internal Server Error",
            503 => "Service Unavailable",
            504 => "Gateway Timeout",
            _ => "Bad Gateway",
        }
    }

    /// The header fields of that answer.
    pub fn http_headers(&self) -> HttpHeaders {
        match self {
            DialFailure::NoAgent => HttpHeaders::Plain,
            DialFailure::Refused(_) => HttpHeaders::ClosePlainUtf8,
            _ => HttpHeaders::PlainUtf8,
        }
    }

    /// The body of that answer, line end included where Go writes one.
    pub fn http_body(&self) -> Cow<'_, str> {
        match self {
            DialFailure::NoAgent => Cow::Owned(format!("currently no tunnels available: {self}")),
            DialFailure::Refused(error) => Cow::Borrowed(error.text()),
            DialFailure::TimedOut => Cow::Owned(format!("Backend dial timeout: {self}\r\n")),
            DialFailure::LinkLost => Cow::Owned(format!("{self}\r\n")),
            DialFailure::SendFailed | DialFailure::Full | DialFailure::NoMemory | DialFailure::Cancelled => {
                Cow::Owned(format!("Failed to tunnel dial request: {self}\r\n"))
            }
        }
    }

    /// The whole answer of the HTTP-CONNECT frontend, after which it closes.
    pub fn http_response(&self) -> String {
        let fields: String =
            self.http_headers().fields().iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let (status, text) = (self.http_status(), self.http_status_text());
        format!("HTTP/1.1 {status} {text}\r\n{fields}\r\n{}", self.http_body())
    }

    /// The error of the DIAL_RSP that the gRPC frontend sends. Never empty: that would mean success.
    pub fn grpc_text(&self) -> Cow<'_, str> {
        match self {
            DialFailure::Refused(error) => Cow::Borrowed(error.text()),
            other => Cow::Owned(other.to_string()),
        }
    }

    /// Under which reason it is counted. A full agent counts as none: nobody could take the dial.
    pub fn metric(&self) -> FailureReason {
        match self {
            DialFailure::NoAgent | DialFailure::Full | DialFailure::NoMemory => FailureReason::NoAgent,
            DialFailure::Refused(_) => FailureReason::ErrorResponse,
            DialFailure::TimedOut | DialFailure::SendFailed => FailureReason::BackendDialTimeout,
            DialFailure::LinkLost => FailureReason::BackendClose,
            DialFailure::Cancelled => FailureReason::FrontendClose,
        }
    }
}

impl HttpHeaders {
    /// Names and values, in the order in which Go writes them.
    pub const fn fields(self) -> &'static [(&'static str, &'static str)] {
        match self {
            HttpHeaders::Plain => &[("Content-Type", "text/plain")],
            HttpHeaders::PlainUtf8 => &[("Content-Type", "text/plain; charset=utf-8")],
            HttpHeaders::ClosePlainUtf8 => {
                &[("Connection", "close"), ("Content-Type", "text/plain; charset=utf-8")]
            }
        }
    }
}

impl FailureReason {
    /// The label's value.
    pub const fn name(self) -> &'static str {
        match self {
            FailureReason::NoAgent => "no_agent",
            FailureReason::ErrorResponse => "error_response",
            FailureReason::UnrecognizedResponse => "unrecognized_response",
            FailureReason::SendRsp => "send_rsp",
            FailureReason::BackendClose => "backend_close",
            FailureReason::BackendDialTimeout => "backend_dial_timeout",
            FailureReason::FrontendClose => "frontend_close",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> DialFailure {
        DialFailure::Refused(RemoteError::parse(text))
    }

    #[test]
    fn an_agents_prose_maps_by_the_table() {
        for (text, status) in [
            ("dial tcp 10.0.0.1:443: i/o timeout", 504),
            ("context deadline exceeded", 504),
            ("net/http: TLS handshake Timeout", 504),
            ("dial tcp: socket: too many open files (timeout)", 504),
            ("dial tcp 10.0.0.1:443: socket: Too Many Open Files", 503),
            ("dial tcp 10.0.0.1:443: connect: connection refused", 502),
            ("dial tcp: lookup nowhere on 10.0.0.10:53: no such host", 502),
            ("Connection timed out (os error 110)", 502),
            ("deadline has elapsed", 502),
            ("", 502),
        ] {
            assert_eq!(refused(text).http_status(), status, "{text}");
        }
    }

    #[test]
    fn http_answers_are_gos() {
        for (failure, answer) in [
            (
                DialFailure::NoAgent,
                "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\n\
                 currently no tunnels available: No agent available",
            ),
            (
                refused("dial tcp 1.2.3.4:9: connect: connection refused"),
                "HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
                 dial tcp 1.2.3.4:9: connect: connection refused",
            ),
            (
                DialFailure::TimedOut,
                "HTTP/1.1 504 Gateway Timeout\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
                 Backend dial timeout: timed out waiting for backend dial\r\n",
            ),
            (
                DialFailure::SendFailed,
                "HTTP/1.1 504 Gateway Timeout\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
                 Failed to tunnel dial request: timed out waiting for backend dial\r\n",
            ),
            (
                DialFailure::LinkLost,
                "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
                 Backend context error: context canceled\r\n",
            ),
            (
                DialFailure::Full,
                "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
                 Failed to tunnel dial request: too many connections, try again later\r\n",
            ),
        ] {
            assert_eq!(failure.http_response(), answer);
        }
    }

    #[test]
    fn grpc_texts_and_labels() {
        for (failure, text, label) in [
            (DialFailure::NoAgent, "No agent available", "no_agent"),
            (refused("no such host"), "no such host", "error_response"),
            (refused(""), "dial failed", "error_response"),
            (DialFailure::TimedOut, "timed out waiting for backend dial", "backend_dial_timeout"),
            (DialFailure::SendFailed, "timed out waiting for backend dial", "backend_dial_timeout"),
            (DialFailure::LinkLost, "Backend context error: context canceled", "backend_close"),
            (
                DialFailure::NoMemory,
                "out of memory for connections: payload that waits for slow readers fills --memory-limit",
                "no_agent",
            ),
            (DialFailure::Full, "too many connections, try again later", "no_agent"),
            (DialFailure::Cancelled, "dial cancelled by the frontend", "frontend_close"),
        ] {
            assert_eq!(failure.grpc_text(), text);
            assert_eq!(failure.metric().name(), label);
        }
    }
}
