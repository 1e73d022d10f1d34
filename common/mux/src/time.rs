//! The core's clock: the time since the link's start, passed in by the driver.

use std::time::Duration;

/// A point in time, as the duration since the link's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time(Duration);

impl Time {
    /// The link's start.
    pub const START: Time = Time(Duration::ZERO);

    /// The time `since_start` after the link's start.
    pub const fn from_start(since_start: Duration) -> Self {
        Time(since_start)
    }

    /// The duration since the link's start.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// The time `by` later (saturating).
    #[must_use]
    pub const fn after(self, by: Duration) -> Self {
        Time(self.0.saturating_add(by))
    }

    /// The duration since `earlier`; zero if `earlier` lies in the future.
    pub const fn since(self, earlier: Time) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
