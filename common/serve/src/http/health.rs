//! The health port: alive, ready, metrics.

use std::borrow::Cow;
use std::fmt::Write;

use http::StatusCode;

use super::routes::{Request, Response, Routes, compressible, text};
use crate::metrics::{CONTENT_TYPE, Exposition};

/// One thing that readiness depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// What it is called in the agent's answer, `server-connected` for instance.
    pub name: &'static str,
    /// Whether it holds, or why not.
    pub result: Result<(), Cow<'static, str>>,
    /// The Go peers know no such condition: it is listed only if it fails, or if somebody asks for all of them.
    pub ours: bool,
}

impl Condition {
    /// Holds if `holds`, otherwise fails for this reason.
    pub fn check(name: &'static str, holds: bool, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { name, result: if holds { Ok(()) } else { Err(reason.into()) }, ours: false }
    }

    /// The same for a condition that the Go peers do not know.
    pub fn ours(name: &'static str, holds: bool, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { ours: true, ..Self::check(name, holds, reason) }
    }
}

/// The server's. Not ready is 500 with the reason of the first condition that fails, without a newline:
/// `no connection to any proxy agent` is Go's. With `?verbose` it is a line per condition.
pub fn server(
    readiness: impl Fn() -> Vec<Condition> + Clone + Send + Sync + 'static,
    exposition: Exposition,
) -> Routes {
    routes(exposition, move |request| {
        let conditions = readiness();
        let failed = conditions.iter().find_map(|condition| condition.result.clone().err());
        match failed {
            None if is_verbose(request) => text(StatusCode::OK, lines(conditions, true) + PASSED),
            None => text(StatusCode::OK, "ok"),
            Some(_) if is_verbose(request) => {
                text(StatusCode::INTERNAL_SERVER_ERROR, lines(conditions, true))
            }
            Some(reason) => text(StatusCode::INTERNAL_SERVER_ERROR, reason.into_owned()),
        }
    })
}

/// The agent's. Not ready is 503 with a line per condition, `ping` first; `?verbose` shows them when all hold, too.
pub fn agent(
    readiness: impl Fn() -> Vec<Condition> + Clone + Send + Sync + 'static,
    exposition: Exposition,
) -> Routes {
    routes(exposition, move |request| {
        let (conditions, verbose) = (readiness(), is_verbose(request));
        let failed = conditions.iter().any(|condition| condition.result.is_err());
        let lines = lines(conditions, verbose);
        match failed {
            true => text(StatusCode::SERVICE_UNAVAILABLE, lines),
            false if verbose => text(StatusCode::OK, lines + PASSED),
            false => text(StatusCode::OK, "ok"),
        }
    })
}

/// The last line of a list in which every condition holds.
const PASSED: &str = "check passed\n";

/// A line per condition, `ping` first.
fn lines(conditions: Vec<Condition>, all: bool) -> String {
    let mut lines = String::from("[+]ping ok\n");
    for Condition { name, result, ours } in conditions {
        // Writing to a String cannot fail.
        let _ = match result {
            Ok(()) if ours && !all => Ok(()),
            Ok(()) => writeln!(lines, "[+]{name} ok"),
            Err(reason) => writeln!(lines, "[-]{name} failed: {reason}"),
        };
    }
    lines
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
        .at("/metrics", move |request| metrics(request, &exposition))
}

pub(super) fn metrics(request: &Request, exposition: &Exposition) -> Response {
    compressible(request, CONTENT_TYPE, exposition.scrape())
}
