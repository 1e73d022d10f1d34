//! Tables of command lines, for the tests of the binaries: one entry for each flag, one row for each spelling.
//!
//! A row is a line of words laid on a base that starts, and what becomes of it. Rows where the Go binary decides
//! otherwise are marked by the verb with which they are added.

mod flow;
mod log;
mod profiling;
mod said;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Debug;
use std::path::Path;

use crate::Exit;

pub use flow::flow_entries;
pub use log::log_entries;
pub use profiling::profiling_entries;
pub use said::is_the_check_by_name;

/// What becomes of a command line.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// It starts, and the flag reads thus.
    Starts(&'static str),
    /// It is refused, by one line that begins thus.
    Refused(&'static str),
}

/// What the Go binary makes of the same line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// The same.
    Agrees,
    /// It starts, and can never work.
    Starts,
    /// It refuses.
    Refuses,
}

/// One command line without the program's name. `{file}`, `{none}` and `{dir}` stand for paths.
#[derive(Clone, Debug)]
pub struct Row {
    /// The words.
    pub words: Vec<&'static str>,
    /// What becomes of it.
    pub verdict: Verdict,
    /// What Go makes of it.
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
    /// An entry without rows. `shown` prints what a configuration holds of the flag.
    pub fn new(
        flag: &'static str,
        base: &'static [&'static str],
        shown: impl Fn(&C) -> String + 'static,
    ) -> Self {
        Self { flag, rows: Vec::new(), base, shown: Box::new(shown) }
    }

    /// The rows that follow are laid on another base.
    pub fn on(mut self, base: &'static [&'static str]) -> Self {
        self.base = base;
        self
    }

    /// Without the flag.
    pub fn default(self, value: &'static str) -> Self {
        self.row(&[], Verdict::Starts(value), Go::Agrees)
    }

    /// A spelling that starts.
    pub fn takes(self, words: &[&'static str], value: &'static str) -> Self {
        self.row(words, Verdict::Starts(value), Go::Agrees)
    }

    /// A spelling that is refused.
    pub fn refuses(self, words: &[&'static str], line: &'static str) -> Self {
        self.row(words, Verdict::Refused(line), Go::Agrees)
    }

    /// Go starts with it, and then can never work.
    pub fn refuses_what_go_starts(self, words: &[&'static str], line: &'static str) -> Self {
        self.row(words, Verdict::Refused(line), Go::Starts)
    }

    /// Ours is more lenient, or has a flag that Go has not.
    pub fn takes_what_go_refuses(self, words: &[&'static str], value: &'static str) -> Self {
        self.row(words, Verdict::Starts(value), Go::Refuses)
    }

    fn row(mut self, words: &[&'static str], verdict: Verdict, go: Go) -> Self {
        let words = self.base.iter().chain(words).copied().collect();
        self.rows.push(Row { words, verdict, go });
        self
    }
}

/// Runs every row.
///
/// # Panics
/// When a row's verdict is another than the table's.
pub fn check<C: Debug>(table: &[Entry<C>], parse: impl Fn(&[&str]) -> Result<C, Exit>) {
    for (entry, row) in table.iter().flat_map(|entry| entry.rows.iter().map(move |row| (entry, row))) {
        match (parse(&row.words), row.verdict) {
            (Ok(config), Verdict::Starts(value)) => assert_eq!((entry.shown)(&config), value, "{row:?}"),
            (Err(exit), Verdict::Refused(line)) => {
                assert!(exit.stderr.starts_with(line), "{row:?} said {}", exit.stderr);
                assert_eq!((exit.code, exit.stderr.lines().count(), exit.stdout.len()), (1, 1, 0), "{row:?}");
            }
            (found, _) => panic!("{row:?} gave {found:?}"),
        }
    }
}

/// Asserts that the help names exactly the flags of the table.
///
/// # Panics
/// When they differ.
pub fn check_help<C>(table: &[Entry<C>], help: &Exit) {
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    let lines = help.stdout.lines().map(str::trim_start);
    let named = lines.filter_map(|line| line.strip_prefix("-v, ").unwrap_or(line).strip_prefix("--"));
    let named: BTreeSet<_> = named.filter_map(|line| line.split([' ', '[']).next()).collect();
    let tested = table.iter().map(|entry| entry.flag).chain(["version"]);
    assert_eq!(named, tested.collect());
}

/// A command line with the program's name, its paths put in: `{file}` is `dir/file`, `{none}` is `dir/none`.
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
