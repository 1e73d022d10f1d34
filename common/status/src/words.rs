//! Amounts and times in words.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 60.0 * MINUTE;
/// Seconds in a day.
pub const DAY: f64 = 24.0 * HOUR;
const YEAR: f64 = 365.0 * DAY;

/// For instance `1.5 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let mut amount = count as f64;
    if amount < 1024.0 {
        return format!("{count} B");
    }
    let mut unit = "";
    for name in UNITS {
        (amount, unit) = (amount / 1024.0, name);
        if amount < 1023.5 {
            break;
        }
    }
    format!("{amount:.*} {unit}", usize::from(amount < 9.95))
}

/// With separators between thousands, for instance `16,000`.
pub fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number with its noun, for instance `1 agent`.
pub fn count(count: u64, noun: &str) -> String {
    format!("{} {}", number(count), plural(count, noun))
}

/// The noun of a number.
pub fn plural(count: u64, noun: &str) -> String {
    format!("{noun}{}", if count == 1 { "" } else { "s" })
}

/// For instance `250 µs`, `12 ms`, `1.5 s`, `3 min`, `2 h 5 min`, `3 d 4 h` or `1 y 20 d`. A negative
/// time, from a clock that was set back, is 0.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    let two = |large: f64, unit: &str, small: f64, rest: &str| match (seconds % large / small).floor() {
        0.0 => format!("{:.0} {unit}", (seconds / large).floor()),
        part => format!("{:.0} {unit} {part:.0} {rest}", (seconds / large).floor()),
    };
    match seconds {
        seconds if seconds < 0.000_999_5 => format!("{:.0} µs", seconds * 1e6),
        seconds if seconds < 0.999_5 => format!("{:.*} ms", usize::from(seconds < 0.009_95), seconds * 1e3),
        seconds if seconds < 9.95 => format!("{seconds:.1} s"),
        seconds if seconds < 2.0 * MINUTE => format!("{seconds:.0} s"),
        seconds if seconds < HOUR => format!("{:.0} min", (seconds / MINUTE).floor()),
        seconds if seconds < DAY => two(HOUR, "h", MINUTE, "min"),
        seconds if seconds < YEAR => two(DAY, "d", HOUR, "h"),
        _ => two(YEAR, "y", DAY, "d"),
    }
}

/// The seconds from one RFC 3339 time to another, negative if the second is the earlier one; `None` if a text is no time.
pub fn seconds(from: &str, to: &str) -> Option<f64> {
    let parse = |text| OffsetDateTime::parse(text, &Rfc3339).ok();
    Some((parse(to)? - parse(from)?).as_seconds_f64())
}

/// For instance `12 s ago`; empty if a text is no time.
pub fn ago(time: &str, now: &str) -> String {
    seconds(time, now).map(|age| duration(age) + " ago").unwrap_or_default()
}

/// Whether the character could forge a line, or make a terminal or a browser display it differently: control characters,
/// invisible characters, and those that change the direction of text.
pub fn is_deceptive(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        for (amount, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_024, "1.0 KiB"),
            (15_000, "15 KiB"),
            (1_048_575, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(amount), text);
        }
        assert_eq!((number(999).as_str(), number(1_234_567).as_str()), ("999", "1,234,567"));
        assert_eq!(
            (count(1, "agent").as_str(), count(16_000, "agent").as_str()),
            ("1 agent", "16,000 agents")
        );
    }

    #[test]
    fn durations_have_units() {
        for (seconds, text) in [
            (-3_600.0, "0 µs"),
            (0.000_25, "250 µs"),
            (0.001_23, "1.2 ms"),
            (0.25, "250 ms"),
            (1.5, "1.5 s"),
            (59.9, "60 s"),
            (125.0, "2 min"),
            (7_500.0, "2 h 5 min"),
            (3_600.0, "1 h"),
            (3.0 * DAY + 4.0 * HOUR, "3 d 4 h"),
            (YEAR + 20.0 * DAY, "1 y 20 d"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn times_are_parsed() {
        let (start, end) = ("1970-01-01T00:00:00Z", "1970-01-01T00:01:00.500Z");
        assert_eq!(
            (seconds(start, end), seconds(end, start), seconds("", end)),
            (Some(60.5), Some(-60.5), None)
        );
        assert_eq!([ago(start, end), ago(end, start), ago("x", end)], ["60 s ago", "0 µs ago", ""]);
    }
}
