//! A table of the page: columns as data, sorted by links, in pages.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use status::words::{DAY, number, seconds};
use status::{Cell, Column, LIMIT, Query, Row, Status, expires, first_texts};

use super::html::Html;

/// The contents of a page.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// The document. Its lists may have one entry more than the query's limit: then there is a next page.
    pub(super) status: &'a Status,
    /// What was asked for.
    pub(super) query: &'a Query,
}

/// A section with one table.
pub(super) struct Table {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) caption: &'static str,
    /// Shown if there are no rows.
    pub(super) empty: &'static str,
}

/// A certificate that expires within this time is marked.
pub(super) const EXPIRY_WARNING: f64 = 30.0 * DAY;
/// A certificate that expires within this time is marked as a fault.
pub(super) const EXPIRY_FAULT: f64 = 7.0 * DAY;

impl View<'_> {
    /// The seconds from a time until now; negative for a later time, `None` if there is none.
    pub(super) fn age(&self, time: &str) -> Option<f64> {
        seconds(time, &self.status.now)
    }

    /// The address of this page with another query.
    pub(super) fn href(&self, query: &Query, anchor: &str) -> String {
        let pairs = [
            ("list", query.list.map(|list| list.name(self.status.is_agent())).unwrap_or_default().to_owned()),
            ("filter", utf8_percent_encode(&query.filter, NON_ALPHANUMERIC).to_string()),
            ("sort", format!("{}{}", if query.descending { "-" } else { "" }, query.sort)),
            ("limit", if query.limit == LIMIT { String::new() } else { query.limit.to_string() }),
            ("offset", if query.offset == 0 { String::new() } else { query.offset.to_string() }),
        ];
        let pairs = pairs.iter().filter(|(_, value)| !value.is_empty() && value != "-");
        let pairs = pairs.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
        format!("/?{}{anchor}", pairs.join("&"))
    }

    fn link(&self, html: &mut Html, query: &Query, anchor: &str, text: &'static str) {
        html.raw("<a href=\"").text(self.href(query, anchor)).raw("\">").raw(text).raw("</a>");
    }
}

impl Table {
    /// Adds the section with the entries that contain the filter. `total` counts those of all pages without a filter.
    pub(super) fn show<'a, R: Row>(
        &self,
        html: &mut Html,
        view: &View<'_>,
        rows: impl IntoIterator<Item = &'a R>,
        total: u64,
    ) {
        html.raw("<section id=\"").raw(self.id).raw("\"><h2 id=\"").raw(self.id).raw("-title\">");
        html.raw(self.title).raw(" <span class=\"count\">").text(number(total)).raw("</span></h2>");
        if R::LIST.is_some() && view.query.list.is_some_and(|list| Some(list) != R::LIST) {
            let query = Query { list: None, offset: 0, ..view.query.clone() };
            html.raw("<p>Not on this page. ");
            view.link(html, &query, "", "Show all sections");
            html.raw("</p></section>");
            return;
        }
        let kept = rows.into_iter().filter(|row| row.contains(&view.query.filter));
        let mut rows: Vec<&R> = kept.collect();
        let more = R::LIST.is_some() && rows.len() > view.query.limit;
        rows.truncate(if more { view.query.limit } else { rows.len() });
        if rows.is_empty() {
            let filtered = !view.query.filter.is_empty() && total > 0;
            html.raw("<p>")
                .raw(if filtered { "No entry contains the filter." } else { self.empty })
                .raw("</p>");
        } else {
            self.rows(html, view, &rows);
        }
        if R::LIST.is_some() {
            self.pages::<R>(html, view, rows.len(), total, more);
        }
        html.raw("</section>");
    }

    fn rows<R: Row>(&self, html: &mut Html, view: &View<'_>, rows: &[&R]) {
        html.raw("<div class=\"scroll\" role=\"group\" tabindex=\"0\" aria-labelledby=\"").raw(self.id);
        html.raw("-title\"><table><caption>").raw(self.caption).raw("</caption><thead><tr>");
        let columns = columns(view, rows);
        for column in &columns {
            self.head(html, view, column);
        }
        html.raw("</tr></thead><tbody>");
        for row in rows {
            html.raw("<tr>");
            for (at, column) in columns.iter().enumerate() {
                html.raw(if at == 0 { "<th scope=\"row\"" } else { "<td" });
                html.raw(if column.numeric { " class=\"number\">" } else { ">" });
                show_cell(html, view, &(column.cell)(row));
                html.raw(if at == 0 { "</th>" } else { "</td>" });
            }
            html.raw("</tr>");
        }
        html.raw("</tbody></table></div>");
    }

    fn head<R>(&self, html: &mut Html, view: &View<'_>, column: &Column<R>) {
        let title = column.title(view.status);
        html.raw("<th scope=\"col\"").raw(if column.numeric { " class=\"number\"" } else { "" });
        if column.sort.is_empty() {
            html.raw(">").raw(title).raw("</th>");
            return;
        }
        let is_sorted = view.query.sort == column.sort;
        let (order, arrow) = match (is_sorted, view.query.descending) {
            (false, _) => ("", ""),
            (true, true) => (" aria-sort=\"descending\"", "<span aria-hidden=\"true\"> ↓</span>"),
            (true, false) => (" aria-sort=\"ascending\"", "<span aria-hidden=\"true\"> ↑</span>"),
        };
        let descending = if is_sorted { !view.query.descending } else { column.numeric };
        let query = Query { sort: column.sort.to_owned(), descending, offset: 0, ..view.query.clone() };
        html.raw(order).raw("><a href=\"").text(view.href(&query, "#")).raw(self.id).raw("\">");
        html.raw(title).raw(arrow).raw("</a></th>");
    }

    /// The position in the list, and links to the pages around this one.
    fn pages<R: Row>(&self, html: &mut Html, view: &View<'_>, shown: usize, total: u64, more: bool) {
        let Query { offset, limit, .. } = *view.query;
        if offset == 0 && !more {
            return;
        }
        html.raw("<nav class=\"pages\" aria-label=\"Pages of ").raw(self.title).raw("\"><span>");
        match shown {
            0 => html.text(format!("No rows after {}", number(offset as u64))),
            _ => html.text(format!(
                "Rows {} to {}",
                number(offset as u64 + 1),
                number((offset + shown) as u64)
            )),
        };
        if view.query.filter.is_empty() {
            html.text(format!(" of {}", number(total)));
        }
        html.raw("</span>");
        let page = |offset| Query { list: R::LIST, offset, ..view.query.clone() };
        if offset > 0 {
            view.link(html, &page(offset.saturating_sub(limit)), "", "Previous");
        }
        if more {
            view.link(html, &page(offset + limit), "", "Next");
        }
        html.raw("</nav>");
    }
}

