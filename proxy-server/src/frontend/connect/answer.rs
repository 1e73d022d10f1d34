//! The HTTP CONNECT frontend's answers, byte by byte: those before a dial, and the success. The answers to failed dials are in
//! [`DialFailure::http_response`](crate::dial::DialFailure::http_response).
//!
//! The format is that of Go's `net/http` server, without `Date`: a head without fields for success, the status line repeated as
//! body for an invalid request, and the fields of `http.Error` for another method. All answers but the success announce and
//! perform a close.

use super::head::HeadError;

/// The success: a status line, no fields, an empty line. Payload follows in a separate write.
pub const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// The answer to a refused request, which starts with `request`.
pub fn refusal(error: HeadError, request: &[u8]) -> String {
    let mut answer = match error {
        HeadError::Method => method_not_allowed(&error.to_string()),
        HeadError::Version => plain("505 HTTP Version Not Supported", Some(error)),
        HeadError::TooLarge => plain("431 Request Header Fields Too Large", None),
        _ => plain("400 Bad Request", Some(error)),
    };
    // The answer to HEAD has no body, but the length of one.
    if request.starts_with(b"HEAD ")
        && let Some((head, _body)) = answer.split_once("\r\n\r\n")
    {
        answer.truncate(head.len() + 4);
    }
    answer
}

/// Puts the status and the detail into the body and into the status line, as Go does.
fn plain(status: &str, detail: Option<HeadError>) -> String {
    let text = detail.map_or_else(|| status.to_owned(), |detail| format!("{status}: {detail}"));
    format!("HTTP/1.1 {text}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{text}")
}

fn method_not_allowed(text: &str) -> String {
    let length = text.len() + 1;
    format!(
        "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain; charset=utf-8\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_methods_get_gos_text() {
        assert_eq!(
            refusal(HeadError::Method, b"GET / HTTP/1.1"),
            "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain; charset=utf-8\r\n\
             X-Content-Type-Options: nosniff\r\nContent-Length: 45\r\nConnection: close\r\n\r\n\
             this proxy only supports CONNECT passthrough\n"
        );
    }

    #[test]
    fn the_answer_to_head_has_no_body() {
        let whole = refusal(HeadError::Method, b"GET / HTTP/1.1");
        let (head, _body) = whole.split_once("\r\n\r\n").unwrap();
        assert_eq!(refusal(HeadError::Method, b"HEAD / HTTP/1.1"), format!("{head}\r\n\r\n"));
    }

    #[test]
    fn invalid_requests_are_answered_with_the_reason() {
        assert_eq!(
            refusal(HeadError::Bad("CONNECT target must be host:port"), b"CONNECT a:x HTTP/1.1"),
            "HTTP/1.1 400 Bad Request: CONNECT target must be host:port\r\n\
             Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
             400 Bad Request: CONNECT target must be host:port"
        );
        assert_eq!(
            refusal(HeadError::Version, b"PRI * HTTP/2.0"),
            "HTTP/1.1 505 HTTP Version Not Supported: unsupported protocol version\r\n\
             Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
             505 HTTP Version Not Supported: unsupported protocol version"
        );
        assert_eq!(
            refusal(HeadError::TooLarge, b"CONNECT a:1 HTTP/1.1"),
            "HTTP/1.1 431 Request Header Fields Too Large\r\n\
             Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
             431 Request Header Fields Too Large"
        );
    }
}
