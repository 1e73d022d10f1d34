//! Integers: `strconv.ParseInt` and `ParseUint` with base 0, as pflag calls them.

/// Why a text is not an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IntegerError {
    /// Not a number.
    #[error("it must be a whole number (10, 0x1f, 0o17, 0b11 and 1_000 are read)")]
    Syntax,
    /// Beyond 64 bits.
    #[error("the number is out of range")]
    Range,
}

/// A signed number with an optional sign and an optional base prefix (`0x`, `0o`, `0b`, or a bare `0` for octal).
/// Underscores may separate digits.
pub fn signed(text: &str) -> Result<i64, IntegerError> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = i128::from(unsigned(digits)?);
    i64::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| IntegerError::Range)
}

/// As [`signed`], without a sign.
pub fn unsigned(text: &str) -> Result<u64, IntegerError> {
    let bytes = text.as_bytes();
    let (radix, digits) = match bytes {
        [b'0', b'x' | b'X', digits @ ..] if !digits.is_empty() => (16, digits),
        [b'0', b'o' | b'O', digits @ ..] if !digits.is_empty() => (8, digits),
        [b'0', b'b' | b'B', digits @ ..] if !digits.is_empty() => (2, digits),
        [b'0', digits @ ..] if !digits.is_empty() => (8, digits),
        _ => (10, bytes),
    };
    if digits.is_empty() || !underscores_separate_digits(bytes) {
        return Err(IntegerError::Syntax);
    }
    let values = digits.iter().filter(|byte| **byte != b'_').map(|byte| char::from(*byte).to_digit(radix));
    let values: Vec<u32> = values.collect::<Option<_>>().ok_or(IntegerError::Syntax)?;
    let grow = |total: u64, digit: &u32| total.checked_mul(radix.into())?.checked_add((*digit).into());
    values.iter().try_fold(0, grow).ok_or(IntegerError::Range)
}

/// A number in base 10, without prefixes and underscores: `strconv.Atoi`.
pub fn decimal(text: &str) -> Result<i64, IntegerError> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(IntegerError::Syntax);
    }
    text.parse().map_err(|_| IntegerError::Range)
}

/// As [`decimal`], in 32 bits: klog's format of a level.
pub fn level(text: &str) -> Result<i32, IntegerError> {
    i32::try_from(decimal(text)?).map_err(|_| IntegerError::Range)
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
            assert_eq!(signed(text), Err(IntegerError::Syntax), "{text}");
        }
        for text in ["9223372036854775808", "-9223372036854775809", "0x1_0000_0000_0000_0000"] {
            assert_eq!(signed(text), Err(IntegerError::Range), "{text}");
        }
        assert_eq!(unsigned("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(unsigned("-1"), Err(IntegerError::Syntax));
        assert_eq!(unsigned("+1"), Err(IntegerError::Syntax));
    }

    #[test]
    fn levels_are_decimal() {
        assert_eq!((level("4"), level("-1"), level("+2")), (Ok(4), Ok(-1), Ok(2)));
        for text in ["", "0x4", "1_0", "-", "4.0"] {
            assert_eq!(level(text), Err(IntegerError::Syntax), "{text}");
        }
        assert_eq!(level("2147483648"), Err(IntegerError::Range));
    }
}
