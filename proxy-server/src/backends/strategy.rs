//! The values of `--proxy-strategies` and `--readiness-policy`.

/// A strategy to choose an agent for a dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// A random agent.
    Default,
    /// The agent that announced the target's host among its identifiers.
    DestHost,
    /// An agent that announced `default-route=true`.
    DefaultRoute,
}

impl Strategy {
    /// The name in flags and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::DestHost => "destHost",
            Self::DefaultRoute => "defaultRoute",
        }
    }
}

/// How one of several suitable agents is chosen: `--agent-selection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// Of two random agents the one with the lower expected dial time, then with less waiting bytes.
    #[default]
    LeastLoaded,
    /// A random agent; for destHost the first registered one.
    Random,
}

/// Which strategies must have an agent for the server to be ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadinessPolicy {
    /// The first strategy, as in Go.
    #[default]
    FirstStrategy,
    /// At least one strategy.
    Any,
    /// Every strategy.
    All,
}
