//! Floating-point numbers: `strconv.ParseFloat` with 32 bits.

use super::integer::underscores_separate_digits;

const SYNTAX: &str = "it must be a number (5, 0.5, 1e2)";
const RANGE: &str = "the number is out of range";

/// Parses a decimal number, `inf`, `infinity` or `nan`. Hexadecimal numbers, which Go reads, are refused.
pub fn parse(text: &str) -> Result<f32, &'static str> {
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let signed_nan = rest != text && rest.eq_ignore_ascii_case("nan");
    if signed_nan || !underscores_separate_digits(rest.as_bytes()) {
        return Err(SYNTAX);
    }
    let number: f32 = text.replace('_', "").parse().map_err(|_| SYNTAX)?;
    let named = !rest.contains(|c: char| c.is_ascii_digit());
    if number.is_infinite() && !named { Err(RANGE) } else { Ok(number) }
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
            ("inf", f32::INFINITY),
            ("-Infinity", f32::NEG_INFINITY),
        ];
        for (text, value) in good {
            assert_eq!(parse(text), Ok(value), "{text}");
        }
        assert!(parse("NaN").unwrap().is_nan());
        for text in ["", ".", "-", "1e", "0x1", "0xp1", "infin", "+nan", "--1", "1 ", "1__0", "x", "0x1p"] {
            assert_eq!(parse(text), Err(SYNTAX), "{text}");
        }
        assert_eq!(parse("1e39"), Err(RANGE));
    }
}
