//! Integers: `strconv.ParseInt` and `ParseUint` with base 0, as pflag calls them.

use std::num::{IntErrorKind, ParseIntError};

const SYNTAX: &str = "it must be a whole number (10, 0x1f, 0o17, 0b11 and 1_000 are read)";
const RANGE: &str = "the number is out of range";

#[expect(clippy::needless_pass_by_value, reason = "map_err hands it in")]
fn reason(error: ParseIntError) -> &'static str {
    match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => RANGE,
        _ => SYNTAX,
    }
}

/// A signed number with an optional sign and an optional base prefix (`0x`, `0o`, `0b`, or a bare `0` for octal).
/// Underscores may separate digits.
pub fn signed(text: &str) -> Result<i64, &'static str> {
    let (sign, rest) = text.split_at(usize::from(text.starts_with(['-', '+'])));
    let (radix, digits) = based(rest)?;
    i64::from_str_radix(&(sign.to_owned() + &digits), radix).map_err(reason)
}

/// As [`signed`], without a sign.
pub fn unsigned(text: &str) -> Result<u64, &'static str> {
    let (radix, digits) = based(text)?;
    u64::from_str_radix(&digits, radix).map_err(reason)
}

/// The base, and the digits without their prefix and underscores.
fn based(text: &str) -> Result<(u32, String), &'static str> {
    let (radix, digits) = match text.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &text[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &text[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &text[2..]),
        [b'0', _, ..] => (8, &text[1..]),
        _ => (10, text),
    };
    if digits.starts_with(['-', '+']) || !underscores_separate_digits(text.as_bytes()) {
        return Err(SYNTAX);
    }
    Ok((radix, digits.replace('_', "")))
}

/// A number in base 10, without prefixes and underscores: `strconv.Atoi`.
pub fn decimal(text: &str) -> Result<i64, &'static str> {
    text.parse().map_err(reason)
}

/// As [`decimal`], in 32 bits: klog's format of a level.
pub fn level(text: &str) -> Result<i32, &'static str> {
    text.parse().map_err(reason)
}

/// Go's rule: an underscore is between two digits, or between a base prefix and a digit. `text` has no sign.
pub(crate) fn underscores_separate_digits(text: &[u8]) -> bool {
    let (prefixed, rest) = match text {
        [b'0', base, rest @ ..] if b"bBoOxX".contains(base) => (true, rest),
        _ => (false, text),
    };
    let hex = prefixed && matches!(text[1], b'x' | b'X');
    let is_digit = |byte: u8| byte.is_ascii_digit() || (hex && byte.is_ascii_hexdigit());
    let before = |at: usize| if at == 0 { prefixed } else { is_digit(rest[at - 1]) };
    let after = |at: usize| rest.get(at + 1).copied().is_some_and(is_digit);
    rest.iter().enumerate().all(|(at, byte)| *byte != b'_' || (before(at) && after(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        let good = [
            ("0", 0),
            ("8090", 8090),
            ("+7", 7),
            ("-12", -12),
            ("0x1F", 31),
            ("0X1f", 31),
            ("-0x10", -16),
            ("0o17", 15),
            ("017", 15),
            ("0b101", 5),
            ("1_000", 1000),
            ("0x_1f", 31),
            ("0_7", 7),
            ("00", 0),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ];
        for (text, value) in good {
            assert_eq!(signed(text), Ok(value), "{text}");
        }
        for text in [
            "", "-", "+", "x", "0x", "08", "0b2", "1__0", "_1", "1_", "0x_", "1.0", "1e3", " 1", "--1",
            "0x1g",
        ] {
            assert_eq!(signed(text), Err(SYNTAX), "{text}");
        }
        for text in ["9223372036854775808", "-9223372036854775809", "0x1_0000_0000_0000_0000"] {
            assert_eq!(signed(text), Err(RANGE), "{text}");
        }
        assert_eq!(unsigned("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(unsigned("-1"), Err(SYNTAX));
        assert_eq!(unsigned("+1"), Err(SYNTAX));
    }

    #[test]
    fn levels_are_decimal() {
        assert_eq!((level("4"), level("-1"), level("+2")), (Ok(4), Ok(-1), Ok(2)));
        for text in ["", "0x4", "1_0", "-", "4.0"] {
            assert_eq!(level(text), Err(SYNTAX), "{text}");
        }
        assert_eq!(level("2147483648"), Err(RANGE));
    }
}
