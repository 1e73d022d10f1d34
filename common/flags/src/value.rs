//! A flag's value: parsed from text by Go's grammar.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::GoDuration;
use crate::go::{boolean, integer, list};

/// A type of values.
pub trait Value: Clone + Send + Sync + 'static {
    /// The placeholder for the value in the help.
    const KIND: &'static str;
    /// Whether the flag may be given without a value, which means `true`. Such a flag never takes the next word.
    const STANDS_ALONE: bool = false;

    /// Parses one occurrence of the flag.
    ///
    /// # Errors
    /// The reason why the text is invalid: the end of the sentence `invalid argument "x" for "--flag" flag: `.
    fn parse(text: &str) -> Result<Self, String>;

    /// As [`Self::parse`], for an argument that need not be UTF-8.
    ///
    /// # Errors
    /// As [`Self::parse`].
    fn parse_argument(text: &OsStr) -> Result<Self, String> {
        text.to_str().ok_or_else(|| "it is not UTF-8".to_owned()).and_then(Self::parse)
    }

    /// The value in Go's format, for the log.
    fn shown(&self) -> String;

    /// The value of a flag that is given again: the last wins.
    fn then(self, later: Self) -> Self {
        later
    }
}

/// Implements [`Value`] for a type: its placeholder in the help, its parser.
#[macro_export]
macro_rules! value {
    ($type:ty, $kind:literal, $parse:expr $(, $more:item)*) => {
        impl $crate::Value for $type {
            const KIND: &'static str = $kind;
            $($more)*
            fn parse(text: &str) -> Result<Self, String> {
                $parse(text).map_err(|error| error.to_string())
            }
            fn shown(&self) -> String {
                self.to_string()
            }
        }
    };
}

value!(String, "TEXT", str::parse::<Self>);
value!(bool, "BOOL", boolean, const STANDS_ALONE: bool = true;);
value!(i64, "INT", integer);
value!(u64, "INT", integer);
value!(f32, "NUMBER", |text: &str| {
    text.parse().ok().filter(|number: &f32| number.is_finite()).ok_or("it must be a number (5, 0.5, 1e2)")
});
value!(GoDuration, "DURATION", str::parse::<Self>);
// klog's level: decimal only, unlike other numbers.
value!(i32, "LEVEL", |text: &str| text.parse().map_err(|_| "it must be a decimal number"));

/// A path, which need not be UTF-8.
impl Value for PathBuf {
    const KIND: &'static str = "PATH";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self::from(text))
    }

    fn parse_argument(text: &OsStr) -> Result<Self, String> {
        Ok(Self::from(text))
    }

    fn shown(&self) -> String {
        self.display().to_string()
    }
}

/// The values of a flag that takes one at each occurrence; they may contain commas. An empty one counts as absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated(pub Vec<String>);

impl Value for Repeated {
    const KIND: &'static str = "TEXT";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self(Some(text.to_owned()).filter(|text| !text.is_empty()).into_iter().collect()))
    }

    fn shown(&self) -> String {
        self.0.join(" ")
    }

    fn then(mut self, later: Self) -> Self {
        self.0.extend(later.0);
        self
    }
}

/// A comma-separated list. The first occurrence replaces the default, later ones append.
impl Value for Vec<String> {
    const KIND: &'static str = "LIST";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(list(text))
    }

    fn shown(&self) -> String {
        self.join(",")
    }

    fn then(mut self, later: Self) -> Self {
        self.extend(later);
        self
    }
}
