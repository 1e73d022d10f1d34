//! The flags of one binary: fields that are lent while the command line is read.

use std::ffi::{OsStr, OsString};

use crate::syntax::{self, SyntaxError};
use crate::{Exit, LogFlags, Value, help};

/// One flag: its name, the field that it sets, and its help text.
pub struct Flag<'a> {
    pub(crate) name: &'static str,
    pub(crate) letter: Option<u8>,
    pub(crate) old_name: Option<&'static str>,
    pub(crate) value: &'a mut dyn Value,
    /// The default for the help, taken before the command line is read.
    pub(crate) default: String,
    pub(crate) heading: &'static str,
    pub(crate) help: &'static str,
    pub(crate) remark: Option<Remark>,
    given: bool,
    given_by_old_name: bool,
}

/// A remark about a flag, for the help and for a warning at the start if the flag is given.
#[derive(Clone, Copy)]
pub(crate) enum Remark {
    Deprecated(&'static str),
    NoEffect(&'static str),
}

impl Flag<'_> {
    /// Adds a short form: one dash and this letter.
    pub fn letter(&mut self, letter: char) -> &mut Self {
        self.letter = u8::try_from(letter).ok();
        self
    }

    /// Adds a deprecated name.
    pub fn old_name(&mut self, name: &'static str) -> &mut Self {
        self.old_name = Some(name);
        self
    }

    /// The flag still works; `instead` names the replacement.
    pub fn deprecated(&mut self, instead: &'static str) -> &mut Self {
        self.remark = Some(Remark::Deprecated(instead));
        self
    }

    /// The flag is accepted without effect; `why` gives the reason.
    pub fn no_effect(&mut self, why: &'static str) -> &mut Self {
        self.remark = Some(Remark::NoEffect(why));
        self
    }

    /// The default for the help, if the field's own value would mislead.
    pub fn default_shown(&mut self, text: &'static str) -> &mut Self {
        text.clone_into(&mut self.default);
        self
    }

    fn warning(&self) -> Option<String> {
        if let Some(old) = self.old_name.filter(|_| self.given_by_old_name) {
            return Some(format!("--{old} is deprecated: use --{}", self.name));
        }
        match self.remark.filter(|_| self.given)? {
            Remark::Deprecated(instead) => Some(format!("--{} is deprecated: {instead}", self.name)),
            Remark::NoEffect(why) => Some(format!("--{} has no effect: {why}", self.name)),
        }
    }
}

/// The result of a command line.
#[derive(Debug)]
pub struct Given {
    /// One line for each given flag that is deprecated or has no effect.
    pub warnings: Vec<String>,
    /// Every flag's name and value, in the order in which they were added; without the log flags.
    pub values: Vec<(&'static str, String)>,
}

/// All flags of a binary, grouped under headings in the order in which they were added.
pub struct FlagSet<'a> {
    program: &'static str,
    version: &'static str,
    about: &'static str,
    heading: &'static str,
    flags: Vec<Flag<'a>>,
    wants_help: bool,
    wants_version: bool,
}

impl<'a> FlagSet<'a> {
    /// An empty set. `--help`, `-h` and `--version` are always there.
    pub fn new(program: &'static str, version: &'static str, about: &'static str) -> Self {
        Self {
            program,
            version,
            about,
            heading: "",
            flags: Vec::new(),
            wants_help: false,
            wants_version: false,
        }
    }

    /// Sets the heading for the following flags.
    pub fn heading(&mut self, heading: &'static str) {
        self.heading = heading;
    }

    /// Adds a flag whose default is the field's current value.
    pub fn add(&mut self, name: &'static str, value: &'a mut dyn Value, help: &'static str) -> &mut Flag<'a> {
        let default = value.shown();
        let at = self.flags.len();
        self.flags.push(Flag {
            name,
            letter: None,
            old_name: None,
            given_by_old_name: false,
            value,
            default,
            heading: self.heading,
            help,
            remark: None,
            given: false,
        });
        &mut self.flags[at]
    }

    /// Reads a command line, whose first word is the program's name, and sets the fields.
    ///
    /// Returns one line for each given flag that is deprecated or has no effect. Help and version return an [`Exit`]
    /// with code 0; as in the Go programs an error in the command line takes precedence over them.
    pub fn read(self, argv: impl Iterator<Item = OsString>) -> Result<Vec<String>, Exit> {
        Ok(self.read_all(argv)?.warnings)
    }

    /// As [`FlagSet::read`]; the result also has the values.
    pub fn read_all(mut self, argv: impl Iterator<Item = OsString>) -> Result<Given, Exit> {
        syntax::read(&mut self, argv.skip(1))?;
        if self.wants_help {
            return Err(Exit::show(help::render(self.program, self.about, &self.flags)));
        }
        if self.wants_version {
            return Err(Exit::show(format!("{} {}\n", self.program, self.version)));
        }
        let told = self.flags.iter().filter(|flag| flag.heading != LogFlags::HEADING);
        Ok(Given {
            warnings: self.flags.iter().filter_map(Flag::warning).collect(),
            values: told.map(|flag| (flag.name, flag.value.shown())).collect(),
        })
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Id {
    Help,
    Version,
    At(usize),
    /// The same flag, by its deprecated name.
    OldAt(usize),
}

impl FlagSet<'_> {
    fn value(&mut self, id: Id) -> &mut dyn Value {
        match id {
            Id::Help => &mut self.wants_help,
            Id::Version => &mut self.wants_version,
            Id::At(index) | Id::OldAt(index) => self.flags[index].value,
        }
    }

    fn title(&self, id: Id) -> String {
        match id {
            Id::Help => "-h, --help".to_owned(),
            Id::Version => "--version".to_owned(),
            Id::OldAt(index) => format!("--{}", self.flags[index].old_name.unwrap_or_default()),
            Id::At(index) => {
                let Flag { name, letter, .. } = &self.flags[index];
                letter.map_or_else(|| format!("--{name}"), |l| format!("-{}, --{name}", char::from(l)))
            }
        }
    }

    pub(crate) fn long(&self, name: &[u8]) -> Option<Id> {
        match name {
            b"help" => Some(Id::Help),
            b"version" => Some(Id::Version),
            _ => {
                let is = |known: &str| known.as_bytes() == name;
                let old = || self.flags.iter().position(|flag| flag.old_name.is_some_and(is)).map(Id::OldAt);
                self.flags.iter().position(|flag| is(flag.name)).map(Id::At).or_else(old)
            }
        }
    }

    pub(crate) fn letter(&self, letter: u8) -> Option<Id> {
        if letter == b'h' {
            return Some(Id::Help);
        }
        self.flags.iter().position(|flag| flag.letter == Some(letter)).map(Id::At)
    }

    /// Whether the flag may be given without a value.
    pub(crate) fn stands_alone(&self, id: Id) -> bool {
        match id {
            Id::Help | Id::Version => true,
            Id::At(index) | Id::OldAt(index) => self.flags[index].value.stands_alone(),
        }
    }

    pub(crate) fn assign(&mut self, id: Id, value: &OsStr) -> Result<(), SyntaxError> {
        self.value(id).set(value).map_err(|reason| SyntaxError::InvalidValue {
            value: value.to_string_lossy().into_owned(),
            flag: self.title(id),
            reason,
        })?;
        match id {
            Id::Help | Id::Version => {}
            Id::At(index) => self.flags[index].given = true,
            Id::OldAt(index) => self.flags[index].given_by_old_name = true,
        }
        Ok(())
    }
}
