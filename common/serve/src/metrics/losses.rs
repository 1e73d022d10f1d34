//! Losses by reason: packets without effect, and broken connections.
//!
//! The Go programs have no such families. No loss is silent here.

use mux::{Cause, Dropped};
use prometheus_client::registry::Registry;

use super::CountBy;

crate::label!(struct DropReason in "reason");

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
    pub fn count(&self, reason: Dropped) {
        self.0.count(DropReason(reason.label()));
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
