//! Two cores joined by a simulated stream, with simulated local ends, checked end to end.
//!
//! [`world::World`] is the whole system as data: both links, the two lanes of packets between them, the local ends with
//! their numbered bytes, the clock. [`explore`] visits every state that a [`scenario::Scenario`] can reach; random
//! walks take the same actions in random order.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod around;
pub(crate) mod check;
pub(crate) mod ends;
pub(crate) mod explore;
pub(crate) mod scenario;
pub(crate) mod world;

/// One end of the agent stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// Sends dials; its local ends are frontends.
    Server,
    /// Receives dials; its local ends are endpoints.
    Agent,
}

impl Role {
    /// The other end.
    pub(crate) fn other(self) -> Role {
        match self {
            Role::Server => Role::Agent,
            Role::Agent => Role::Server,
        }
    }
}

/// An error describes the rule that was broken.
pub(crate) type Checked = Result<(), String>;

/// Returns an error unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}
