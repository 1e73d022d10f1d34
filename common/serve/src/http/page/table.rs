//! A table of the page: columns as data, sorted by links, in pages.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use status::{LIMIT, List, Query, Status};

use super::html::Html;
use super::words::{at, count, duration, number};

/// The contents of a page.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// The document. Its lists may have one entry more than the query's limit: then there is a next page.
    pub(super) status: &'a Status,
    /// What was asked for.
    pub(super) query: &'a Query,
}

/// A column: its cells, and the field by which its link sorts (empty for none).
pub(super) struct Column<R> {
    pub(super) title: &'static str,
    pub(super) sort: &'static str,
    /// Aligned to the right, the largest first by the first click.
    pub(super) numeric: bool,
    pub(super) cell: fn(&mut Html, &R, &View<'_>),
}

/// A section with one table.
pub(super) struct Table<R: 'static> {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) caption: &'static str,
    /// Shown if there are no rows.
    pub(super) empty: &'static str,
    /// The list in queries, if it may be long.
    pub(super) list: Option<List>,
    pub(super) columns: &'static [Column<R>],
}

/// The title of the column of a connection's peer: `Agent` at a server, `Server` at an agent.
pub(super) const PEER: &str = "Agent or server";

impl View<'_> {
    pub(super) fn is_server(&self) -> bool {
        self.status.build.program != "proxy-agent"
    }

    /// The seconds from a time until now; negative for a later time, `None` if there is none.
    pub(super) fn age(&self, time: &str) -> Option<f64> {
        Some(at(&self.status.now)? - at(time)?)
    }

    /// Adds `12 s ago`, with the exact time as a title.
    pub(super) fn ago(&self, html: &mut Html, time: &str) {
        if let Some(age) = self.age(time) {
            html.raw("<time datetime=\"").text(time).raw("\" title=\"").text(time).raw("\">");
            html.text(duration(age.max(0.0))).raw(" ago</time>");
        }
    }

    /// The address of this page with another query.
    pub(super) fn href(&self, query: &Query, anchor: &str) -> String {
        let list = query.list.map(|list| match list {
            List::Peers if self.is_server() => "agents",
            List::Peers => "servers",
            List::Connections => "connections",
        });
        let pairs = [
            ("list", list.unwrap_or_default().to_owned()),
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

impl<R> Table<R> {
    /// Adds the section. `total` counts the entries of all pages without a filter.
    pub(super) fn show(&self, html: &mut Html, view: &View<'_>, rows: &[R], total: u64, fields: &[&str]) {
        html.raw("<section id=\"").raw(self.id).raw("\"><h2 id=\"").raw(self.id).raw("-title\">");
        html.raw(self.title).raw(" <span class=\"count\">").text(number(total)).raw("</span></h2>");
        if self.list.is_some() && view.query.list.is_some_and(|list| Some(list) != self.list) {
            let query = Query { list: None, offset: 0, ..view.query.clone() };
            html.raw("<p>Not on this page. ");
            view.link(html, &query, "", "Show all sections");
            html.raw("</p></section>");
            return;
        }
        let more = self.list.is_some() && rows.len() > view.query.limit;
        let rows = if more { rows.get(..view.query.limit).unwrap_or(rows) } else { rows };
        if rows.is_empty() {
            let filtered = !view.query.filter.is_empty() && total > 0;
            html.raw("<p>")
                .raw(if filtered { "No entry contains the filter." } else { self.empty })
                .raw("</p>");
        } else {
            self.rows(html, view, rows, fields);
        }
        if self.list.is_some() {
            self.pages(html, view, rows.len(), total, more);
        }
        html.raw("</section>");
    }

    fn rows(&self, html: &mut Html, view: &View<'_>, rows: &[R], fields: &[&str]) {
        html.raw("<div class=\"scroll\" role=\"group\" tabindex=\"0\" aria-labelledby=\"").raw(self.id);
        html.raw("-title\"><table><caption>").raw(self.caption).raw("</caption><thead><tr>");
        for column in self.columns {
            self.head(html, view, column, fields.contains(&column.sort));
        }
        html.raw("</tr></thead><tbody>");
        for row in rows {
            html.raw("<tr>");
            for (at, column) in self.columns.iter().enumerate() {
                html.raw(if at == 0 { "<th scope=\"row\"" } else { "<td" });
                html.raw(if column.numeric { " class=\"number\">" } else { ">" });
                (column.cell)(html, row, view);
                html.raw(if at == 0 { "</th>" } else { "</td>" });
            }
            html.raw("</tr>");
        }
        html.raw("</tbody></table></div>");
    }

    fn head(&self, html: &mut Html, view: &View<'_>, column: &Column<R>, sorts: bool) {
        let title = match (column.title, view.is_server()) {
            (PEER, true) => "Agent",
            (PEER, false) => "Server",
            (title, _) => title,
        };
        html.raw("<th scope=\"col\"").raw(if column.numeric { " class=\"number\"" } else { "" });
        if !sorts {
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
    fn pages(&self, html: &mut Html, view: &View<'_>, shown: usize, total: u64, more: bool) {
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
        let page = |offset| Query { list: self.list, offset, ..view.query.clone() };
        if offset > 0 {
            view.link(html, &page(offset.saturating_sub(limit)), "", "Previous");
        }
        if more {
            view.link(html, &page(offset + limit), "", "Next");
        }
        html.raw("</nav>");
    }
}

/// A badge with a class that names its color.
pub(super) fn badge(html: &mut Html, class: &'static str, text: &str) {
    html.raw("<span class=\"badge ").raw(class).raw("\">").text(text).raw("</span>");
}

/// A count of failures, marked if there are any.
pub(super) fn failures(html: &mut Html, failed: u64) {
    match failed {
        0 => html.text(0),
        failed => html.raw("<strong class=\"bad\">").text(number(failed)).raw("</strong>"),
    };
}

/// Round trip or duration, if it is known.
pub(super) fn amount(html: &mut Html, seconds: Option<f64>) {
    if let Some(seconds) = seconds {
        html.text(duration(seconds));
    }
}

/// Several texts, one a line.
pub(super) fn lines(html: &mut Html, texts: &[String]) {
    const SHOWN: usize = 4;
    for (at, text) in texts.iter().take(SHOWN).enumerate() {
        html.raw(if at > 0 { "<br>" } else { "" }).text(text);
    }
    if let Some(rest) = texts.len().checked_sub(SHOWN).filter(|rest| *rest > 0) {
        html.raw("<br>").text(format!("and {}", count(rest as u64, "other")));
    }
}
