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

/// A value of this type: its kind in the help, how it is read, how it is shown.
macro_rules! value {
    ($type:ty, $kind:literal, $parse:expr, $shown:expr) => {
        value!($type, $kind, $parse, $shown, false);
    };
    ($type:ty, $kind:literal, $parse:expr, $shown:expr, $stands_alone:literal) => {
        impl Value for $type {
            fn set(&mut self, text: &OsStr) -> Result<(), Unfit> {
                *self = $parse(text)?;
                Ok(())
            }
            fn shown(&self) -> String {
                $shown(self)
            }
            fn kind(&self) -> &'static str {
                $kind
            }
            fn stands_alone(&self) -> bool {
                $stands_alone
            }
        }
    };
}

/// Reads UTF-8 by a parser that says why it refuses.
fn by<T, E: ToString>(parse: fn(&str) -> Result<T, E>) -> impl Fn(&OsStr) -> Result<T, Unfit> {
    move |text| parse(utf8(text)?).map_err(Unfit::because)
}

value!(String, "TEXT", |text| utf8(text).map(str::to_owned), Self::clone);
// A path, which need not be UTF-8.
value!(OsString, "PATH", |text: &OsStr| Ok(text.to_owned()), |path: &Self| path
    .to_string_lossy()
    .into_owned());
value!(bool, "BOOL", by(boolean::parse), ToString::to_string, true);
value!(i64, "INT", by(integer::signed), ToString::to_string);
value!(u64, "INT", by(integer::unsigned), ToString::to_string);
value!(f32, "NUMBER", by(float::parse), ToString::to_string);
value!(GoDuration, "DURATION", by(str::parse), ToString::to_string);

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
