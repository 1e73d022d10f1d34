//! The figures of one subject as medians over rounds, and their output.

use std::fmt::Write;

use serde_json::{Value, json};

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// MiB.
    Mib,
    /// KiB.
    Kib,
    /// MiB per second.
    MibPerSecond,
    /// CPU seconds of both processes for each GiB.
    CpuSecondsPerGib,
    /// CPU microseconds of both processes for each message or connection.
    CpuMicrosecondsEach,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Events per second.
    PerSecond,
    /// Percent.
    Percent,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Mib => "MiB",
            Self::Kib => "KiB",
            Self::MibPerSecond => "MiB/s",
            Self::CpuSecondsPerGib => "CPU s/GiB",
            Self::CpuMicrosecondsEach => "CPU us each",
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::PerSecond => "/s",
            Self::Percent => "%",
        }
    }
}

/// The figures of one subject, in the order of the cases. Names are unique.
#[derive(Clone, Debug, Default)]
pub struct Report {
    figures: Vec<(String, Unit, f64)>,
}

impl Report {
    /// Adds a figure; infinity means that the case did not end in time.
    pub fn add(&mut self, name: &str, unit: Unit, value: f64) {
        self.figures.push((name.to_owned(), unit, value));
    }

    /// The median of each figure over the rounds that have it.
    pub fn median(rounds: &[Self]) -> Self {
        let figures = named(rounds.iter()).into_iter().map(|(name, unit)| {
            let mut values: Vec<f64> = rounds.iter().filter_map(|round| round.value(name)).collect();
            values.sort_by(f64::total_cmp);
            (name.to_owned(), unit, values[values.len() / 2])
        });
        Self { figures: figures.collect() }
    }

    /// The figure of that name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.0 == name).map(|figure| figure.2)
    }

    /// The report as JSON; infinite figures are null.
    pub fn json(&self) -> Value {
        self.figures
            .iter()
            .map(|(name, unit, value)| json!({ "case": name, "unit": unit.name(), "value": value }))
            .collect()
    }

    /// A table with one column for each named report.
    pub fn table(columns: &[(String, Self)]) -> String {
        let mut text = String::new();
        let _ = write!(text, "{:<50}{:>12}", "case", "unit");
        for (name, _) in columns {
            let _ = write!(text, "{name:>22}");
        }
        text.push('\n');
        for (name, unit) in named(columns.iter().map(|(_, report)| report)) {
            let _ = write!(text, "{name:<50}{:>12}", unit.name());
            for (_, report) in columns {
                let _ = match report.value(name) {
                    None => write!(text, "{:>22}", "-"),
                    Some(value) if value.is_infinite() => write!(text, "{:>22}", "not served"),
                    Some(value) => write!(text, "{value:>22.1}"),
                };
            }
            text.push('\n');
        }
        text
    }
}

/// Every figure's name and unit once, in the order of their first appearance.
fn named<'a>(reports: impl Iterator<Item = &'a Report>) -> Vec<(&'a str, Unit)> {
    let mut all: Vec<(&str, Unit)> = Vec::new();
    for (name, unit, _) in reports.flat_map(|report| &report.figures) {
        if !all.iter().any(|known| known.0 == name) {
            all.push((name, *unit));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Report, Unit};

    /// Subjects and rounds that lack a figure must not shift the others.
    #[test]
    fn figures_are_matched_by_name() {
        let report = |figures: &[(&str, f64)]| {
            let mut report = Report::default();
            figures.iter().for_each(|&(name, value)| report.add(name, Unit::Mib, value));
            report
        };
        let median = Report::median(&[
            report(&[("b", 2.0)]),
            report(&[("a", 1.0), ("b", 3.0)]),
            report(&[("b", 4.0)]),
        ]);
        assert_eq!((median.value("a"), median.value("b")), (Some(1.0), Some(3.0)));
        let table = Report::table(&[
            ("x".into(), report(&[("a", 7.0), ("b", 8.0)])),
            ("y".into(), report(&[("b", 9.0)])),
        ]);
        let cells: Vec<Vec<&str>> =
            table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells, [["a", "MiB", "7.0", "-"], ["b", "MiB", "8.0", "9.0"]]);
    }

    #[test]
    fn the_median_is_taken_for_each_figure() {
        let rounds = [3.0, 1.0, 2.0].map(|value| {
            let mut report = Report::default();
            report.add("a", Unit::Mib, value);
            report.add("b", Unit::Mib, -value);
            report
        });
        let median = Report::median(&rounds);
        assert_eq!(median.figures.iter().map(|figure| figure.2).collect::<Vec<_>>(), [2.0, -2.0]);
        assert!(Report::table(&[("x".into(), median)]).contains("2.0"));
    }
}
