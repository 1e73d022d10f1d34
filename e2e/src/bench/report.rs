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

/// The figures of one subject, in the order of the cases.
#[derive(Clone, Debug, Default)]
pub struct Report {
    figures: Vec<(String, Unit, f64)>,
}

impl Report {
    /// Adds a figure; infinity means that the case did not end in time.
    pub fn add(&mut self, name: &str, unit: Unit, value: f64) {
        self.figures.push((name.to_owned(), unit, value));
    }

    /// The median of each figure over several rounds.
    pub fn median(rounds: &[Self]) -> Self {
        let Some(first) = rounds.first() else { return Self::default() };
        let figures = first.figures.iter().enumerate().map(|(index, (name, unit, _))| {
            let mut values: Vec<f64> =
                rounds.iter().filter_map(|round| round.figures.get(index)).map(|figure| figure.2).collect();
            values.sort_by(f64::total_cmp);
            (name.clone(), *unit, values.get(values.len() / 2).copied().unwrap_or(f64::NAN))
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
        let Some((_, first)) = columns.first() else { return text };
        for (index, (name, unit, _)) in first.figures.iter().enumerate() {
            let _ = write!(text, "{name:<50}{:>12}", unit.name());
            for (_, report) in columns {
                let value = report.figures.get(index).map_or(f64::NAN, |figure| figure.2);
                let _ = if value.is_infinite() {
                    write!(text, "{:>22}", "not served")
                } else {
                    write!(text, "{value:>22.1}")
                };
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{Report, Unit};

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
