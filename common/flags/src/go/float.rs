//! Floating-point numbers: `strconv.ParseFloat` with 32 bits.

use super::integer::underscores_separate_digits;

/// Why a text is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FloatError {
    /// Not a number.
    #[error("it must be a number (5, 0.5, 1e2)")]
    Syntax,
    /// Beyond 32 bits.
    #[error("the number is out of range")]
    Range,
}

/// Parses a decimal or (with `0x` and a `p` exponent) hexadecimal number, `inf`, `infinity` or `nan`.
pub fn parse(text: &str) -> Result<f32, FloatError> {
    let (sign, rest) = match text.as_bytes() {
        [b'-', ..] => (-1.0, &text[1..]),
        [b'+', ..] => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    if ["inf", "infinity"].iter().any(|name| rest.eq_ignore_ascii_case(name)) {
        return Ok(sign * f32::INFINITY);
    }
    if text.eq_ignore_ascii_case("nan") {
        return Ok(f32::NAN);
    }
    // The rest must start with a digit: Rust's parser would accept a second sign and more names.
    if !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        || !underscores_separate_digits(rest.as_bytes())
    {
        return Err(FloatError::Syntax);
    }
    let digits = rest.replace('_', "").to_ascii_lowercase();
    let magnitude = match digits.strip_prefix("0x") {
        Some(hex) => hexadecimal(hex).ok_or(FloatError::Syntax)?,
        None => digits.parse().map_err(|_| FloatError::Syntax)?,
    };
    if magnitude.is_infinite() { Err(FloatError::Range) } else { Ok(sign * magnitude) }
}

/// `h.hhp±d` without its `0x`. More than 16 significant digits lose precision, which 32 bits do not show.
fn hexadecimal(text: &str) -> Option<f32> {
    let (mantissa, exponent) = text.split_once('p')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0_f64;
    for digit in whole.chars().chain(fraction.chars()) {
        value = value * 16.0 + f64::from(digit.to_digit(16)?);
    }
    let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let limit = if exponent.starts_with('-') { -100_000 } else { 100_000 };
    let exponent: i32 = exponent.parse().unwrap_or(limit).clamp(-100_000, 100_000);
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX).saturating_mul(4);
    #[expect(clippy::cast_possible_truncation, reason = "rounding to 32 bits is the purpose")]
    Some((value * 2.0_f64.powi(exponent.saturating_sub(places))) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        let good = [
            ("0", 0.0),
            ("5", 5.0),
            ("-0.5", -0.5),
            ("+1.", 1.0),
            (".5", 0.5),
            ("1e2", 100.0),
            ("1_000.5", 1000.5),
            ("0x1p-2", 0.25),
            ("0X1.8P1", 3.0),
            ("inf", f32::INFINITY),
            ("-Infinity", f32::NEG_INFINITY),
        ];
        for (text, value) in good {
            assert_eq!(parse(text), Ok(value), "{text}");
        }
        assert!(parse("NaN").unwrap().is_nan());
        for text in ["", ".", "-", "1e", "0x1", "0xp1", "infin", "+nan", "--1", "1 ", "1__0", "x", "0x1p"] {
            assert_eq!(parse(text), Err(FloatError::Syntax), "{text}");
        }
        assert_eq!(parse("1e39"), Err(FloatError::Range));
        assert_eq!(parse("0x1p99999999999"), Err(FloatError::Range));
    }
}
