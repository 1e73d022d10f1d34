//! The results of several rounds, as a table.

use std::fmt::Write;
use std::time::Duration;

use super::{Row, Times};

/// The results of one pair of programs in one row: of each round, or the error of the last one.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// The rounds that passed.
    pub rounds: Vec<Times>,
    /// The first line of the last failure, and the number of failures.
    pub failed: Option<(String, usize)>,
}

impl Column {
    /// Adds the result of a round.
    pub fn add(&mut self, round: anyhow::Result<Times>) {
        match round {
            Ok(times) => self.rounds.push(times),
            Err(error) => {
                let count = self.failed.as_ref().map_or(0, |(_, count)| *count) + 1;
                let text = format!("{error:#}");
                self.failed = Some((text.lines().next().unwrap_or_default().replace('|', "/"), count));
            }
        }
    }

    fn spread(&self, of: impl Fn(&Times) -> Option<Duration>) -> String {
        let mut times: Vec<Duration> = self.rounds.iter().filter_map(of).collect();
        times.sort_unstable();
        match (times.get(times.len() / 2), times.last()) {
            (Some(median), Some(worst)) if times.len() > 1 => {
                format!("{}, {}", short(*median), short(*worst))
            }
            (Some(only), _) => short(*only),
            _ => "-".into(),
        }
    }
}

fn short(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{seconds:.1} s"),
    }
}

/// A table of Markdown. Times are median and worst.
pub fn markdown(rows: &[(&Row, Column, Option<Column>)]) -> String {
    let mut text = String::from(
        "| no. | fault or threat | must hold | passed | noticed | recovered | Go | last round |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (row, ours, go) in rows {
        let failed = ours.failed.as_ref().map_or(0, |(_, count)| *count);
        let passed = format!("{} of {}", ours.rounds.len(), ours.rounds.len() + failed);
        let note = match (&ours.failed, ours.rounds.last()) {
            (Some((error, _)), _) => format!("**{error}**"),
            (None, Some(times)) => times.note.clone(),
            (None, None) => String::new(),
        };
        let go = match go {
            None => "-".into(),
            Some(Column { failed: Some((error, _)), .. }) => format!("fails: {error}"),
            Some(go) => {
                format!("{}; {}", go.spread(|times| times.noticed), go.spread(|times| times.recovered))
            }
        };
        let (noticed, recovered) = (ours.spread(|times| times.noticed), ours.spread(|times| times.recovered));
        let Row { number, name, holds, .. } = row;
        // Writing to a string succeeds.
        let _ = writeln!(
            text,
            "| {number} | {name} | {holds} | {passed} | {noticed} | {recovered} | {go} | {note} |"
        );
    }
    text
}
