//! The flags of one binary, and their values in one command line.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use crate::flag::last;
use crate::syntax::{Occurrence, Positional, Words, invalid, occurrences};
use crate::{Exit, Flag, FlagError, Group, LogOptions, Value, announce, help};

crate::flags! {
    /// The flags of every program.
    pub(crate) struct ProgramFlags {
        "This program" {
            /// Prints this text.
            help: bool = "false" [letter = 'h'],
            /// Prints the version.
            version: bool = "false",
        }
    }
}

impl ProgramFlags {
    /// Their heading in the help.
    pub(crate) const HEADING: &'static str = "This program";
}

/// All flags of a binary, grouped under headings in the order in which they were added.
#[derive(Debug)]
pub struct FlagSet {
    program: String,
    version: &'static str,
    about: &'static str,
    usage: &'static str,
    flags: Vec<Flag>,
}

impl FlagSet {
    /// An empty set. `--help`, `-h` and `--version` are always there.
    pub fn new(program: impl Into<String>, version: &'static str, about: &'static str) -> Self {
        Self { program: program.into(), version, about, usage: "", flags: Vec::new() }
    }

    /// Adds this text to the line of the help that shows the usage.
    #[must_use]
    pub fn usage(self, usage: &'static str) -> Self {
        Self { usage, ..self }
    }

    /// Adds the flags of a group.
    #[must_use]
    pub fn group<G: Group>(mut self) -> Self {
        self.flags.extend(G::flags());
        self
    }

    /// Reads the command line of a program whose flags include [`LogOptions`], and makes its configuration.
    ///
    /// # Errors
    /// As [`Self::read`]. An error of the configuration is logged as the flags say.
    pub fn parse<C>(
        self,
        argv: impl Iterator<Item = OsString>,
        config: impl FnOnce(Given) -> Result<C, FlagError>,
    ) -> Result<C, Exit> {
        let given = self.read(argv)?;
        let log = given.group::<LogOptions>().ok().map(Box::new);
        config(given).map_err(|error| Exit { log, ..error.into() })
    }

    /// Reads a command line, whose first word is the program's name.
    ///
    /// # Errors
    /// Help and version are an [`Exit`] with code 0; as in the Go programs an error in the command line takes
    /// precedence over them.
    pub fn read(self, argv: impl Iterator<Item = OsString>) -> Result<Given, Exit> {
        let Self { program, version, about, usage, flags } = self.group::<ProgramFlags>();
        let command = Command::new("").no_binary_name(true);
        let command = command.disable_help_flag(true).disable_version_flag(true);
        let mut command = command.args(flags.iter().map(|flag| flag.arg.clone()));
        let (Words { flags: given, positional }, complete) = occurrences(&flags, argv.skip(1));
        let parsed = command.try_get_matches_from_mut(given.iter().map(|occurrence| &occurrence.word));
        let matches = parsed.map_err(|error| invalid(&error, &given))?;
        complete?;
        if last(&matches, "help") {
            return Err(Exit::show(help::render(&program, about, usage, &flags)));
        }
        if last(&matches, "version") {
            return Err(Exit::show(format!("{program} {version}\n")));
        }
        let defaults = command.try_get_matches_from_mut(std::iter::empty::<OsString>());
        let defaults = defaults.map_err(|error| invalid(&error, &[]))?;
        Ok(Given {
            warnings: warnings(&flags, &matches, &given),
            values: values(&flags, &matches),
            go: announce::go(&flags),
            changed: changed(&flags, &matches, &defaults),
            positional,
            matches,
        })
    }
}

/// The values of a valid command line.
#[derive(Debug)]
pub struct Given {
    /// One line for each given flag that is deprecated or has no effect.
    pub warnings: Vec<String>,
    /// Every flag's name and value, in the order in which they were added; without the log flags.
    pub values: Vec<(&'static str, String)>,
    /// The flags whose value is not their default, with the log flags.
    pub changed: Vec<(&'static str, String)>,
    /// The words that are neither flags nor values.
    pub positional: Vec<Positional>,
    /// See [`announce::go`].
    pub(crate) go: Vec<(&'static str, &'static str)>,
    matches: ArgMatches,
}

impl Given {
    /// The values of a group that was added to the set.
    ///
    /// # Errors
    /// If a flag does not accept its value.
    pub fn group<G: Group>(&self) -> Result<G, FlagError> {
        G::checked(self)
    }

    /// One warning for each word that is neither a flag nor a value: the programs ignore them, as in Go.
    pub fn ignored(&self) -> impl Iterator<Item = String> {
        self.positional.iter().map(|Positional { word, after }| match after {
            Some(flag) => format!("{word:?} after --{flag} is ignored: did you mean --{flag}={word}?"),
            None => format!("{word:?} is ignored: it is neither a flag nor the value of one"),
        })
    }

    /// Whether the command line has this flag, with any value.
    pub fn has(&self, flag: &str) -> bool {
        self.matches.value_source(flag) == Some(ValueSource::CommandLine)
    }

    /// The checked value of one flag.
    ///
    /// # Errors
    /// The check's.
    pub fn checked<R: Value, T>(
        &self,
        flag: &'static str,
        check: impl Fn(&'static str, R) -> Result<T, FlagError>,
    ) -> Result<T, FlagError> {
        check(flag, last(&self.matches, flag))
    }
}

/// One warning for each changed flag that has no effect beside the others. `flags`: its name, whether it has none, and why.
pub fn without_effect(changed: &[(&'static str, String)], flags: &[(&str, bool, &str)]) -> Vec<String> {
    let given = |flag: &str| changed.iter().any(|(name, _)| *name == flag);
    let useless = flags.iter().filter(|(flag, useless, _)| *useless && given(flag));
    useless.map(|(flag, _, why)| format!("--{flag} has no effect: {why}")).collect()
}

fn warnings(flags: &[Flag], matches: &ArgMatches, given: &[Occurrence]) -> Vec<String> {
    let flags = flags.iter().filter(|flag| matches.value_source(flag.name) == Some(ValueSource::CommandLine));
    let by_old_name = |flag: &Flag| given.iter().any(|found| found.flag == flag.name && found.by_old_name);
    flags.filter_map(|flag| flag.warning(by_old_name(flag))).collect()
}

fn values(flags: &[Flag], matches: &ArgMatches) -> Vec<(&'static str, String)> {
    let silent = [LogOptions::HEADING, ProgramFlags::HEADING].map(Some);
    let announced = flags.iter().filter(|flag| !silent.contains(&flag.arg.get_help_heading()));
    announced.map(|flag| (flag.name, (flag.shown)(matches, flag.name))).collect()
}

fn changed(flags: &[Flag], matches: &ArgMatches, defaults: &ArgMatches) -> Vec<(&'static str, String)> {
    let shown = |flag: &Flag, matches| (flag.shown)(matches, flag.name);
    let changed = flags.iter().filter(|flag| shown(flag, matches) != shown(flag, defaults));
    changed.map(|flag| (flag.name, shown(flag, matches))).collect()
}

/// The default values of a group.
///
/// # Panics
/// If the group's own checks refuse a default.
pub(crate) fn defaults<G: Group>() -> G {
    let given = FlagSet::new("", "", "").group::<G>().read(std::iter::empty());
    given.ok().and_then(|given| given.group().ok()).expect("a group accepts its defaults")
}
