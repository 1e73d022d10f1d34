//! Durations: `time.ParseDuration` and `Duration.String`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration as in Go: signed nanoseconds in 64 bits, up to about 292 years in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    nanoseconds: i64,
}

impl GoDuration {
    /// A duration of zero.
    pub const ZERO: Self = Self { nanoseconds: 0 };

    /// The duration for monotonic clocks: a negative one becomes zero.
    pub fn or_zero(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanoseconds).unwrap_or(0))
    }
}

/// For display in Go's format; at most about 292 years.
impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self { nanoseconds: i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX) }
    }
}

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid =
            || "it must be a duration such as 300ms, 10s, 1m30s, 1h or 0 (at most some 292 years)".to_owned();
        let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total = 0_i128;
        while !rest.is_empty() {
            let is_number = |c: char| c == '.' || c.is_ascii_digit();
            let (number, tail) = rest.split_at(rest.find(|c| !is_number(c)).unwrap_or(rest.len()));
            let (name, behind) = tail.split_at(tail.find(is_number).unwrap_or(tail.len()));
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            // Further digits are below a nanosecond.
            let fraction = &fraction[..fraction.len().min(15)];
            // A second point and a number without digits do not parse.
            let digits: i128 = format!("{whole}{fraction}").parse().map_err(|_| invalid())?;
            let nanoseconds = digits.checked_mul(unit(name)?).ok_or_else(invalid)?;
            total = total.saturating_add(nanoseconds / 10_i128.pow(fraction.len() as u32));
            rest = behind;
        }
        let signed = if text.starts_with('-') { -total } else { total };
        Ok(Self { nanoseconds: i64::try_from(signed).map_err(|_| invalid())? })
    }
}

/// The nanoseconds of a unit.
fn unit(name: &str) -> Result<i128, String> {
    match name {
        "ns" => Ok(1),
        // The micro sign and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => Ok(1_000),
        "ms" => Ok(1_000_000),
        "s" => Ok(1_000_000_000),
        "m" => Ok(60_000_000_000),
        "h" => Ok(3_600_000_000_000),
        "" => Err("the unit is missing (ns, us, ms, s, m or h, as in 10s)".to_owned()),
        other => Err(format!("unknown unit {other:?} (ns, us, ms, s, m and h are known)")),
    }
}

/// Go's format: `1h0m0s`, `1.5s`, `100ms`, `0s`.
impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = Duration::from_nanos(self.nanoseconds.unsigned_abs());
        f.write_str(if self.nanoseconds < 0 { "-" } else { "" })?;
        match total.as_secs() {
            0 if total.is_zero() => return f.write_str("0s"),
            0 => return write!(f, "{total:?}"),
            1..60 => {}
            seconds @ 60..3_600 => write!(f, "{}m", seconds / 60)?,
            seconds => write!(f, "{}h{}m", seconds / 3_600, seconds / 60 % 60)?,
        }
        let seconds = total.as_secs() % 60;
        match total.subsec_nanos() {
            0 => write!(f, "{seconds}s"),
            nanos => write!(f, "{seconds}.{}s", format!("{nanos:09}").trim_end_matches('0')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings() {
        let (s, m, h) = (1_000_000_000_i64, 60_000_000_000_i64, 3_600_000_000_000_i64);
        let good = [
            ("0", 0),
            ("-0", 0),
            ("+0", 0),
            ("0s", 0),
            ("5s", 5 * s),
            ("1478s", 1478 * s),
            ("-5s", -5 * s),
            ("+5s", 5 * s),
            ("5.0s", 5 * s),
            ("5.6s", 5 * s + 600_000_000),
            ("5.s", 5 * s),
            (".5s", 500_000_000),
            ("1.0040s", s + 4_000_000),
            ("100.00100s", 100 * s + 1_000_000),
            ("10ns", 10),
            ("1ns", 1),
            ("11us", 11_000),
            ("12\u{b5}s", 12_000),
            ("12\u{3bc}s", 12_000),
            ("13ms", 13_000_000),
            ("14s", 14 * s),
            ("15m", 15 * m),
            ("16h", 16 * h),
            ("1h0m0s", h),
            ("3h30m", 3 * h + 30 * m),
            ("10.5s4m", 4 * m + 10 * s + 500_000_000),
            ("-2m3.4s", -(2 * m + 3 * s + 400_000_000)),
            ("1h2m3s4ms5us6ns", h + 2 * m + 3 * s + 4_005_006),
            ("39h9m14.425s", 39 * h + 9 * m + 14 * s + 425_000_000),
            ("52763797000ns", 52_763_797_000),
            ("9007199254740993ns", 9_007_199_254_740_993),
            ("9223372036854775807ns", i64::MAX),
            ("9223372036854775.807us", i64::MAX),
            ("9223372036s854ms775us807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("-9223372036854775.808us", i64::MIN),
            ("-9223372036s854ms775us808ns", i64::MIN),
            ("0.100000000000000000000h", 6 * m),
            ("0.830103483285477580700h", 49 * m + 48 * s + 372_539_827),
        ];
        for (text, nanoseconds) in good {
            assert_eq!(text.parse(), Ok(GoDuration { nanoseconds }), "{text}");
        }
    }

    #[test]
    fn refusals() {
        let invalid = [
            "",
            "-",
            "+",
            ".",
            "-.",
            ".s",
            "+.s",
            "s",
            " 1s",
            "1s ",
            "1 s",
            "--1s",
            "1s-2s",
            "-1",
            "1s2",
            "9223372036854775810ns",
            "9223372036854775808ns",
            "-9223372036854775809ns",
            "9223372036854776us",
            "3000000h",
            "9223372036854775.808us",
            "99999999999999999999s",
            "1.s.",
            "9223372036854775808ns9223372036854775808ns",
        ];
        for text in invalid {
            assert!(text.parse::<GoDuration>().is_err(), "{text}");
        }
        let why = |text: &str| text.parse::<GoDuration>().unwrap_err();
        assert!(why("3").starts_with("the unit is missing"));
        assert!(why("1d").starts_with("unknown unit \"d\"") && why("1S").starts_with("unknown unit \"S\""));
    }

    #[test]
    fn printed_as_go_prints() {
        let table = [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (3_600_000_000_000, "1h0m0s"),
            (-1_000_000_000, "-1s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ];
        for (nanoseconds, text) in table {
            assert_eq!(GoDuration { nanoseconds }.to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn printed_durations_are_read_back(nanoseconds: i64) {
            let duration = GoDuration { nanoseconds };
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[-+.0-9nusmh\u{b5}]{0,40}|\\PC{0,20}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
