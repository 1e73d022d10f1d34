//! Wall-clock time as the API writes it: RFC 3339, microseconds, UTC.
//!
//! The one place beside the log that reads the wall clock, and only through a [`Clock`] that tests replace.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MICROS: i64 = 1_000_000;
const DAY: i64 = 86_400;

/// A moment: whole microseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i64);

/// Tells the time. Clones tell the same.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Moment + Send + Sync>);

impl Clock {
    /// The system's.
    pub fn system() -> Self {
        #[allow(clippy::disallowed_methods, reason = "this is the lease clock")]
        let now = || {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Moment(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
        };
        Self(Arc::new(now))
    }

    /// A clock of the caller's.
    pub fn new(now: impl Fn() -> Moment + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// What it shows.
    pub fn now(&self) -> Moment {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

impl Moment {
    /// From whole microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From whole seconds since 1970.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(MICROS))
    }

    /// Later by this much.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The time from `earlier` to this; zero if it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Reads RFC 3339, with any number of decimals and any offset.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let number = |from: usize, to: usize| -> Option<i64> {
            let digits = text.get(from..to)?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        let is = |at: usize, byte: u8| bytes.get(at) == Some(&byte);
        let separated = is(4, b'-') && is(7, b'-') && is(13, b':') && is(16, b':');
        if !separated || !matches!(bytes.get(10), Some(b'T' | b't')) {
            return None;
        }
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60;
        if !in_range || second > 60 {
            return None;
        }
        let (micros, zone) = fraction(text.get(19..)?)?;
        let seconds = days(year, month, day) * DAY + hour * 3_600 + minute * 60 + second - offset(zone)?;
        Some(Self(seconds * MICROS + micros))
    }
}

/// Microseconds of `.123456789`, if there is such a part, and what stands behind it.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, zone) = rest.split_at(end);
    if digits.is_empty() {
        return None;
    }
    let micros = digits.bytes().chain(std::iter::repeat(b'0')).take(6);
    Some((micros.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')), zone))
}

/// Seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = match zone.strip_prefix('+') {
        Some(rest) => (1, rest),
        None => (-1, zone.strip_prefix('-')?),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let two = |text: &str| -> Option<i64> {
        (text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
    };
    Some(sign * (two(hours)? * 3_600 + two(minutes)? * 60))
}

/// Days from 1970-01-01 in the Gregorian calendar. Source: Howard Hinnant, "chrono-compatible low-level date
/// algorithms" (public domain).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The inverse of [`days`].
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

impl fmt::Display for Moment {
    /// As the API's MicroTime: `2026-11-21T19:52:54.000001Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0.div_euclid(MICROS), self.0.rem_euclid(MICROS));
        let (year, month, day) = civil(seconds.div_euclid(DAY));
        let of_day = seconds.rem_euclid(DAY);
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A time that somebody else wrote: what is no time counts as none, so that one bad object spoils no list.
pub(crate) fn lenient<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Moment>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(value.as_str().and_then(Moment::parse))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc_3339_is_read_and_written() {
        let rows = [
            ("1970-01-01T00:00:00Z", 0, "1970-01-01T00:00:00.000000Z"),
            ("2026-11-21T19:52:54.000001Z", 1_795_290_774_000_001, "2026-11-21T19:52:54.000001Z"),
            ("2000-02-29T23:59:59.9999999Z", 951_868_799_999_999, "2000-02-29T23:59:59.999999Z"),
            ("2024-03-01T01:30:00+01:30", 1_709_251_200_000_000, "2024-03-01T00:00:00.000000Z"),
            ("1969-12-31T23:59:59.5Z", -500_000, "1969-12-31T23:59:59.500000Z"),
        ];
        for (text, micros, written) in rows {
            let moment = Moment::parse(text).unwrap();
            assert_eq!(moment, Moment::from_micros(micros), "{text}");
            assert_eq!(moment.to_string(), written);
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        let none = ["", "2026", "2026-13-01T00:00:00Z", "2026-11-21T25:00:00Z", "2026-11-21 19:52:54Z"];
        let more =
            ["2026-11-21T19:52:54", "2026-11-21T19:52:54.Z", "2026-11-21T19:52:54+1", "20é6-11-21T19:52:54Z"];
        for text in none.into_iter().chain(more) {
            assert_eq!(Moment::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(micros in -62_000_000_000_000_000_i64..250_000_000_000_000_000) {
            let moment = Moment::from_micros(micros);
            prop_assert_eq!(Moment::parse(&moment.to_string()), Some(moment));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,40}") {
            let _ = Moment::parse(&text);
        }
    }
}
