//! Flags for the agent's id and for the hosts that it serves.

use std::ffi::OsString;

use flags::{FlagError, FlagSet, header_text, identity};
use uuid::Uuid;

use super::Identifiers;

/// The flags as written on the command line.
#[derive(Debug, Default)]
pub(super) struct RawFlags {
    agent_id: String,
    agent_identifiers: String,
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("This agent");
        set.add(
            "agent-id",
            &mut self.agent_id,
            "Unique id of this agent. Empty: the environment variable PROXY_AGENT_ID.",
        )
        .default_shown("PROXY_AGENT_ID, or a new UUID");
        set.add(
            "agent-identifiers",
            &mut self.agent_identifiers,
            "Hosts and networks by which servers choose this agent, URL-encoded: host=NAME, ipv4=ADDRESS, \
             ipv6=ADDRESS, cidr=BLOCK and default-route=true, joined by &.",
        );
    }

    pub(super) fn check(self, inherited_id: Option<OsString>) -> Result<(String, Identifiers), FlagError> {
        let id = identity("agent-id", self.agent_id, inherited_id, || Uuid::new_v4().to_string())?;
        header_text("agent-identifiers", &self.agent_identifiers)?;
        let identifiers = Identifiers::parse(&self.agent_identifiers).map_err(|error| {
            FlagError::value(
                "agent-identifiers",
                format_args!("{:?}", self.agent_identifiers),
                error.to_string(),
            )
        })?;
        Ok((id, identifiers))
    }
}
