//! pflag's syntax: which words of a command line are flags, and which are their values. The result is for clap: one
//! word for each flag, `--name=value` or `--name`.
//!
//! Does not interpret values; see [`crate::Value`]. Source: pflag 1.0.10 (`parseLongArg`, `parseSingleShortArg`),
//! tested against the Go binaries. The errors are pflag's texts, because operators search for them.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::error::{ContextKind, ContextValue};

use crate::{Exit, Flag, closest};

/// One flag on a command line.
pub(crate) struct Occurrence {
    /// The flag's name.
    pub(crate) flag: &'static str,
    /// The flag as pflag names it in errors.
    title: String,
    /// Whether it was given by its deprecated name.
    pub(crate) by_old_name: bool,
    /// The word for clap.
    pub(crate) word: OsString,
}

impl Occurrence {
    fn new(flag: &Flag, value: Option<&OsStr>) -> Self {
        let name = flag.name;
        let mut word = OsString::from(format!("--{name}"));
        for part in value.into_iter().flat_map(|value| [OsStr::new("="), value]) {
            word.push(part);
        }
        let title = flag.letter.map_or_else(|| format!("--{name}"), |letter| format!("-{letter}, --{name}"));
        Self { flag: name, title, by_old_name: false, word }
    }
}

/// clap's error about a value, in pflag's words.
pub(crate) fn invalid(error: &clap::Error, given: &[Occurrence]) -> Exit {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let (arg, value) = (context(ContextKind::InvalidArg), context(ContextKind::InvalidValue));
    // clap names the flag `--name <KIND>` or `--name[=<KIND>]`, also if it was given by its old name.
    let name = arg.trim_start_matches('-').split([' ', '[']).next().unwrap_or_default();
    let word = format!("--{name}={value}");
    let found = given.iter().find(|occurrence| occurrence.word.to_string_lossy() == word);
    let title = found.map_or_else(|| format!("--{name}"), |occurrence| occurrence.title.clone());
    let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    Exit::refuse(&format!("invalid argument {value:?} for {title:?} flag: {reason}"))
}

/// A word that is neither a flag nor a flag's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positional {
    /// The word.
    pub word: String,
    /// The switch before it, whose value it may have been meant to be.
    pub after: Option<&'static str>,
}

/// What a command line consists of.
#[derive(Default)]
pub(crate) struct Words {
    /// The flags, in order.
    pub(crate) flags: Vec<Occurrence>,
    /// The other words, in order.
    pub(crate) positional: Vec<Positional>,
}

impl Words {
    fn add(&mut self, word: &OsStr, after: Option<&'static str>) {
        self.positional.push(Positional { word: word.to_string_lossy().into_owned(), after });
    }
}

/// The parts of `words` (without the program's name), and the first error, which ends them. Everything after `--` is
/// positional.
pub(crate) fn occurrences(
    flags: &[Flag],
    mut words: impl Iterator<Item = OsString>,
) -> (Words, Result<(), Exit>) {
    let mut found = Words::default();
    let mut switch = None;
    while let Some(word) = words.next() {
        let after = switch.take();
        let read = match word.as_bytes() {
            b"--" => break,
            [b'-', b'-', rest @ ..] => {
                long(flags, rest, &mut words).map(|occurrence| found.flags.push(occurrence))
            }
            [b'-', rest @ ..] if !rest.is_empty() => letters(flags, rest, &mut words, &mut found.flags),
            _ => {
                found.add(&word, after);
                continue;
            }
        };
        if read.is_err() {
            return (found, read);
        }
        switch = found.flags.last().filter(|last| last.word == *word).map(|last| last.flag);
    }
    words.for_each(|word| found.add(&word, None));
    (found, Ok(()))
}

/// `name`, `name=value`, or `name` with the value in the next word.
fn long(flags: &[Flag], word: &[u8], words: &mut impl Iterator<Item = OsString>) -> Result<Occurrence, Exit> {
    if matches!(word, [b'-' | b'=', ..]) {
        return Err(Exit::refuse(&format!("bad flag syntax: --{}", lossy(word))));
    }
    let mut parts = word.splitn(2, |byte| *byte == b'=');
    let name = lossy(parts.next().unwrap_or_default());
    let known = |flag: &&Flag| flag.name == name || flag.old_name == Some(&name);
    let flag = flags.iter().find(known).ok_or_else(|| unknown(flags, &name))?;
    let occurrence = match parts.next() {
        Some(value) => Occurrence::new(flag, Some(OsStr::from_bytes(value))),
        None if flag.stands_alone() => Occurrence::new(flag, None),
        None => {
            let value =
                words.next().ok_or_else(|| Exit::refuse(&format!("flag needs an argument: --{name}")))?;
            Occurrence::new(flag, Some(&value))
        }
    };
    if flag.name == name {
        return Ok(occurrence);
    }
    Ok(Occurrence { title: format!("--{name}"), by_old_name: true, ..occurrence })
}

/// pflag's error, and the flag that may have been meant.
fn unknown(flags: &[Flag], name: &str) -> Exit {
    let meant = closest(name, flags.iter().map(|flag| flag.name));
    let meant = meant.map(|meant| format!(" (did you mean --{meant}?)")).unwrap_or_default();
    Exit::refuse(&format!("unknown flag: --{name}{meant}"))
}

/// Letters after one dash: more letters may follow a switch; a letter with a value takes the rest of the word (`v4`,
/// `v=4`) or the next word.
fn letters(
    flags: &[Flag],
    word: &[u8],
    words: &mut impl Iterator<Item = OsString>,
    found: &mut Vec<Occurrence>,
) -> Result<(), Exit> {
    let mut rest = word;
    while let [letter, after @ ..] = rest {
        let letter = char::from(*letter);
        let unknown = || Exit::refuse(&format!("unknown shorthand flag: {letter:?} in -{}", lossy(rest)));
        let flag = flags.iter().find(|flag| flag.letter == Some(letter)).ok_or_else(unknown)?;
        let (value, more) = match after {
            [b'=', value @ ..] if !value.is_empty() => (Some(OsStr::from_bytes(value).to_owned()), &[][..]),
            _ if flag.stands_alone() => (None, after),
            [] => {
                let missing = || format!("flag needs an argument: {letter:?} in -{}", lossy(rest));
                (Some(words.next().ok_or_else(|| Exit::refuse(&missing()))?), after)
            }
            value => (Some(OsStr::from_bytes(value).to_owned()), &[][..]),
        };
        found.push(Occurrence::new(flag, value.as_deref()));
        rest = more;
    }
    Ok(())
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
