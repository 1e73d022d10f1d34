//! Value formats of Go's standard library. No parser trims blanks, as in Go.

/// A boolean in one of the twelve spellings of `strconv.ParseBool`; `yes`, `on` and the empty text are not among them.
pub fn boolean(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it must be true or false (or 1, 0, t, f, T, F, TRUE, FALSE, True, False)"),
    }
}

/// An integer as by `strconv.ParseInt` with base 0: an optional sign, an optional base prefix (`0x`, `0o`, `0b`, or a bare `0`
/// for octal), and digits among which underscores may stand.
pub fn integer<T: TryFrom<i128>>(text: &str) -> Result<T, &'static str> {
    const SYNTAX: &str = "it must be a whole number (10, 0x1f, 0o17, 0b11 and 1_000 are read)";
    let (sign, rest) = text.split_at(usize::from(text.starts_with(['-', '+'])));
    let (radix, digits) = match rest.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &rest[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &rest[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &rest[2..]),
        [b'0', _, ..] => (8, &rest[1..]),
        _ => (10, rest),
    };
    if digits.starts_with(['-', '+']) {
        return Err(SYNTAX);
    }
    let number = i128::from_str_radix(&format!("{sign}{}", digits.replace('_', "")), radix);
    number.map_err(|_| SYNTAX)?.try_into().map_err(|_| "the number is out of range")
}

/// Elements separated by commas; also as Go prints them: `[a,b]` is `a,b`. The empty text and `[]` are the empty list.
pub fn list(text: &str) -> Vec<String> {
    let text = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if text.is_empty() { Vec::new() } else { text.split(',').map(str::to_owned).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(boolean(text), Ok(true), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(boolean(text), Ok(false), "{text}");
        }
        for text in ["", "yes", "no", "on", "tRUE", " true", "2"] {
            assert!(boolean(text).is_err(), "{text}");
        }
    }

    #[test]
    fn integers() {
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
            assert_eq!(integer(text), Ok(value), "{text}");
        }
        for text in ["", "-", "+", "x", "0x", "08", "0b2", "0x_", "1.0", "1e3", " 1", "--1", "0x1g", "0x-1"] {
            assert!(integer::<i64>(text).is_err_and(|why| why.contains("whole number")), "{text}");
        }
        for text in ["9223372036854775808", "-9223372036854775809", "0x1_0000_0000_0000_0000"] {
            assert_eq!(integer::<i64>(text), Err("the number is out of range"), "{text}");
        }
        assert_eq!(integer("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(integer::<u64>("-1"), Err("the number is out of range"));
    }

    #[test]
    fn lists() {
        let rows: [(&str, &[&str]); 7] = [
            ("", &[]),
            ("[]", &[]),
            ("a", &["a"]),
            ("a,b", &["a", "b"]),
            ("[a,b]", &["a", "b"]),
            ("a,", &["a", ""]),
            (" a, b", &[" a", " b"]),
        ];
        for (text, items) in rows {
            assert_eq!(list(text), items, "{text}");
        }
    }
}
