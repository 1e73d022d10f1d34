//! Tables of command lines, which the tests of both programs include: one entry for each flag, one row for each spelling.
//!
//! A row has words that are appended to a valid command line, the base, and the expected result. The method that adds a
//! row says whether the Go binary gives another result.

mod flow;
mod log;
mod profiling;
mod record;
mod said;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Debug;
use std::path::Path;

use flags::Exit;

pub use flow::flow_entries;
pub use log::log_entries;
pub use profiling::profiling_entries;
pub use record::record_entries;
pub use said::is_the_check_by_name;

/// The result of a command line.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// The program starts, and the flag has this value.
    Starts(&'static str),
    /// The program prints a one-line error that begins with this text.
    Refused(&'static str),
}

/// The Go binary's result for the same command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// The same result.
    Agrees,
    /// The program starts, and usually cannot work.
    Starts,
    /// The program prints an error.
    Refuses,
}

/// One command line without the program's name. `{file}`, `{none}` and `{dir}` are replaced by paths.
#[derive(Clone, Debug)]
pub struct Row {
    /// The words.
    pub words: Vec<&'static str>,
    /// The expected result.
    pub expected: Expected,
    /// Go's result.
    pub go: Go,
}

/// One flag with its rows.
pub struct Entry<C> {
    /// The name without dashes.
    pub flag: &'static str,
    /// Its rows.
    pub rows: Vec<Row>,
    base: &'static [&'static str],
    shown: Box<dyn Fn(&C) -> String>,
}

impl<C> Entry<C> {
    /// An entry without rows. `shown` prints the flag's value in a configuration.
    pub fn new(
        flag: &'static str,
        base: &'static [&'static str],
        shown: impl Fn(&C) -> String + 'static,
    ) -> Self {
        Self { flag, rows: Vec::new(), base, shown: Box::new(shown) }
    }

    /// Sets another base for the following rows.
    pub fn on(mut self, base: &'static [&'static str]) -> Self {
        self.base = base;
        self
    }

    /// Adds a row without the flag: its default.
    pub fn default(self, value: &'static str) -> Self {
        self.row(&[], Expected::Starts(value), Go::Agrees)
    }

    /// Adds a valid spelling.
    pub fn takes(self, words: &[&'static str], value: &'static str) -> Self {
        self.row(words, Expected::Starts(value), Go::Agrees)
    }

    /// Adds an invalid spelling.
    pub fn refuses(self, words: &[&'static str], line: &'static str) -> Self {
        self.row(words, Expected::Refused(line), Go::Agrees)
    }

    /// Adds an invalid spelling with which Go starts.
    pub fn rejects_but_go_accepts(self, words: &[&'static str], line: &'static str) -> Self {
        self.row(words, Expected::Refused(line), Go::Starts)
    }

    /// Adds a spelling that only our parser accepts, or a flag that Go does not have.
    pub fn accepts_but_go_rejects(self, words: &[&'static str], value: &'static str) -> Self {
        self.row(words, Expected::Starts(value), Go::Refuses)
    }

    fn row(mut self, words: &[&'static str], expected: Expected, go: Go) -> Self {
        let words = self.base.iter().chain(words).copied().collect();
        self.rows.push(Row { words, expected, go });
        self
    }
}

/// Runs every row.
///
/// # Panics
/// If a result differs from the table.
pub fn check<C: Debug>(table: &[Entry<C>], parse: impl Fn(&[&str]) -> Result<C, Exit>) {
    for (entry, row) in table.iter().flat_map(|entry| entry.rows.iter().map(move |row| (entry, row))) {
        match (parse(&row.words), row.expected) {
            (Ok(config), Expected::Starts(value)) => assert_eq!((entry.shown)(&config), value, "{row:?}"),
            (Err(exit), Expected::Refused(line)) => {
                assert!(exit.stderr.starts_with(line), "{row:?} said {}", exit.stderr);
                assert_eq!((exit.code, exit.stderr.lines().count(), exit.stdout.len()), (1, 1, 0), "{row:?}");
            }
            (found, _) => panic!("{row:?} gave {found:?}"),
        }
    }
}

/// Asserts that the help lists exactly the flags of the table.
///
/// # Panics
/// If they differ.
pub fn check_help<C>(table: &[Entry<C>], help: &Exit) {
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    let lines = help.stdout.lines().map(str::trim_start);
    let named = lines.filter_map(|line| line.strip_prefix("-v, ").unwrap_or(line).strip_prefix("--"));
    let named: BTreeSet<_> = named.filter_map(|line| line.split([' ', '[']).next()).collect();
    let tested = table.iter().map(|entry| entry.flag).chain(["version"]);
    assert_eq!(named, tested.collect());
}

/// A command line with the program's name and with paths: `{file}` is `dir/file`, `{none}` is `dir/none`.
pub fn argv(program: &str, words: &[&str], dir: &Path) -> impl Iterator<Item = OsString> + use<> {
    let place = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let places = [("{file}", place("file")), ("{none}", place("none")), ("{dir}", place(""))];
    let put_in = |word: &&str| {
        let put = |word: String, (name, path): &(&str, String)| word.replace(name, path);
        OsString::from(places.iter().fold((*word).to_owned(), put))
    };
    let words: Vec<OsString> = words.iter().map(put_in).collect();
    std::iter::once(OsString::from(program)).chain(words)
}
