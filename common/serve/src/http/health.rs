//! The health port: alive, ready, metrics.

use std::borrow::Cow;
use std::fmt::Write;

use http::StatusCode;

use super::routes::{Request, Response, Routes, reply, text};
use crate::metrics::{CONTENT_TYPE, Exposition};

/// One thing that readiness depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// What it is called in the agent's answer, `server-connected` for instance.
    pub name: &'static str,
    /// Whether it holds, or why not.
    pub result: Result<(), Cow<'static, str>>,
}

impl Condition {
    /// Holds if `holds`, otherwise fails for this reason.
    pub fn check(name: &'static str, holds: bool, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { name, result: if holds { Ok(()) } else { Err(reason.into()) } }
    }
}

/// The server's. Not ready is 500 with the reason of the first condition that fails, without a newline:
/// `no connection to any proxy agent` is Go's.
pub fn server(
    readiness: impl Fn() -> Vec<Condition> + Clone + Send + Sync + 'static,
    exposition: Exposition,
) -> Routes {
    routes(exposition, move |_| match readiness().into_iter().find_map(|condition| condition.result.err()) {
        None => text(StatusCode::OK, "ok"),
        Some(reason) => text(StatusCode::INTERNAL_SERVER_ERROR, reason.into_owned()),
    })
}

/// The agent's. Not ready is 503 with a line per condition, `ping` first; `?verbose` shows them when all hold, too.
pub fn agent(
    readiness: impl Fn() -> Vec<Condition> + Clone + Send + Sync + 'static,
    exposition: Exposition,
) -> Routes {
    routes(exposition, move |request| {
        let mut lines = String::from("[+]ping ok\n");
        let mut failed = false;
        for Condition { name, result } in readiness() {
            // Writing to a String cannot fail.
            let _ = match result {
                Ok(()) => writeln!(lines, "[+]{name} ok"),
                Err(reason) => {
                    failed = true;
                    writeln!(lines, "[-]{name} failed: {reason}")
                }
            };
        }
        match failed {
            true => text(StatusCode::SERVICE_UNAVAILABLE, lines),
            false if is_verbose(request) => text(StatusCode::OK, lines + "check passed\n"),
            false => text(StatusCode::OK, "ok"),
        }
    })
}

/// `?verbose`, with any value or none.
fn is_verbose(request: &Request) -> bool {
    let query = request.uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair.split('=').next() == Some("verbose"))
}

fn routes(
    exposition: Exposition,
    ready: impl Fn(&Request) -> Response + Clone + Send + Sync + 'static,
) -> Routes {
    Routes::default()
        .at("/healthz", |_| text(StatusCode::OK, "ok"))
        .at("/readyz", ready.clone())
        // Deprecated in Go, and still probed.
        .at("/ready", ready)
        .at("/metrics", move |_| metrics(&exposition))
}

pub(super) fn metrics(exposition: &Exposition) -> Response {
    reply(StatusCode::OK, CONTENT_TYPE, exposition.scrape())
}
