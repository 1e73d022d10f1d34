//! Tables and values for people: aligned plain text, without colors. Texts of peers cannot write control characters to the
//! terminal.

use std::fmt::{self, Display};

use status::words::is_deceptive;
use status::{Column, Row, Status};

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

    /// A list of the status.
    pub(crate) fn of<'a, R: Row>(rows: impl IntoIterator<Item = &'a R>, status: &Status) -> Self {
        let head = R::COLUMNS.iter().map(|column| column.title(status).to_uppercase());
        let cell = |row, column: &Column<R>| shown(&(column.cell)(row).text(&status.now));
        let rows = rows.into_iter().map(|row| R::COLUMNS.iter().map(|column| cell(row, column)).collect());
        Self { rows: std::iter::once(head.collect()).chain(rows).collect() }
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
    for letter in text.chars() {
        if is_deceptive(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// A time in milliseconds with one decimal.
pub fn millis(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        assert_eq!(millis(0.01234), "12.3 ms");
    }

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
    }
}
