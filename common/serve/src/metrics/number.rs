//! Formats numbers as Go's `strconv.FormatFloat(f, 'g', -1, 64)`, which Prometheus clients in Go use.

/// The shortest decimal that parses to the same value; with an exponent of at least two digits below 1e-4 and from 1e6
/// on.
pub(super) fn format(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..EXPONENT_FROM).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// The smallest power of ten that is written with an exponent. Source: `formatDigits` of Go's package strconv, where
/// the shortest format uses 6 here (`%v` uses 21).
const EXPONENT_FROM: i32 = 6;

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn as_go_prints_them() {
        // Printed by `strconv.FormatFloat(f, 'g', -1, 64)` of go1.26.
        let table = [
            (1e-06, "1e-06"),
            (1e-05, "1e-05"),
            (0.0001, "0.0001"),
            (0.005, "0.005"),
            (12.5, "12.5"),
            (0.0, "0"),
            (1.0, "1"),
            (-3.0, "-3"),
            (86400.0, "86400"),
            (999_999.0, "999999"),
            (1e6, "1e+06"),
            (1_048_576.0, "1.048576e+06"),
            (123_456_789.0, "1.23456789e+08"),
            (1.000_000_000_5e9, "1.0000000005e+09"),
            (1.5e20, "1.5e+20"),
            (1e21, "1e+21"),
            (1.7e308, "1.7e+308"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ];
        for (value, text) in table {
            assert_eq!(format(value), text);
        }
    }
}
