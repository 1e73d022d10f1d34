//! The typed reason of a failed dial; HTTP answer, gRPC text and metric label follow from it.
//!
//! Texts and statuses are the Go server's, because clients and alerts match on them.

use flags::GoDuration;
use serve::logs::{LogLimit, Peer};

use super::{DialStages, Target};

/// Why a dial opened no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialFailure {
    /// No strategy finds an agent for the target.
    #[error("No agent available")]
    NoAgent,
    /// The agent tried and failed. Retried on another agent only if the failure may be the agent's own.
    #[error("{0}")]
    Refused(String),
    /// The agent canceled the dial without an answer. Never retried: the agent may have reached the endpoint.
    #[error("Backend context error: context canceled")]
    Closed,
    /// The agent did not answer within the dial's deadline.
    #[error("timed out waiting for backend dial")]
    TimedOut,
    /// The deadline passed while the dial waited for a free slot: no DIAL_REQ was sent.
    #[error("timed out waiting for backend dial")]
    SendFailed,
    /// The agent's stream ended before it answered, and no other agent was available.
    #[error("Backend context error: context canceled")]
    LinkLost,
    /// The agent, or this server, is at its connection limit.
    #[error("too many connections, try again later")]
    Full,
    /// File descriptors are short at this server. The frontend logs it.
    #[error("too many connections, try again later: the server's file descriptors are short")]
    NoDescriptors,
    /// Queued payload for slow readers has reached `--memory-limit`.
    #[error("out of memory for connections: payload that waits for slow readers fills --memory-limit")]
    NoMemory,
}

serve::label! {
    /// The value of the label `reason` of `dial_failure_count`.
    pub enum FailureReason in "reason" {
        /// No agent could take the dial.
        NoAgent => "no_agent",
        /// The agent answered with an error.
        ErrorResponse => "error_response",
        /// An agent answered a dial that this server has not sent. Counted by the link.
        UnrecognizedResponse => "unrecognized_response",
        /// The agent succeeded, but its DIAL_RSP could not be sent to the client.
        SendRsp => "send_rsp",
        /// The agent's stream ended first.
        BackendClose => "backend_close",
        /// The deadline passed first.
        BackendDialTimeout => "backend_dial_timeout",
        /// The frontend closed first.
        FrontendClose => "frontend_close",
    }
}

impl DialFailure {
    /// The failure for the error text of a DIAL_RSP. An empty text would mean success on the wire, so it is replaced.
    pub fn refused(text: impl Into<String>) -> Self {
        let text = text.into();
        DialFailure::Refused(if text.is_empty() { "dial failed".to_owned() } else { text })
    }

    /// Whether the agent answered with a failure that may be its own, so that another agent may succeed: it has no route, cannot
    /// resolve the name, has no descriptor or memory left, or the endpoint did not answer it. Agents send the texts of Go's dialer.
    pub fn may_be_the_agents(&self) -> bool {
        let DialFailure::Refused(text) = self else { return false };
        let text = text.to_lowercase();
        AGENT_FAULT_TEXTS.iter().any(|own| text.contains(own))
    }

    /// Whether the endpoint has refused, not a name server.
    pub fn is_the_endpoints(&self) -> bool {
        matches!(self, DialFailure::Refused(text) if text.contains("connection refused"))
            && !self.may_be_the_agents()
    }

    /// The whole answer of the HTTP CONNECT frontend, which then closes the connection. The fields are in the order in which Go
    /// writes them, and the body has the line end that Go writes.
    pub fn http_response(&self) -> String {
        const TEXT: &str = "Content-Type: text/plain; charset=utf-8\r\n\r\n";
        let not_sent = || format!("{TEXT}Failed to tunnel dial request: {self}\r\n");
        let (status, rest) = match self {
            DialFailure::NoAgent => (
                "500 Internal Server Error",
                format!("Content-Type: text/plain\r\n\r\ncurrently no tunnels available: {self}"),
            ),
            DialFailure::Refused(text) => (remote_status(text), format!("Connection: close\r\n{TEXT}{text}")),
            DialFailure::TimedOut => {
                ("504 Gateway Timeout", format!("{TEXT}Backend dial timeout: {self}\r\n"))
            }
            DialFailure::SendFailed => ("504 Gateway Timeout", not_sent()),
            DialFailure::LinkLost | DialFailure::Closed => ("502 Bad Gateway", format!("{TEXT}{self}\r\n")),
            DialFailure::Full | DialFailure::NoDescriptors | DialFailure::NoMemory => {
                ("503 Service Unavailable", not_sent())
            }
        };
        format!("HTTP/1.1 {status}\r\n{rest}")
    }

    /// The metric label. A full agent counts as no agent: no agent could take the dial.
    pub fn metric(&self) -> FailureReason {
        match self {
            DialFailure::NoAgent | DialFailure::Full | DialFailure::NoDescriptors | DialFailure::NoMemory => {
                FailureReason::NoAgent
            }
            DialFailure::Refused(_) => FailureReason::ErrorResponse,
            DialFailure::TimedOut | DialFailure::SendFailed => FailureReason::BackendDialTimeout,
            DialFailure::LinkLost | DialFailure::Closed => FailureReason::BackendClose,
        }
    }

