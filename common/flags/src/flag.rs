//! One flag as an argument of clap, and [`flags!`](crate::flags), which makes them from a table.

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches};

use crate::{FlagError, Given, Value};

/// One flag: clap's argument, and what only pflag knows.
#[derive(Debug)]
pub struct Flag {
    /// The name without dashes.
    pub name: &'static str,
    /// A short form: one dash and this letter.
    pub letter: Option<char>,
    /// A deprecated name.
    pub old_name: Option<&'static str>,
    /// The default for the help, if the default value would mislead.
    pub default_shown: Option<&'static str>,
    /// The flag is accepted without effect, for this reason.
    pub no_effect: Option<&'static str>,
    /// The place among the lines that show the Go program's flags at its start, and the format of its line. Supported verbs are
    /// `%q`, `%s`, `%v`, `%d`, `%t` and `%f`, and `[%q]` and `[%s]` for lists.
    pub go: Option<(u8, &'static str)>,
    /// The name, heading, help, format and default for clap.
    pub arg: Arg,
    /// Formats the value of the flag of this name.
    pub shown: fn(&ArgMatches, &str) -> String,
}

impl Flag {
    /// A flag whose text has the format of `R`, and whose field has the type `T` after the check.
    pub fn new<R: Value, T>(
        name: &'static str,
        heading: &'static str,
        help: &'static str,
        default: &'static str,
        _check: impl Fn(&'static str, R) -> Result<T, FlagError>,
    ) -> Self {
        let parser = OsStringValueParser::new().try_map(|text| R::parse_argument(&text));
        // All flags append: `Value::then` makes one value of several.
        let arg = Arg::new(name).long(name).help(help).help_heading(heading).value_name(R::KIND);
        let arg = arg.value_parser(parser).action(ArgAction::Append).default_value(default);
        let arg = if R::STANDS_ALONE {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true")
        } else {
            arg
        };
        let shown = |matches: &ArgMatches, name: &str| last::<R>(matches, name).shown();
        Self {
            name,
            letter: None,
            old_name: None,
            default_shown: None,
            no_effect: None,
            go: None,
            arg,
            shown,
        }
    }

    /// Whether the flag may be given without a value, which means `true`.
    pub(crate) fn stands_alone(&self) -> bool {
        self.arg.is_require_equals_set()
    }

    /// The default for the help; empty if the help should omit it.
    pub(crate) fn default(&self) -> String {
        let value = || self.arg.get_default_values().iter().map(|text| text.to_string_lossy().into_owned());
        self.default_shown.map_or_else(|| value().collect(), str::to_owned)
    }

    /// The warning about the flag if it is given.
    pub(crate) fn warning(&self, given_by_old_name: bool) -> Option<String> {
        let name = self.name;
        if let Some(old) = self.old_name.filter(|_| given_by_old_name) {
            return Some(format!("--{old} is deprecated: use --{name}"));
        }
        self.no_effect.map(|why| format!("--{name} has no effect: {why}"))
    }
}

/// The value of all occurrences of a flag, or its default.
pub(crate) fn last<R: Value>(matches: &ArgMatches, name: &str) -> R {
    let values = matches.get_many::<R>(name).into_iter().flatten().cloned();
    values.reduce(R::then).expect("every flag has a default")
}

/// The check of a flag that accepts every well-formed value.
///
/// # Errors
/// Never.
pub fn any<T>(_flag: &'static str, value: T) -> Result<T, FlagError> {
    Ok(value)
}

/// The check of a flag whose values have names; `want` is the end of the error about another name.
pub fn one_of<T: Copy>(
    names: &[(&str, T)],
    want: &'static str,
) -> impl Fn(&'static str, String) -> Result<T, FlagError> {
    move |flag, text| {
        let found = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        found.ok_or_else(|| FlagError::value(flag, format_args!("{text:?}"), want))
    }
}

/// A struct whose fields are filled by flags.
pub trait Group: Sized {
    /// Its flags, in the order of the help.
    fn flags() -> Vec<Flag>;

    /// The checked values.
    ///
    /// # Errors
    /// If a flag does not accept its value.
    fn checked(given: &Given) -> Result<Self, FlagError>;
}

impl<A: Group, B: Group> Group for (A, B) {
    fn flags() -> Vec<Flag> {
        A::flags().into_iter().chain(B::flags()).collect()
    }

    fn checked(given: &Given) -> Result<Self, FlagError> {
        Ok((given.group()?, given.group()?))
    }
}

/// `name` with dashes instead of underscores; `N` is its length.
pub const fn dashed<const N: usize>(name: &str) -> [u8; N] {
    let mut dashed = [b'-'; N];
    let mut at = 0;
    while at < N {
        if name.as_bytes()[at] != b'_' {
            dashed[at] = name.as_bytes()[at];
        }
        at += 1;
    }
    dashed
}

/// Declares a struct and its flags in one table, and implements [`Group`] for it.
///
/// ```
/// flags::flags! {
///     /// A group.
///     struct Ports {
///         "Ports" { // a heading of the help
///             /// The help of --health-port.
///             health_port: u16 = "8092" => flags::port,
///             /// The help of --verbose. Its default is a text in the flag's own format.
///             loud("verbose"): bool = "false" [letter = 'l'],
///         }
///     }
/// }
/// # flags::FlagSet::new("x", "1", "x.").group::<Ports>();
/// ```
///
/// The flag has the field's name, with dashes, unless a name follows in parentheses. Without a check after `=>` the
/// field has the type of the flag's format; the check gets the flag's name and the value. In brackets stand fields of
/// [`Flag`].
#[macro_export]
macro_rules! flags {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $group:ident {
            $($heading:literal {
                $(
                    $(#[doc = $help:literal])*
                    $field:ident $(($name:literal))?: $type:ty = $default:literal
                        $([$setting:ident = $argument:expr])* $(=> $check:expr)?,
                )*
            })*
        }
    ) => {
        $(#[$attribute])*
        #[allow(dead_code, missing_docs, reason = "flags without effect have fields, too, and maybe no help")]
        $visibility struct $group {
            $($($(#[doc = $help])* $visibility $field: $type,)*)*
        }

        impl $crate::Group for $group {
            fn flags() -> Vec<$crate::Flag> {
                vec![$($(
                    $crate::Flag {
                        $($setting: Some($argument),)*
                        ..$crate::Flag::new(
                            $crate::flags!(@name $field $($name)?),
                            $heading,
                            concat!($($help),*),
                            $default,
                            $crate::flags!(@check $type $(, $check)?),
                        )
                    },
                )*)*]
            }

            fn checked(given: &$crate::Given) -> Result<Self, $crate::FlagError> {
                Ok(Self {
                    $($($field: given.checked(
                        $crate::flags!(@name $field $($name)?),
                        $crate::flags!(@check $type $(, $check)?),
                    )?,)*)*
                })
            }
        }
    };
    (@name $field:ident $name:literal) => { $name };
    (@name $field:ident) => {{
        const BYTES: [u8; stringify!($field).len()] = $crate::dashed(stringify!($field));
        const NAME: &str = match std::str::from_utf8(&BYTES) {
            Ok(name) => name,
            Err(_) => stringify!($field),
        };
        NAME
    }};
    (@check $type:ty) => { $crate::any::<$type> };
    (@check $type:ty, $check:expr) => { $check };
}
