//! The page `/` of the admin port: the status for people, with tables that need no script.
//!
//! The page is complete in itself: its style and script are part of it, and its Content-Security-Policy permits exactly
//! these two by their hashes. The script only loads the page again and replaces its contents.

mod html;
mod sections;
mod summary;
mod table;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderMap;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use status::{Query, Status};

use self::html::Html;
use self::table::View;
use super::routes::{HTML, Response, compressible};

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// Headers that keep the page from loading, sending or being embedded anywhere.
static HEADERS: LazyLock<[(HeaderName, HeaderValue); 4]> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:; connect-src 'self'; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
        sha256(STYLE),
        sha256(SCRIPT)
    );
    [
        (CONTENT_SECURITY_POLICY, HeaderValue::try_from(policy).expect("base64 is visible ASCII")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ]
});

/// As a Content-Security-Policy has it.
fn sha256(text: &str) -> String {
    BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes()))
}

/// The query for the document of a page: one entry more tells whether there is a next page.
pub(super) fn wanted(query: &Query) -> Query {
    Query { limit: query.limit + 1, ..query.clone() }
}

/// The page for a document, which [`wanted`] has asked for.
pub(super) fn response(accepted: &HeaderMap, status: &Status, query: &Query) -> Response {
    let mut response = compressible(accepted, HTML, page(status, query));
    response.headers_mut().extend(HEADERS.iter().cloned());
    response
}

fn page(status: &Status, query: &Query) -> String {
    let (mut html, view) = (Html::default(), View { status, query });
    html.raw("<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>");
    html.text(summary::word(status))
        .raw(" - ")
        .text(&status.build.program)
        .raw(" ")
        .text(&status.id)
        .raw("</title>");
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    html.raw("<meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\"><style>");
    html.raw(STYLE)
        .raw("</style></head><body><a class=\"skip\" href=\"#main\">Skip to the status</a><header>");
    html.raw("<h1>").text(&status.build.program).raw(" <span>").text(&status.id).raw("</span></h1>");
    form(&mut html, &view);
    html.raw("<div class=\"refresh\"><span id=\"refreshed\"></span><a id=\"reload\" href=\"");
    html.text(view.href(query, ""))
        .raw("\">Refresh</a><button id=\"pause\" type=\"button\" hidden>Pause</button>");
    html.raw("<span id=\"news\" class=\"unseen\" role=\"status\"></span></div></header>");
    html.raw("<main id=\"main\" tabindex=\"-1\">");
    summary::show(&mut html, &view);
    sections::show(&mut html, &view);
    html.raw("</main><footer><a href=\"/statusz\">JSON</a> <a href=\"/metrics\">Metrics</a> <span>");
    html.text(&status.now).raw("</span></footer><script>").raw(SCRIPT).raw("</script></body></html>\n");
    html.finish()
}

/// The filter, which keeps list, order and length of the page.
fn form(html: &mut Html, view: &View<'_>) {
    let Query { list, sort, descending, limit, filter, .. } = view.query;
    html.raw("<form method=\"get\" action=\"/\" role=\"search\"><label for=\"filter\">Filter</label>");
    html.raw(
        "<input id=\"filter\" name=\"filter\" type=\"search\" placeholder=\"id, address or target\" value=\"",
    );
    html.text(filter).raw("\">");
    let mut hidden = |name: &'static str, value: &str| {
        html.raw("<input type=\"hidden\" name=\"").raw(name).raw("\" value=\"").text(value).raw("\">");
    };
    if let Some(list) = list {
        hidden("list", list.name(view.status.is_agent()));
    }
    if !sort.is_empty() {
        hidden("sort", &format!("{}{sort}", if *descending { "-" } else { "" }));
    }
    if *limit != status::LIMIT {
        hidden("limit", &limit.to_string());
    }
    html.raw("<button>Apply</button>");
    if !filter.is_empty() {
        let query = Query { filter: String::new(), offset: 0, ..view.query.clone() };
        html.raw("<a href=\"").text(view.href(&query, "")).raw("\">Clear</a>");
    }
    html.raw("</form>");
}
