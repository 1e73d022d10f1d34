//! The figures of all scenarios, as a table in Markdown.

use std::cmp::Ordering;
use std::fmt::{Display, Formatter, Write};

use super::Scenario;

/// How many times the wanted number is far too much.
const FAR: f64 = 2.0;

/// A measured number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// NaN if nothing was measured.
    pub number: f64,
    /// The observation ended before the number was known: it is larger.
    pub more: bool,
}

impl Value {
    pub(super) fn is(number: f64) -> Self {
        Self { number, more: false }
    }

    pub(super) fn more_than(number: f64) -> Self {
        Self { number, more: true }
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        self.more.cmp(&other.more).then(self.number.total_cmp(&other.number))
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mark = if self.more { "> " } else { "" };
        match self.number {
            number if number.is_nan() => write!(f, "-"),
            number if number >= 10.0 || number == 0.0 => write!(f, "{mark}{number:.0}"),
            number if number >= 1.0 => write!(f, "{mark}{number:.1}"),
            number => write!(f, "{mark}{number:.2}"),
        }
    }
}

/// One figure of a scenario.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured, with its unit.
    pub name: &'static str,
    /// The largest number that is wanted, if one was set.
    pub wanted: Option<f64>,
    /// The measured number.
    pub value: Value,
}

impl Figure {
    pub(super) fn new(name: &'static str, wanted: impl Into<Option<f64>>, value: Value) -> Self {
        Self { name, wanted: wanted.into(), value }
    }

    /// Whether the figure is worse than wanted, or was not measured.
    pub fn misses(&self) -> bool {
        self.is_above(1.0)
    }

    /// Whether the figure is more than twice what is wanted, not known at the end of the observation, or not measured.
    pub fn misses_by_far(&self) -> bool {
        self.is_above(FAR)
    }

    fn is_above(&self, factor: f64) -> bool {
        let within = |wanted: f64| !self.value.more && self.value.number <= factor * wanted;
        self.wanted.is_some_and(|wanted| !within(wanted))
    }
}

/// Points over time: seconds since the fault, and a number.
pub type Curve = Vec<(f64, f64)>;

/// Curves with one scale.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What the curves show.
    pub title: &'static str,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// The result of one scenario with one mix.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The figures.
    pub figures: Vec<Figure>,
    /// The curves of the picture.
    pub panels: Vec<Panel>,
    /// The machine stood still in both runs: the figures may be worse than those of the programs.
    pub stalled: bool,
}

/// The results of one scenario, in the order of the mixes.
#[derive(Clone, Debug)]
pub struct Row {
    /// The scenario.
    pub scenario: Scenario,
    /// By mix.
    pub outcomes: Vec<Outcome>,
}

/// A table in Markdown. Figures that are worse than wanted are bold. A scenario's name is followed by the mixes with which the
/// machine stood still.
pub fn table(mixes: &[String], rows: &[Row]) -> String {
    let mut text = String::from("| scenario | figure | wanted |");
    mixes.iter().for_each(|mix| text.extend([" ", mix, " |"]));
    text.push_str("\n|---|---|---|");
    text.push_str(&"---|".repeat(mixes.len()));
    text.push('\n');
    for row in rows {
        let figures = row.outcomes.first().map_or(&[][..], |outcome| &outcome.figures);
        let stalled = mixes.iter().zip(&row.outcomes).filter(|(_, outcome)| outcome.stalled);
        let stalled: Vec<&str> = stalled.map(|(mix, _)| mix.as_str()).collect();
        let title = match stalled[..] {
            [] => row.scenario.title().to_owned(),
            _ => format!("{} (the machine stood still: {})", row.scenario.title(), stalled.join(", ")),
        };
        for (number, figure) in figures.iter().enumerate() {
            let wanted = figure.wanted.map_or("-".into(), |wanted| Value::is(wanted).to_string());
            let scenario = if number == 0 { title.as_str() } else { "" };
            let _ = write!(text, "| {scenario} | {} | {wanted} |", figure.name);
            for figure in row.outcomes.iter().filter_map(|outcome| outcome.figures.get(number)) {
                let bold = if figure.misses() { "**" } else { "" };
                let _ = write!(text, " {bold}{}{bold} |", figure.value);
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_marks_figures_that_are_worse_than_wanted() {
        let outcome = |value, stalled| {
            let figures =
                vec![Figure::new("time, s", 1.0, value), Figure::new("failed, %", None, Value::is(12.5))];
            Outcome { figures, panels: Vec::new(), stalled }
        };
        let outcomes = vec![outcome(Value::is(0.25), false), outcome(Value::more_than(15.0), true)];
        let rows = [Row { scenario: Scenario::ServersReset, outcomes }];
        let table = table(&["ours".into(), "Go".into()], &rows);
        let wanted = format!(
            "| scenario | figure | wanted | ours | Go |\n|---|---|---|---|---|\n\
             | {} (the machine stood still: Go) | time, s | 1.0 | 0.25 | **> 15** |\n|  | failed, % | - | 12 | 12 |\n",
            Scenario::ServersReset.title()
        );
        assert_eq!(table, wanted);
    }

    #[test]
    fn unmeasured_and_unfinished_figures_miss_by_far() {
        let figure = |value| Figure::new("time, s", 1.0, value);
        let misses = |value| (figure(value).misses(), figure(value).misses_by_far());
        assert_eq!(misses(Value::is(1.0)), (false, false));
        assert_eq!(misses(Value::is(2.0)), (true, false));
        assert_eq!(misses(Value::is(2.1)), (true, true));
        assert_eq!(misses(Value::more_than(0.5)), (true, true));
        assert_eq!(misses(Value::is(f64::NAN)), (true, true));
        assert!(!Figure::new("failed, %", None, Value::is(f64::NAN)).misses());
    }
}
