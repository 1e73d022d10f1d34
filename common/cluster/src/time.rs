//! Wall-clock time in the API's format: RFC 3339, microseconds, UTC.
//!
//! Besides the log, only this module reads the wall clock, through a [`Clock`] that tests replace.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

const MICROS: i64 = 1_000_000;

/// A point in time: whole microseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i64);

/// A source of the current time. Clones share it.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Moment + Send + Sync>);

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        #[allow(clippy::disallowed_methods, reason = "this is the lease clock")]
        let now = || {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Moment(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
        };
        Self(Arc::new(now))
    }

    /// The caller's clock.
    pub fn new(now: impl Fn() -> Moment + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The current time.
    pub fn now(&self) -> Moment {
        (self.0)()
    }
}

impl Moment {
    /// From whole seconds since 1970.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(MICROS))
    }

    /// The time `by` later.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The duration since `earlier`; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Parses RFC 3339, with any number of decimals and any offset.
    pub fn parse(text: &str) -> Option<Self> {
        // `time` accepts any separator.
        if !matches!(text.as_bytes().get(10), Some(b'T' | b't')) {
            return None;
        }
        let nanos = OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp_nanos();
        i64::try_from(nanos.div_euclid(1_000)).ok().map(Self)
    }
}

const MICRO_TIME: &[BorrowedFormatItem<'_>] =
    format_description!(version = 2, "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

impl fmt::Display for Moment {
    /// The API's MicroTime: `2026-11-21T19:52:54.000001Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = OffsetDateTime::UNIX_EPOCH.saturating_add(time::Duration::microseconds(self.0));
        f.write_str(&moment.format(MICRO_TIME).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Deserializes another program's time. An invalid time counts as none, so that one bad object does not spoil a list.
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
            assert_eq!(moment, Moment(micros), "{text}");
            assert_eq!(moment.to_string(), written);
        }
    }

    #[test]
    fn invalid_times_are_rejected() {
        let none = ["", "2026", "2026-13-01T00:00:00Z", "2026-11-21T25:00:00Z", "2026-11-21 19:52:54Z"];
        let more =
            ["2026-11-21T19:52:54", "2026-11-21T19:52:54.Z", "2026-11-21T19:52:54+1", "20é6-11-21T19:52:54Z"];
        for text in none.into_iter().chain(more) {
            assert_eq!(Moment::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn written_times_are_read_back(micros in -62_000_000_000_000_000_i64..250_000_000_000_000_000) {
            let moment = Moment(micros);
            prop_assert_eq!(Moment::parse(&moment.to_string()), Some(moment));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,40}") {
            let _ = Moment::parse(&text);
        }
    }
}
