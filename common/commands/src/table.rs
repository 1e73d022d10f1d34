//! Tables and values for people: aligned plain text, without colors. Texts of peers cannot write control characters to the
//! terminal.

use std::fmt::{self, Display};
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A table with a head; every row has as many cells.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [&dyn Display; N]) {
        self.rows.push(cells.into_iter().map(|cell| shown(&cell.to_string())).collect());
    }

    /// Whether it has only its head.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width =
            |at: usize| self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or_default()).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// A cell: `-` if it is empty, control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    if text.is_empty() {
        return "-".to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        // Also the marks that change the direction of text.
        if c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A number of bytes with a unit, in three digits at least.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS.get(unit).unwrap_or(&"TiB"))
}

/// A time in milliseconds with one decimal.
pub fn millis(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1000.0)
}

/// A duration in its two largest units: `3d4h`, `2h5m`, `3m12s`, `5s`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

/// The time from one moment to another, both RFC 3339; `None` if one of them is not, or if the second is the earlier one.
pub(crate) fn between(from: &str, to: &str) -> Option<Duration> {
    let parse = |text| OffsetDateTime::parse(text, &Rfc3339).ok();
    (parse(to)? - parse(from)?).try_into().ok()
}

/// The age of a moment; `-` if it is unknown.
pub(crate) fn age(since: &str, now: &str) -> String {
    between(since, now).map_or_else(|| "-".to_owned(), duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_peers_cannot_draw() {
        let mut table = Table::new(&["ID", "STATE", "NOTE"]);
        table.row([&"a-long-id", &"ready", &""]);
        table.row([&"é\u{1b}[31m\n", &7, &"x\u{202e}y"]);
        let lines: Vec<String> = table.to_string().lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            ["ID             STATE  NOTE", "a-long-id      ready  -", "é\\u{1b}[31m\\n  7      x\\u{202e}y",]
        );
        assert!(!table.is_empty() && Table::new(&["ID"]).is_empty());
    }

    #[test]
    fn values_have_units() {
        for (count, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (5 << 50, "5120.0 TiB")]
        {
            assert_eq!(bytes(count), text);
        }
        for (seconds, text) in [(0, "0s"), (59, "59s"), (192, "3m12s"), (7_500, "2h5m"), (273_600, "3d4h")] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
        assert_eq!(age("2026-01-01T00:00:00Z", "2026-01-01T00:01:05.5Z"), "1m5s");
        assert_eq!(age("2026-01-01T00:01:00Z", "2026-01-01T00:00:00Z"), "-");
        assert_eq!(age("", "x"), "-");
        assert_eq!(millis(0.01234), "12.3 ms");
    }
}
