//! Bar charts of a report, with a group of bars for each case in which more, or less, is clearly better.

use std::fmt::Write;

use super::report::Report;

/// Cases, and their titles in a chart.
type Cases = [(&'static str, &'static str)];

/// How fast.
pub const SPEED: &Cases = &[
    ("bulk down, 1 connections", "Download, one connection, MiB/s"),
    ("bulk up, 1 connections", "Upload, one connection, MiB/s"),
    ("bulk down, 16 connections", "Download, 16 connections, MiB/s"),
    ("bulk up, 16 connections", "Upload, 16 connections, MiB/s"),
    ("64 connections x 1 KiB echoes", "Echoes of 1 KiB over 64 connections, per second"),
    ("connects, 16 at once", "Connections opened per second, 16 at once"),
    ("uploads of 1 MiB that arrive whole", "Uploads closed right after sending that arrive whole, %"),
];

/// With how much CPU and memory.
pub const COST: &Cases = &[
    ("CPU, bulk down, 1 connections", "CPU seconds for a GiB down"),
    ("CPU, bulk up, 16 connections", "CPU seconds for a GiB up, 16 connections"),
    ("CPU, connects, 16 at once", "CPU microseconds for a new connection"),
    ("RSS at start, server", "Memory of the server at start, MiB"),
    ("memory of an idle connection, server", "Memory of an idle connection at the server, KiB"),
];

const COLORS: [&str; 5] = ["#2563eb", "#60a5fa", "#9ca3af", "#d1d5db", "#10b981"];
const WIDTH: f64 = 860.0;
/// Left end of the bars.
const LEFT: f64 = 170.0;
const BAR: f64 = 14.0;

/// A chart as SVG, with a bar for each named report.
pub fn svg(cases: &Cases, columns: &[(String, Report)]) -> String {
    let bars = |case| columns.iter().map(move |(name, report)| (&**name, report.value(case).unwrap_or(0.0)));
    bars_of(cases.iter().map(|(case, title)| (*title, bars(case).collect())))
}

/// A chart as SVG: groups of bars, each with its name and value, below their title.
pub(crate) fn bars_of<'a>(groups: impl Iterator<Item = (&'a str, Vec<(&'a str, f64)>)>) -> String {
    let mut body = String::new();
    let mut top = 20.0;
    for (title, bars) in groups {
        let finite = bars.iter().map(|(_, value)| *value).filter(|value| value.is_finite());
        let most = finite.fold(f64::MIN_POSITIVE, f64::max);
        let _ = writeln!(body, r#"<text x="10" y="{:.0}" font-weight="bold">{title}</text>"#, top);
        top += 8.0;
        for ((name, value), color) in bars.into_iter().zip(COLORS.iter().cycle()) {
            let served = if value.is_finite() { value } else { 0.0 };
            let width = (WIDTH - LEFT - 90.0) * served / most;
            let (label, end) = (top + BAR - 3.0, LEFT + width + 6.0);
            let _ = writeln!(
                body,
                r#"<text x="{:.0}" y="{label:.0}" text-anchor="end">{name}</text>"#,
                LEFT - 6.0
            );
            let _ = writeln!(
                body,
                r#"<rect x="{LEFT:.0}" y="{top:.0}" width="{width:.1}" height="{:.0}" fill="{color}"/>"#,
                BAR - 2.0
            );
            let _ = writeln!(body, r#"<text x="{end:.1}" y="{label:.0}">{}</text>"#, shown(value));
            top += BAR;
        }
        top += 28.0;
    }
    document(WIDTH, top, &body)
}

/// A picture with a white background.
pub(crate) fn document(width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

fn shown(value: f64) -> String {
    if !value.is_finite() {
        "not served".into()
    } else if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Unit;
    use super::*;

    #[test]
    fn every_case_has_a_bar_for_each_report_as_long_as_its_value() {
        let column = |name: &str, value: f64| {
            let mut report = Report::default();
            for (case, _) in SPEED {
                report.add(case, Unit::PerSecond, value);
            }
            (name.to_owned(), report)
        };
        let picture =
            svg(SPEED, &[column("ours", 1_200.0), column("theirs", 300.0), column("dead", f64::INFINITY)]);
        assert_eq!(picture.matches("<rect x=").count(), 3 * SPEED.len());
        assert_eq!(picture.matches(r#"width="600.0""#).count(), SPEED.len(), "the longest");
        assert_eq!(picture.matches(r#"width="150.0""#).count(), SPEED.len(), "a quarter of it");
        assert_eq!(picture.matches("not served").count(), SPEED.len());
    }
}
