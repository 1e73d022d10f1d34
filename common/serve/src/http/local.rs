//! Requests that change something or cause work, such as `PUT /debug/flags/v`: which of them are carried out.
//!
//! The admin port has no authentication. So such requests are accepted only from this host, and none that a web page in a
//! browser of this host may send:
//!
//! | rule | refuses |
//! |---|---|
//! | the peer has a loopback address | other hosts, also if the port listens on all addresses |
//! | no `Origin`, and for POST the header [`COMMAND_HEADER`] | web pages: their POST gets no own header without a preflight, which no route answers, and neither does their PUT |
//! | `Host` is `localhost` or a loopback address | web pages whose name resolves to this host (DNS rebinding) |

use std::net::SocketAddr;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, HeaderValue, ORIGIN};
use http::{Method, StatusCode};
use net::host_port::is_loopback;
use serde::Serialize;
use status::COMMAND_HEADER;
use tokio::sync::Semaphore;

use super::admin::{JSON, host};
use super::routes::{Request, Response, Routes, error, reply};

/// The most requests of one POST route at once.
const MAX_CONCURRENT_POSTS: usize = 4;

/// The body of a PUT, in the request's extensions.
#[derive(Clone)]
pub(super) struct Body(pub(super) Bytes);

/// Adds a POST route whose answer to a query is a document, or the text of a refusal. At most [`MAX_CONCURRENT_POSTS`] requests are
/// answered at once.
pub fn with_post<T: Serialize, F: Future<Output = Result<T, String>> + Send + 'static>(
    routes: Routes,
    path: &'static str,
    answer: impl Fn(String) -> F + Send + Sync + 'static,
) -> Routes {
    let (permits, answer) = (Arc::new(Semaphore::new(MAX_CONCURRENT_POSTS)), Arc::new(answer));
    routes.at_length(path, move |request| {
        let refusal = refusal(request, &Method::POST);
        let query = request.uri.query().unwrap_or_default().to_owned();
        let (permits, answer) = (Arc::clone(&permits), Arc::clone(&answer));
        async move {
            if let Some(refusal) = refusal {
                return refusal;
            }
            let Ok(_permit) = permits.try_acquire() else {
                let text = format!("{MAX_CONCURRENT_POSTS} such requests are being answered, try again\n");
                return error(StatusCode::TOO_MANY_REQUESTS, text);
            };
            match answer(query).await.map(|document| serde_json::to_string(&document)) {
                Ok(Ok(body)) => reply(StatusCode::OK, JSON, body + "\n"),
                Ok(Err(why)) => error(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
                Err(why) => error(StatusCode::BAD_REQUEST, why + "\n"),
            }
        }
    })
}

/// The refusal of a request that is not of this method or breaks one of the rules above.
pub(super) fn refusal(request: &Request, method: &Method) -> Option<Response> {
    let refused = |code, text: &str| Some(error(code, format!("{text}\n")));
    if request.method != method {
        let mut response = error(StatusCode::METHOD_NOT_ALLOWED, format!("use {method}\n"));
        let allow = HeaderValue::from_str(method.as_str()).ok();
        allow.and_then(|allow| response.headers_mut().insert(ALLOW, allow));
        return Some(response);
    }
    let peer = request.extensions.get::<SocketAddr>();
    if !peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) {
        return refused(StatusCode::FORBIDDEN, "only processes of this host may ask for this");
    }
    if request.headers.contains_key(ORIGIN)
        || (method == Method::POST && !request.headers.contains_key(COMMAND_HEADER))
    {
        return refused(
            StatusCode::FORBIDDEN,
            "web pages may not ask for this: send the header konnectivity-command",
        );
    }
    let host = host(request);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if !is_loopback(&host.to_ascii_lowercase()) {
        return refused(StatusCode::FORBIDDEN, "the Host must be localhost or a loopback address");
    }
    None
}
