//! Losses by reason: packets without effect, and broken connections.
//!
//! The Go programs have no such families. No loss is silent here.

use mux::{Cause, Dropped};

use super::CountBy;

crate::label!(struct DropReason in "reason");
crate::label!(struct ResetReason in "reason");

crate::families! {
    /// What was lost; a family appears with the first loss.
    pub struct Losses {
        drops: CountBy<DropReason> = "dropped_packets_total",
            "Packets that were dropped because they violate the protocol, by reason";
        resets: CountBy<ResetReason> = "connection_resets_total",
            "Connections that lost data before the receiver had read it, by reason";
    }
}

impl Losses {
    /// Counts one packet.
    pub fn dropped(&self, reason: Dropped) {
        self.drops.count(DropReason(reason.label()));
    }

    /// Counts one connection.
    pub fn reset(&self, cause: &Cause) {
        self.resets.count(ResetReason(cause.label()));
    }
}
