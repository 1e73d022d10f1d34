//! The core's clock: a duration since the link's start, handed in by the shell.

use std::time::Duration;

/// A moment, as the time that passed since the link's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time(Duration);

impl Time {
    /// The link's start.
    pub const START: Time = Time(Duration::ZERO);

    /// The moment `since_start` after the link's start.
    pub const fn from_start(since_start: Duration) -> Self {
        Time(since_start)
    }

    /// How long after the link's start this is.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// The moment `by` later (saturating).
    #[must_use]
    pub const fn after(self, by: Duration) -> Self {
        Time(self.0.saturating_add(by))
    }

    /// How long `earlier` was ago, zero if it lies ahead.
    pub const fn since(self, earlier: Time) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
