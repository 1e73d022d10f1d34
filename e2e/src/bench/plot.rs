//! A bar chart of a report, with a group of bars for each case in which more, or less, is clearly better.

use std::fmt::Write;

use super::report::Report;

/// The cases in the chart, and their titles.
const DRAWN: [(&str, &str); 8] = [
    ("bulk down, 1 connections", "Download, one connection, MiB/s"),
    ("bulk up, 1 connections", "Upload, one connection, MiB/s"),
    ("bulk down, 16 connections", "Download, 16 connections, MiB/s"),
    ("bulk up, 16 connections", "Upload, 16 connections, MiB/s"),
    ("CPU, bulk down, 1 connections", "Processor seconds for a GiB down (less is better)"),
    ("64 connections x 1 KiB echoes", "Echoes of 1 KiB over 64 connections, per second"),
    ("connects, 16 at once", "Connections opened per second, 16 at once"),
    ("uploads of 1 MiB that arrive whole", "Uploads closed right after sending that arrive whole, %"),
];

const COLORS: [&str; 5] = ["#2563eb", "#60a5fa", "#9ca3af", "#d1d5db", "#10b981"];
const WIDTH: f64 = 860.0;
/// Left end of the bars.
const LEFT: f64 = 170.0;
const BAR: f64 = 14.0;

/// The chart as SVG, with a bar for each named report.
pub fn svg(columns: &[(String, Report)]) -> String {
    let mut body = String::new();
    let mut top = 20.0;
    for (case, title) in DRAWN {
        let values: Vec<f64> = columns.iter().map(|(_, report)| report.value(case).unwrap_or(0.0)).collect();
        let most = values.iter().copied().filter(|value| value.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
        let _ = writeln!(body, r#"<text x="10" y="{:.0}" font-weight="bold">{title}</text>"#, top);
        top += 8.0;
        for (((name, _), value), color) in columns.iter().zip(values).zip(COLORS.iter().cycle()) {
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
            for (case, _) in DRAWN {
                report.add(case, Unit::PerSecond, value);
            }
            (name.to_owned(), report)
        };
        let picture = svg(&[column("ours", 1_200.0), column("theirs", 300.0), column("dead", f64::INFINITY)]);
        assert_eq!(picture.matches("<rect x=").count(), 3 * DRAWN.len());
        assert_eq!(picture.matches(r#"width="600.0""#).count(), DRAWN.len(), "the longest");
        assert_eq!(picture.matches(r#"width="150.0""#).count(), DRAWN.len(), "a quarter of it");
        assert_eq!(picture.matches("not served").count(), DRAWN.len());
    }
}
