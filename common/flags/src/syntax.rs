//! pflag's syntax: which words of a command line are flags, and which are their values.
//!
//! Does not interpret values; see [`crate::Value`]. Source: pflag 1.0.10 (`parseLongArg`, `parseSingleShortArg`),
//! tested against the Go binaries.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::{FlagSet, InvalidValue};

/// Why a command line cannot be parsed. The texts are pflag's, because operators search for them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// An unknown long flag.
    #[error("unknown flag: --{0}")]
    Unknown(String),
    /// An unknown letter in a word of letters.
    #[error("unknown shorthand flag: {letter:?} in -{word}")]
    UnknownLetter {
        /// The letter.
        letter: char,
        /// The word from that letter on, without the dash.
        word: String,
    },
    /// The command line ends where a value is expected.
    #[error("flag needs an argument: {0}")]
    NoValue(String),
    /// `--=x`, `---x`.
    #[error("bad flag syntax: {0}")]
    Malformed(String),
    /// The value is invalid.
    #[error("invalid argument {value:?} for {flag:?} flag: {reason}")]
    InvalidValue {
        /// The value as given.
        value: String,
        /// The flag as pflag names it: `--name`, or `-v, --v`.
        flag: String,
        /// The cause.
        reason: InvalidValue,
    },
}

/// Reads `words` (without the program's name) in order, up to the first error. Words that are not flags are skipped,
/// and so is everything after `--`: the Go programs ignore positional arguments.
pub(crate) fn read(
    flags: &mut FlagSet<'_>,
    mut words: impl Iterator<Item = OsString>,
) -> Result<(), SyntaxError> {
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"--" => break,
            [b'-', b'-', rest @ ..] => read_long(flags, rest, &mut words)?,
            [b'-', rest @ ..] if !rest.is_empty() => read_letters(flags, rest, &mut words)?,
            _ => {}
        }
    }
    Ok(())
}

/// `name`, `name=value`, or `name` with the value in the next word.
fn read_long(
    flags: &mut FlagSet<'_>,
    word: &[u8],
    words: &mut impl Iterator<Item = OsString>,
) -> Result<(), SyntaxError> {
    if matches!(word, [b'-' | b'=', ..]) {
        return Err(SyntaxError::Malformed(format!("--{}", lossy(word))));
    }
    let mut parts = word.splitn(2, |byte| *byte == b'=');
    let name = parts.next().unwrap_or_default();
    let id = flags.long(name).ok_or_else(|| SyntaxError::Unknown(lossy(name)))?;
    if let Some(value) = parts.next() {
        return flags.assign(id, OsStr::from_bytes(value));
    }
    if flags.stands_alone(id) {
        return flags.assign(id, OsStr::new("true"));
    }
    let value = words.next().ok_or_else(|| SyntaxError::NoValue(format!("--{}", lossy(name))))?;
    flags.assign(id, &value)
}

/// Letters after one dash: more letters may follow a switch; a letter with a value takes the rest of the word (`v4`,
/// `v=4`) or the next word.
fn read_letters(
    flags: &mut FlagSet<'_>,
    word: &[u8],
    words: &mut impl Iterator<Item = OsString>,
) -> Result<(), SyntaxError> {
    let mut rest = word;
    while let [letter, after @ ..] = rest {
        let id = flags
            .letter(*letter)
            .ok_or_else(|| SyntaxError::UnknownLetter { letter: char::from(*letter), word: lossy(rest) })?;
        match after {
            [b'=', value @ ..] if !value.is_empty() => return flags.assign(id, OsStr::from_bytes(value)),
            _ if flags.stands_alone(id) => flags.assign(id, OsStr::new("true"))?,
            [] => {
                let missing =
                    || SyntaxError::NoValue(format!("{:?} in -{}", char::from(*letter), lossy(rest)));
                let value = words.next().ok_or_else(missing)?;
                return flags.assign(id, &value);
            }
            value => return flags.assign(id, OsStr::from_bytes(value)),
        }
        rest = after;
    }
    Ok(())
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
