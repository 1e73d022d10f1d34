//! Flags of who this agent is and which hosts it serves best.

use std::ffi::OsString;

use flags::{FlagSet, Refusal, header_text, identity};
use uuid::Uuid;

use super::Identifiers;

/// The flags as they are written.
#[derive(Debug, Default)]
pub(super) struct Lines {
    agent_id: String,
    agent_identifiers: String,
}

impl Lines {
    pub(super) fn lend<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("This agent");
        set.add(
            "agent-id",
            &mut self.agent_id,
            "Id of this agent, different from every other's. The environment's PROXY_AGENT_ID serves when the flag is \
             empty.",
        )
        .default_shown("PROXY_AGENT_ID, or a new UUID");
        set.add(
            "agent-identifiers",
            &mut self.agent_identifiers,
            "What servers know this agent by when they choose one, URL-encoded: host=NAME, ipv4=ADDRESS, ipv6=ADDRESS, \
             cidr=BLOCK and default-route=true, joined by &.",
        );
    }

    pub(super) fn check(self, inherited_id: Option<OsString>) -> Result<(String, Identifiers), Refusal> {
        let id = identity("agent-id", self.agent_id, inherited_id, || Uuid::new_v4().to_string())?;
        header_text("agent-identifiers", &self.agent_identifiers)?;
        let identifiers = Identifiers::parse(&self.agent_identifiers).map_err(|error| {
            Refusal::value(
                "agent-identifiers",
                format_args!("{:?}", self.agent_identifiers),
                error.to_string(),
            )
        })?;
        Ok((id, identifiers))
    }
}
