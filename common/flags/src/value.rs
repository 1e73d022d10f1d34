//! What a flag's value is: text that sets a field, or does not fit.

use std::ffi::{OsStr, OsString};

use crate::go::{boolean, duration::GoDuration, float, integer, list};

/// Why a text is no value of a flag's kind; the sentence ends `invalid argument "x" for "--flag" flag: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(String);

impl Unfit {
    /// A reason in words.
    #[expect(clippy::needless_pass_by_value, reason = "so that it fits map_err")]
    pub fn because(reason: impl ToString) -> Self {
        Self(reason.to_string())
    }
}

/// A field that a flag can fill.
pub trait Value {
    /// Takes one occurrence of the flag. Called once per occurrence, in order.
    fn set(&mut self, text: &OsStr) -> Result<(), Unfit>;

    /// The current value as the help shows a default; empty when there is nothing worth showing.
    fn shown(&self) -> String;

    /// What stands for the value in the help.
    fn kind(&self) -> &'static str;

    /// Whether the flag may stand alone and then means `true`. Such a flag never takes the next word.
    fn stands_alone(&self) -> bool {
        false
    }
}

/// The text of a value that cannot be anything but text.
pub(crate) fn utf8(text: &OsStr) -> Result<&str, Unfit> {
    text.to_str().ok_or_else(|| Unfit::because("it is not UTF-8"))
}

impl Value for String {
    fn set(&mut self, text: &OsStr) -> Result<(), Unfit> {
        *self = utf8(text)?.to_owned();
        Ok(())
    }
    fn shown(&self) -> String {
        self.clone()
    }
    fn kind(&self) -> &'static str {
        "TEXT"
    }
}

/// A path, which need not be UTF-8.
impl Value for OsString {
    fn set(&mut self, text: &OsStr) -> Result<(), Unfit> {
        *self = text.to_owned();
        Ok(())
    }
    fn shown(&self) -> String {
        self.to_string_lossy().into_owned()
    }
    fn kind(&self) -> &'static str {
        "PATH"
    }
}

impl Value for bool {
    fn set(&mut self, text: &OsStr) -> Result<(), Unfit> {
        *self = boolean::parse(utf8(text)?).map_err(Unfit::because)?;
        Ok(())
    }
    fn shown(&self) -> String {
        self.to_string()
    }
    fn kind(&self) -> &'static str {
        "BOOL"
    }
    fn stands_alone(&self) -> bool {
        true
    }
}

impl Value for i64 {
    fn set(&mut self, text: &OsStr) -> Result<(), Unfit> {
        *self = integer::signed(utf8(text)?).map_err(Unfit::because)?;
        Ok(())
    }
    fn shown(&self) -> String {
        self.to_string()
    }
    fn kind(&self) -> &'static str {
        "INT"
    }
}

impl Value for u64 {
    fn set(&mut self, text: &OsStr) -> Result<(), Unfit> {
        *self = integer::unsigned(utf8(text)?).map_err(Unfit::because)?;
        Ok(())
    }
    fn shown(&self) -> String {
        self.to_string()
    }
    fn kind(&self) -> &'static str {
        "INT"
    }
}

impl Value for f32 {
    fn set(&mut self, text: &OsStr) -> Result<(), Unfit> {
        *self = float::parse(utf8(text)?).map_err(Unfit::because)?;
        Ok(())
    }
    fn shown(&self) -> String {
        self.to_string()
    }
    fn kind(&self) -> &'static str {
        "NUMBER"
    }
}

impl Value for GoDuration {
    fn set(&mut self, text: &OsStr) -> Result<(), Unfit> {
        *self = utf8(text)?.parse::<Self>().map_err(Unfit::because)?;
        Ok(())
    }
    fn shown(&self) -> String {
        self.to_string()
    }
    fn kind(&self) -> &'static str {
        "DURATION"
    }
}

/// A comma-separated list. The first occurrence replaces the default, later ones append.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// The elements in order.
    pub items: Vec<String>,
    given: bool,
}

impl Value for List {
    fn set(&mut self, text: &OsStr) -> Result<(), Unfit> {
        let items = list::parse(utf8(text)?).map_err(Unfit::because)?;
        if !std::mem::replace(&mut self.given, true) {
            self.items.clear();
        }
        self.items.extend(items);
        Ok(())
    }
    fn shown(&self) -> String {
        self.items.join(",")
    }
    fn kind(&self) -> &'static str {
        "LIST"
    }
}
