//! Losses by reason: packets without effect, and broken connections.
//!
//! The Go programs have no such families. No loss is silent here.

use mux::{Cause, Dropped};
use prometheus_client::registry::Registry;

use super::CountBy;

/// Why a packet had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// A packet of an unknown type.
    UnknownType,
    /// A known type without its payload, or a message that is not a packet.
    Malformed,
    /// The core could not use the packet.
    Core(Dropped),
}

impl DropReason {
    fn name(self) -> &'static str {
        match self {
            DropReason::UnknownType => "unknown_type",
            DropReason::Malformed => "malformed",
            DropReason::Core(dropped) => dropped.label(),
        }
    }
}

impl From<Dropped> for DropReason {
    fn from(dropped: Dropped) -> Self {
        DropReason::Core(dropped)
    }
}

crate::label!(DropReason in "reason");

/// `dropped_packets_total` {reason}.
#[derive(Debug, Clone)]
pub struct Drops(CountBy<DropReason>);

impl Drops {
    /// Registers the family; it appears with the first loss.
    pub fn register(registry: &mut Registry) -> Self {
        Self(CountBy::register(
            registry,
            "dropped_packets_total",
            "Packets that were dropped because they violate the protocol, by reason",
        ))
    }

    /// Counts one packet.
    pub fn count(&self, reason: impl Into<DropReason>) {
        self.0.count(reason.into());
    }
}

crate::label!(struct ResetReason in "reason");

/// `connection_resets_total` {reason}.
#[derive(Debug, Clone)]
pub struct Resets(CountBy<ResetReason>);

impl Resets {
    /// Registers the family; it appears with the first reset.
    pub fn register(registry: &mut Registry) -> Self {
        let help = "Connections that lost data before the receiver had read it, by reason";
        Self(CountBy::register(registry, "connection_resets_total", help))
    }

    /// Counts one connection.
    pub fn count(&self, cause: &Cause) {
        self.0.count(ResetReason(cause.label()));
    }
}