    /// Logs a failed dial, in the Go server's words; dials that a limit refused once a minute for each limit and agent. The frontend logs
    /// that there is no agent or no descriptor.
    pub(super) fn log(&self, target: &Target, stages: &DialStages, limited: &LogLimit) {
        let (message, limit) = match self {
            DialFailure::NoAgent | DialFailure::NoDescriptors => return,
            DialFailure::Refused(_) => ("DIAL_RSP contains failure", None),
            DialFailure::TimedOut => ("backend dial timed out before connection was established", None),
            DialFailure::LinkLost => ("backend context closed before connection was established", None),
            DialFailure::Closed => ("Dial terminated (DIAL_CLS) by backend", None),
            DialFailure::SendFailed => (SEND_FAILED_TEXT, Some("pending dials")),
            DialFailure::Full => (SEND_FAILED_TEXT, Some("connections")),
            DialFailure::NoMemory => (SEND_FAILED_TEXT, Some("memory")),
        };
        let suppressed = limit.map(|limit| limited.due_for(limit, stages.agent.as_deref()));
        if suppressed == Some(None) {
            return;
        }
        let text = self.to_string();
        let agent = Peer(stages.agent.as_deref().unwrap_or_default());
        // Go's key of the address in its lines about HTTP CONNECT.
        let of_connect = matches!(self, DialFailure::TimedOut | DialFailure::LinkLost);
        let address = Peer(&target.address).to_string();
        let (host, address) = if of_connect { (Some(address), None) } else { (None, Some(address)) };
        tracing::error!(
            err = %Peer(&text), host, dialID = target.dial_id, agentID = %agent, dialAddress = address,
            dialDuration = %GoDuration::from(stages.total()), suppressed = suppressed.flatten(), "{message}"
        );
    }
}

/// Go's log line for a dial that reached no agent.
const SEND_FAILED_TEXT: &str = "DIAL_REQ to Backend failed";

/// Parts of an agent's error texts, in lower case, that may name the agent's own fault (texts of Go's package net, of Linux, and of
/// our agent).
const AGENT_FAULT_TEXTS: [&str; 10] = [
    "no route to host",
    "network is unreachable",
    "network is down",
    "cannot assign requested address",
    "lookup ",
    "i/o timeout",
    "connection timed out",
    "too many open files",
    "no buffer space available",
    "out of memory for connections",
];

/// The HTTP status that Go derives from the text of an agent's error, in the order of Go's checks.
fn remote_status(text: &str) -> &'static str {
    let text = text.to_lowercase();
    if text.contains("timeout") || text.contains("deadline exceeded") {
        "504 Gateway Timeout"
    } else if text.contains("too many open files") {
        "503 Service Unavailable"
    } else {
        "502 Bad Gateway"
    }
}

impl From<mux::DialError> for DialFailure {
    fn from(error: mux::DialError) -> Self {
        match error {
            mux::DialError::Refused(text) => DialFailure::refused(text),
            // As final as a refusal, and also caused by the agent: 502, counted as an error response.
            mux::DialError::BadAnswer => {
                DialFailure::refused("the agent answered with an impossible connection id")
            }
            mux::DialError::Closed => DialFailure::Closed,
            mux::DialError::LinkLost => DialFailure::LinkLost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_prose_maps_by_the_table() {
        for (text, status) in [
            ("dial tcp 10.0.0.1:443: i/o timeout", "504"),
            ("context deadline exceeded", "504"),
            ("net/http: TLS handshake Timeout", "504"),
            ("dial tcp: socket: too many open files (timeout)", "504"),
            ("dial tcp 10.0.0.1:443: socket: Too Many Open Files", "503"),
            ("dial tcp 10.0.0.1:443: connect: connection refused", "502"),
            ("dial tcp: lookup nowhere on 10.0.0.10:53: no such host", "502"),
            ("Connection timed out (os error 110)", "502"),
            ("deadline has elapsed", "502"),
            ("", "502"),
        ] {
            let answer = DialFailure::refused(text).http_response();
            assert_eq!(&answer["HTTP/1.1 ".len()..][..3], status, "{text}");
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
                DialFailure::refused("dial tcp 1.2.3.4:9: connect: connection refused"),
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
            (DialFailure::refused("no such host"), "no such host", "error_response"),
            (DialFailure::refused(""), "dial failed", "error_response"),
            (DialFailure::TimedOut, "timed out waiting for backend dial", "backend_dial_timeout"),
            (DialFailure::SendFailed, "timed out waiting for backend dial", "backend_dial_timeout"),
            (DialFailure::LinkLost, "Backend context error: context canceled", "backend_close"),
            (DialFailure::Closed, "Backend context error: context canceled", "backend_close"),
            (
                DialFailure::NoMemory,
                "out of memory for connections: payload that waits for slow readers fills --memory-limit",
                "no_agent",
            ),
            (DialFailure::Full, "too many connections, try again later", "no_agent"),
            (
                DialFailure::NoDescriptors,
                "too many connections, try again later: the server's file descriptors are short",
                "no_agent",
            ),
        ] {
            assert_eq!(failure.to_string(), text);
            assert_eq!(failure.metric().name(), label);
        }
    }
}
