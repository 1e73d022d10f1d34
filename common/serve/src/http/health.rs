//! The health port: liveness, readiness, metrics.

use std::borrow::Cow;
use std::fmt::Write;

use http::StatusCode;

use super::routes::{Request, Response, Routes, compressible, text};
use crate::logs::LogLimit;
use crate::metrics::{CONTENT_TYPE, Exposition};

/// One condition for readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its name in the agent's answer, for instance `server-connected`.
    pub name: &'static str,
    /// Whether it is met, or why not.
    pub result: Result<(), Cow<'static, str>>,
    /// Details for `?verbose`, on a line of their own if the condition fails; may be empty.
    pub note: String,
    /// The Go programs do not have this condition: it is listed only if it fails, or if the request asks for all.
    pub extra: bool,
}

impl Condition {
    /// Met if `holds`, otherwise fails with this reason.
    pub fn check(name: &'static str, holds: bool, reason: impl Into<Cow<'static, str>>) -> Self {
        let result = if holds { Ok(()) } else { Err(reason.into()) };
        Self { name, result, note: String::new(), extra: false }
    }

    /// The same for a condition that the Go programs do not have.
    pub fn extra(name: &'static str, holds: bool, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { extra: true, ..Self::check(name, holds, reason) }
    }

    /// Adds details that `?verbose` shows.
    #[must_use]
    pub fn noting(self, note: String) -> Self {
        Self { note, ..self }
    }
}

impl From<Condition> for status::Health {
    fn from(Condition { name, result, note, .. }: Condition) -> Self {
        let (ok, why) = (result.is_ok(), result.err().unwrap_or_default());
        let note = [why.into_owned(), note].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
        Self { name: name.to_owned(), ok, note: note.join("; ") }
    }
}

/// The server's routes. If not ready, `/readyz` answers 500 with the reason of the first failed condition, without a
/// newline (`no connection to any proxy agent` is Go's text). With `?verbose` it lists one condition per line.
pub fn server(
    readiness: impl Fn() -> Vec<Condition> + Clone + Send + Sync + 'static,
    exposition: Exposition,
) -> Routes {
    routes(exposition, readiness, |failed, conditions, verbose| {
        let body = if verbose { lines(conditions, true) } else { failed.into_owned() };
        text(StatusCode::INTERNAL_SERVER_ERROR, body)
    })
}

/// The agent's routes. If not ready, `/readyz` answers 503 with one line per condition, `ping` first, and the log names what fails,
/// at most once a minute. `?verbose` lists the conditions also if all are met.
pub fn agent(
    readiness: impl Fn() -> Vec<Condition> + Clone + Send + Sync + 'static,
    exposition: Exposition,
) -> Routes {
    let limit = LogLimit::default();
    routes(exposition, readiness, move |failed, conditions, verbose| {
        if let Some(suppressed) = limit.due_for("readiness", ()) {
            let names =
                conditions.iter().filter(|condition| condition.result.is_err()).map(|failing| failing.name);
            let names = names.collect::<Vec<_>>().join(",");
            tracing::info!(target: "v0", suppressed, "{names} check failed: {failed}");
        }
        text(StatusCode::SERVICE_UNAVAILABLE, lines(conditions, verbose))
    })
}

/// One line per condition, `ping` first.
fn lines(conditions: Vec<Condition>, all: bool) -> String {
    let mut lines = String::from("[+]ping ok\n");
    for Condition { name, result, note, extra } in conditions {
        // Writing to a String cannot fail.
        let _ = match result {
            Ok(()) if extra && !all => Ok(()),
            Ok(()) if note.is_empty() => writeln!(lines, "[+]{name} ok"),
            Ok(()) => writeln!(lines, "[+]{name} ok: {note}"),
            Err(reason) if note.is_empty() || !all => writeln!(lines, "[-]{name} failed: {reason}"),
            Err(reason) => writeln!(lines, "[-]{name} failed: {reason}\n   {note}"),
        };
    }
    lines
}

/// `?verbose`, with or without a value.
fn is_verbose(request: &Request) -> bool {
    let query = request.uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair.split('=').next() == Some("verbose"))
}

/// `unready` answers if a condition fails, with its reason; the last argument is whether the request asks for all.
fn routes(
    exposition: Exposition,
    readiness: impl Fn() -> Vec<Condition> + Clone + Send + Sync + 'static,
    unready: impl Fn(Cow<'static, str>, Vec<Condition>, bool) -> Response + Clone + Send + Sync + 'static,
) -> Routes {
    let ready = move |request: &Request| {
        let (conditions, verbose) = (readiness(), is_verbose(request));
        match conditions.iter().find_map(|condition| condition.result.clone().err()) {
            Some(failed) => unready(failed, conditions, verbose),
            None if verbose => text(StatusCode::OK, lines(conditions, true) + "check passed\n"),
            None => text(StatusCode::OK, "ok"),
        }
    };
    Routes::default()
        .half_close()
        .at("/healthz", |_| text(StatusCode::OK, "ok"))
        .at("/readyz", ready.clone())
        // Deprecated in Go, but still probed.
        .at("/ready", ready)
        .at("/metrics", move |request| metrics(request, &exposition))
}

pub(super) fn metrics(request: &Request, exposition: &Exposition) -> Response {
    compressible(&request.headers, CONTENT_TYPE, exposition.scrape())
}
