//! The flags of one binary: fields lent for the time of reading a command line.

use std::ffi::{OsStr, OsString};

use crate::syntax::{self, SyntaxError};
use crate::{Exit, Value, help};

/// One flag: its name, the field it fills and what the help says of it.
pub struct Flag<'a> {
    pub(crate) name: &'static str,
    pub(crate) letter: Option<u8>,
    pub(crate) old_name: Option<&'static str>,
    pub(crate) value: &'a mut dyn Value,
    /// The default as shown, taken before the command line is read.
    pub(crate) default: String,
    pub(crate) heading: &'static str,
    pub(crate) help: &'static str,
    pub(crate) remark: Option<Remark>,
    given: bool,
    given_by_old_name: bool,
}

/// What is said about a flag, in the help and once at the start when it is given.
#[derive(Clone, Copy)]
pub(crate) enum Remark {
    Deprecated(&'static str),
    NoEffect(&'static str),
}

impl Flag<'_> {
    /// Also known as one dash and this letter.
    pub fn letter(&mut self, letter: char) -> &mut Self {
        self.letter = u8::try_from(letter).ok();
        self
    }

    /// Also known by a deprecated name.
    pub fn old_name(&mut self, name: &'static str) -> &mut Self {
        self.old_name = Some(name);
        self
    }

    /// Still works; `instead` says what to use.
    pub fn deprecated(&mut self, instead: &'static str) -> &mut Self {
        self.remark = Some(Remark::Deprecated(instead));
        self
    }

    /// Accepted and without effect; `why` says why.
    pub fn no_effect(&mut self, why: &'static str) -> &mut Self {
        self.remark = Some(Remark::NoEffect(why));
        self
    }

    /// The default as the help shows it, where the field's own value would mislead.
    pub fn default_shown(&mut self, text: &'static str) -> &mut Self {
        text.clone_into(&mut self.default);
        self
    }

    fn notice(&self) -> Option<String> {
        if let Some(old) = self.old_name.filter(|_| self.given_by_old_name) {
            return Some(format!("--{old} is deprecated: use --{}", self.name));
        }
        match self.remark.filter(|_| self.given)? {
            Remark::Deprecated(instead) => Some(format!("--{} is deprecated: {instead}", self.name)),
            Remark::NoEffect(why) => Some(format!("--{} has no effect: {why}", self.name)),
        }
    }
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

    /// The heading for the flags that follow.
    pub fn heading(&mut self, heading: &'static str) {
        self.heading = heading;
    }

    /// Adds a flag whose default is the field's present value.
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

    /// Reads a command line, its first word being the program's name, and gives the fields back filled.
    ///
    /// The result holds one line for each deprecated or effectless flag that was given. Help and version are
    /// an [`Exit`] with code 0; as in the Go peers a fault in the line outranks them.
    pub fn read(mut self, argv: impl Iterator<Item = OsString>) -> Result<Vec<String>, Exit> {
        syntax::read(&mut self, argv.skip(1))?;
        if self.wants_help {
            return Err(Exit::show(help::render(self.program, self.about, &self.flags)));
        }
        if self.wants_version {
            return Err(Exit::show(format!("{} {}\n", self.program, self.version)));
        }
        Ok(self.flags.iter().filter_map(Flag::notice).collect())
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Id {
    Help,
    Version,
    At(usize),
    /// The same, by its deprecated name.
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

    /// Whether the flag may stand without a value.
    pub(crate) fn stands_alone(&self, id: Id) -> bool {
        match id {
            Id::Help | Id::Version => true,
            Id::At(index) | Id::OldAt(index) => self.flags[index].value.stands_alone(),
        }
    }

    pub(crate) fn assign(&mut self, id: Id, value: &OsStr) -> Result<(), SyntaxError> {
        self.value(id).set(value).map_err(|reason| SyntaxError::Unfit {
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
