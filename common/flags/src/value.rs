//! A flag's value: text that sets a field, or is invalid.

use std::ffi::{OsStr, OsString};

use crate::go::{boolean, duration::GoDuration, float, integer, list};

/// Why a text is invalid for a flag; the end of the sentence `invalid argument "x" for "--flag" flag: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(String);

impl InvalidValue {
    /// An error with this reason.
    #[expect(clippy::needless_pass_by_value, reason = "so that it fits map_err")]
    pub fn because(reason: impl ToString) -> Self {
        Self(reason.to_string())
    }
}

/// A field that a flag can fill.
pub trait Value {
    /// Sets the value. Called once for each occurrence of the flag, in order.
    fn set(&mut self, text: &OsStr) -> Result<(), InvalidValue>;

    /// The current value, as a default in the help; empty if the help should omit it.
    fn shown(&self) -> String;

    /// The placeholder for the value in the help.
    fn kind(&self) -> &'static str;

    /// Whether the flag may be given without a value, which means `true`. Such a flag never takes the next word.
    fn stands_alone(&self) -> bool {
        false
    }
}

/// The text of a value that must be UTF-8.
pub(crate) fn utf8(text: &OsStr) -> Result<&str, InvalidValue> {
    text.to_str().ok_or_else(|| InvalidValue::because("it is not UTF-8"))
}

/// Implements [`Value`] for a type: its placeholder in the help, its parser, its formatter.
macro_rules! value {
    ($type:ty, $kind:literal, $parse:expr, $shown:expr) => {
        value!($type, $kind, $parse, $shown, false);
    };
    ($type:ty, $kind:literal, $parse:expr, $shown:expr, $stands_alone:literal) => {
        impl Value for $type {
            fn set(&mut self, text: &OsStr) -> Result<(), InvalidValue> {
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

/// Parses UTF-8 with a parser whose error gives the reason.
fn by<T, E: ToString>(parse: fn(&str) -> Result<T, E>) -> impl Fn(&OsStr) -> Result<T, InvalidValue> {
    move |text| parse(utf8(text)?).map_err(InvalidValue::because)
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
    fn set(&mut self, text: &OsStr) -> Result<(), InvalidValue> {
        let items = list::parse(utf8(text)?).map_err(InvalidValue::because)?;
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
