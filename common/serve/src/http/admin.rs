//! The admin port: metrics, the status, and profiles with `--enable-profiling`.

use std::net::IpAddr;
use std::sync::Arc;

use flags::BindHost;
use http::header::{CACHE_CONTROL, HeaderValue};
use http::uri::Authority;
use http::{HeaderMap, StatusCode};
use status::{Query, Status};
use tokio::sync::Mutex;

use super::health::{Condition, metrics};
use super::routes::{HTML, Request, Response, Routes, compressible, error, moved, not_found, reply};
use super::{page, profile};
use crate::metrics::Exposition;

pub(super) const JSON: &str = "application/json";

/// The requests for the status that are answered.
///
/// Two rules protect the documents, which name peers and targets. On an address that is not a loopback address they are
/// served only if `--status-on-any-address` permits it. And the request must name the host by an address, as `localhost`
/// or as the admin port's flag does: a web page cannot read them by a name of its own that resolves to this host.
struct StatusPort {
    host: BindHost,
    serves: bool,
}

impl StatusPort {
    /// Those on an admin port on `host`. Logs once if the address is not a loopback address.
    fn new(host: &BindHost, on_any_address: bool) -> Self {
        let is_loopback = host.address().is_some_and(|address| address.to_canonical().is_loopback())
            || host.text() == "localhost";
        if !is_loopback {
            let text = if on_any_address {
                "/statusz is served to everyone who reaches the admin port"
            } else {
                OFF
            };
            tracing::info!(target: "v0", address = %host, "{text}");
        }
        Self { host: host.clone(), serves: is_loopback || on_any_address }
    }

    /// What a request asks for.
    ///
    /// # Errors
    /// The answer to a request that gets none.
    fn query(&self, request: &Request) -> Result<Query, Box<Response>> {
        let refused = |code, text: &str| Err(Box::new(error(code, format!("{text}\n"))));
        if !matches!(request.uri.path(), "/" | "/statusz") {
            return Err(Box::new(not_found("404 page not found\n")));
        }
        if !self.serves {
            return refused(StatusCode::FORBIDDEN, OFF);
        }
        let host = host(request);
        if !self.is_own(host.trim_start_matches('[').trim_end_matches(']')) {
            let text = format!("host {host:?}: use an address or localhost, names may be a web page's");
            return refused(StatusCode::FORBIDDEN, &text);
        }
        Query::parse(request.uri.query().unwrap_or_default())
            .or_else(|text| refused(StatusCode::BAD_REQUEST, &text))
    }

    fn is_own(&self, host: &str) -> bool {
        let is_bound = !host.is_empty() && host.eq_ignore_ascii_case(self.host.text());
        is_bound || host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
    }
}

const OFF: &str = "/ and /statusz are off: the admin port does not listen on a loopback address; --status-on-any-address turns them on";

/// Adds `/statusz`, the document as JSON, and `/`, the document as a page, to an admin port on `host`. `build` builds the document
/// that a query asks for, one at a time, which bounds the memory; the conditions of `/readyz` are added.
pub fn with_status<F: Future<Output = Status> + Send + 'static>(
    routes: Routes,
    (host, on_any_address): (&BindHost, bool),
    readiness: impl Fn() -> Vec<Condition> + Send + Sync + 'static,
    build: impl Fn(Query) -> F + Send + Sync + 'static,
) -> Routes {
    let (port, turn) = (StatusPort::new(host, on_any_address), Arc::new(Mutex::new(())));
    routes.at_length("/", move |request| {
        let is_page = request.uri.path() == "/";
        let asked = port.query(request).map(|query| {
            let health = readiness().into_iter().map(Into::into).collect();
            (health, build(if is_page { page::wanted(&query) } else { query.clone() }), query)
        });
        let (turn, headers) = (Arc::clone(&turn), request.headers.clone());
        async move {
            let (health, document, query) = match asked {
                Ok(asked) => asked,
                Err(refusal) => return *refusal,
            };
            let turn = turn.lock().await;
            let status = Status { health, ..document.await };
            drop(turn);
            if is_page { page::response(&headers, &status, &query) } else { json(&headers, &status) }
        }
    })
}

fn json(accepted: &HeaderMap, document: &Status) -> Response {
    let Ok(body) = serde_json::to_string(document) else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "the status cannot be encoded\n");
    };
    let mut response = compressible(accepted, JSON, body + "\n");
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The server's routes, including its metrics.
pub fn server(exposition: Exposition, profiling: bool) -> Routes {
    with_profiles(Routes::default().at("/metrics", move |request| metrics(request, &exposition)), profiling)
}

/// The agent's routes. Its metrics are on the health port, to which this port redirects.
pub fn agent(health_port: u16, profiling: bool) -> Routes {
    let routes = Routes::default().at("/metrics", move |request| {
        let query = request.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        moved(&format!("//{}:{health_port}{}{query}", host(request), request.uri.path()))
    });
    with_profiles(routes, profiling)
}

/// The host of the request, without its port, with the brackets of an IPv6 address.
pub(super) fn host(request: &Request) -> String {
    let header = request.headers.get(http::header::HOST).and_then(|value| value.to_str().ok());
    let asked = header.or(request.uri.authority().map(|authority| authority.as_str())).unwrap_or_default();
    asked.parse::<Authority>().map(|authority| authority.host().to_owned()).unwrap_or_default()
}

const INDEX: &str = "<html><head><title>/debug/pprof/</title></head><body>\n\
    <p>Profiles of this process, in pprof's format:</p>\n\
    <p><a href=\"profile?seconds=30\">profile</a>: where it spends CPU time, over <code>seconds</code></p>\n\
    </body></html>\n";

const ONLY_CPU: &str = "404 no such profile: this program has no garbage collector and no goroutines, \
    only /debug/pprof/profile (CPU time) exists\n";

fn with_profiles(routes: Routes, profiling: bool) -> Routes {
    if !profiling {
        return routes;
    }
    routes
        .at("/debug/pprof", |_| moved("/debug/pprof/"))
        .at("/debug/pprof/", |request| match request.uri.path() {
            "/debug/pprof/" => reply(StatusCode::OK, HTML, INDEX),
            _ => not_found(ONLY_CPU),
        })
        .at_length("/debug/pprof/profile", |request| profile::cpu(profile::seconds(request.uri.query())))
}