/// The columns in which a row has a text, and the one by which the rows are sorted.
fn columns<R: Row>(view: &View<'_>, rows: &[&R]) -> Vec<&'static Column<R>> {
    let now = &view.status.now;
    let has_text = |column: &Column<R>| rows.iter().any(|row| !(column.cell)(row).text(now).is_empty());
    let is_sorted = |column: &Column<R>| !column.sort.is_empty() && column.sort == view.query.sort;
    let columns = R::COLUMNS.iter().filter(|column| !column.is_detail);
    columns.filter(|column| is_sorted(column) || has_text(column)).collect()
}

fn show_cell(html: &mut Html, view: &View<'_>, cell: &Cell<'_>) {
    let text = match *cell {
        Cell::Number(count) | Cell::Failures(count) => number(count),
        Cell::Expires(time) => expires(time, &view.status.now),
        _ => cell.text(&view.status.now),
    };
    match *cell {
        Cell::State(good, state, reason) => {
            badge(html, if good { "good" } else { "bad" }, state);
            details(html, reason);
        }
        Cell::Long(text) => {
            html.raw("<span class=\"long\" title=\"").text(text).raw("\">").text(text).raw("</span>");
        }
        Cell::Detailed(text, more) => details(html.text(text), more),
        Cell::Texts(texts) => {
            let (first, others) = first_texts(texts);
            for (at, text) in first.iter().chain(&others).enumerate() {
                html.raw(if at > 0 { "<br>" } else { "" }).text(text);
            }
        }
        Cell::Failures(1..) | Cell::Stalled(Some(_)) => {
            html.raw("<strong class=\"bad\">").text(text).raw("</strong>");
        }
        Cell::Ago(time) if view.age(time).is_some() => {
            html.raw("<time datetime=\"").text(time).raw("\" title=\"").text(time).raw("\">");
            html.text(text).raw("</time>");
        }
        Cell::Expires(time) => {
            if let Some(left) = view.age(time).map(|age| -age) {
                let class = if left < EXPIRY_FAULT {
                    "bad"
                } else if left < EXPIRY_WARNING {
                    "warn"
                } else {
                    "plain"
                };
                badge(html, class, &text);
            }
            html.raw("<br><time class=\"more\" datetime=\"").text(time).raw("\">");
            html.text(time.split('T').next().unwrap_or_default()).raw("</time>");
        }
        _ => drop(html.text(text)),
    }
}

/// A badge with a class that names its color.
fn badge(html: &mut Html, class: &'static str, text: &str) {
    html.raw("<span class=\"badge ").raw(class).raw("\">").text(text).raw("</span>");
}

fn details(html: &mut Html, text: &str) {
    if !text.is_empty() {
        html.raw("<br><span class=\"more\">").text(text).raw("</span>");
    }
}
