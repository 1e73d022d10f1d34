//! The figures of a cell, as Markdown and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::bench::plot::bars_of;

/// The figures of one subject in a cell. NaN means that a figure does not apply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Payload of the bulk transfers in Mbit/s.
    pub megabits: f64,
    /// Median time of a 64-byte ping in ms.
    pub ping_p50: f64,
    /// 99th percentile of the same in ms.
    pub ping_p99: f64,
    /// 99th percentile of the dial time in ms.
    pub dial_p99: f64,
    /// Dials that failed.
    pub refused: f64,
    /// Connections that ended unexpectedly.
    pub ended: f64,
    /// Pings and dials without an answer.
    pub unanswered: f64,
    /// CPU time of both programs in s.
    pub cpu: f64,
    /// Time from the start of a black-out to the first answered ping after it, in s.
    pub again: f64,
}

/// A column: its head, its figure, and its number of decimals.
type Column = (&'static str, fn(&Figures) -> f64, usize);

/// The columns, in order.
const COLUMNS: [Column; 9] = [
    ("Mbit/s", |figures| figures.megabits, 1),
    ("ping p50 ms", |figures| figures.ping_p50, 1),
    ("ping p99 ms", |figures| figures.ping_p99, 0),
    ("dial p99 ms", |figures| figures.dial_p99, 0),
    ("dials failed", |figures| figures.refused, 0),
    ("connections ended", |figures| figures.ended, 0),
    ("unanswered", |figures| figures.unanswered, 0),
    ("CPU s", |figures| figures.cpu, 2),
    ("answers again after s", |figures| figures.again, 1),
];

/// One line of the report.
#[derive(Clone, Debug)]
pub struct Row {
    /// The cell.
    pub cell: String,
    /// The subject.
    pub subject: String,
    /// The medians of the rounds.
    pub figures: Figures,
    /// The number of rounds.
    pub rounds: usize,
}

impl Figures {
    /// The median of each figure.
    pub fn median(rounds: &[Self]) -> Option<Self> {
        let of = |figure: fn(&Self) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        (!rounds.is_empty()).then(|| Self {
            megabits: of(|figures| figures.megabits),
            ping_p50: of(|figures| figures.ping_p50),
            ping_p99: of(|figures| figures.ping_p99),
            dial_p99: of(|figures| figures.dial_p99),
            refused: of(|figures| figures.refused),
            ended: of(|figures| figures.ended),
            unanswered: of(|figures| figures.unanswered),
            cpu: of(|figures| figures.cpu),
            again: of(|figures| figures.again),
        })
    }
}

/// A table in Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from("| cell | subject |");
    COLUMNS.iter().for_each(|(name, ..)| text.extend([" ", name, " |"]));
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(COLUMNS.len()));
    for row in rows {
        let _ = write!(text, "\n| {} | {} |", row.cell, row.subject);
        for (_, figure, digits) in COLUMNS {
            let value = figure(&row.figures);
            let _ = match value.is_nan() {
                true => write!(text, " - |"),
                false => write!(text, " {value:.digits$} |"),
            };
        }
    }
    text.push('\n');
    text
}

/// Bulk transfers and pings beside them as SVG, with a group of bars for each cell.
pub fn chart(rows: &[Row]) -> String {
    type Figure = fn(&Figures) -> f64;
    const DRAWN: [(&str, Figure); 2] =
        [("Mbit/s", |figures| figures.megabits), ("ping p99, ms", |figures| figures.ping_p99)];
    let mut groups = Vec::new();
    for cell in rows.chunk_by(|one, two| one.cell == two.cell) {
        for (unit, figure) in DRAWN {
            let title = format!("{unit}: {}", cell.first().map_or("", |row| &row.cell));
            let bars: Vec<_> = cell.iter().map(|row| (row.subject.as_str(), figure(&row.figures))).collect();
            groups.push((title, bars));
        }
    }
    bars_of(groups.iter().map(|(title, bars)| (title.as_str(), bars.clone())))
}

/// The same as JSON; figures that do not apply are null.
pub fn json(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| {
            let mut object = json!({ "cell": row.cell, "subject": row.subject, "rounds": row.rounds });
            for (name, figure, _) in COLUMNS {
                object[name] = json!(figure(&row.figures));
            }
            object
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_for_each_figure_and_shown_with_their_unit() {
        let figures = |megabits, cpu| Figures {
            megabits,
            ping_p50: 2.0,
            ping_p99: 3.0,
            dial_p99: 4.0,
            refused: 0.0,
            ended: 0.0,
            unanswered: 1.0,
            cpu,
            again: f64::NAN,
        };
        let median = Figures::median(&[figures(3.0, 1.0), figures(1.0, 3.0), figures(2.0, 2.0)]).unwrap();
        assert_eq!((median.megabits, median.cpu), (2.0, 2.0));
        let row = Row { cell: "a".into(), subject: "b".into(), figures: median, rounds: 3 };
        let table = table(std::slice::from_ref(&row));
        assert!(table.ends_with("| a | b | 2.0 | 2.0 | 3 | 4 | 0 | 0 | 1 | 2.00 | - |\n"), "{table}");
        assert!(json(&[row])[0]["answers again after s"].is_null());
        assert!(Figures::median(&[]).is_none());
    }
}
