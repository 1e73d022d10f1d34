//! Decides which agents the agent port admits: authenticates them, and checks their claims against their identity.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;
use serve::logs::{LogLimit, Peer};

use super::connect_metadata::ConnectMetadata;
use super::handle::LinkHandle;
use crate::auth::{AgentAuth, AgentPeer, Binding, Identity, Party};
use crate::backends::{BackendManager, RegisterError};
use crate::metrics::{Claim, ClaimAction, Metrics};

/// What the server does about claims that do not follow from an agent's identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityBinding {
    /// Nothing: the server does not check claims.
    Off,
    /// Log and count them.
    #[default]
    Log,
    /// Refuse the agent.
    Enforce,
}

/// The most agents whose claims are remembered. Beyond it all are forgotten, and their claims are logged once more.
const MAX_REMEMBERED_AGENTS: usize = 4_096;

/// The checks of agents: authentication, and the claims that an identity allows.
#[derive(Debug)]
pub struct AgentGate {
    /// Authenticates agents.
    pub auth: AgentAuth,
    /// The rate limit of log lines about refused agents.
    pub(super) refusals: LogLimit,
    /// The rate limit of log lines about admitted agents, by agent id.
    pub(super) toggles: LogLimit,
    mode: IdentityBinding,
    binding: Binding,
    logged_claims: LoggedClaims,
}

impl AgentGate {
    /// A gate that binds claims to identities according to `mode`.
    pub fn new(auth: AgentAuth, mode: IdentityBinding, binding: Binding) -> Self {
        let (refusals, toggles) = (LogLimit::default(), LogLimit::default());
        Self { auth, refusals, toggles, mode, binding, logged_claims: LoggedClaims::default() }
    }

    /// Checks the claims of an agent. Returns the party that owns its agent id if `mode` is `enforce`.
    ///
    /// # Errors
    /// The text of the refusal.
    pub(super) fn judge(
        &self,
        identity: &Identity,
        metadata: &ConnectMetadata,
        peer: &AgentPeer,
        backends: &BackendManager<LinkHandle>,
        metrics: &Metrics,
    ) -> Result<Option<Party>, String> {
        if self.mode == IdentityBinding::Off {
            return Ok(None);
        }
        let enforced = self.mode == IdentityBinding::Enforce;
        let action = if enforced { ClaimAction::Refused } else { ClaimAction::Logged };
        let agent_id = Peer(&metadata.agent_id);
        match self.binding.check(identity, &metadata.agent_id, &metadata.identifiers, peer.address) {
            Ok(()) => self.logged_claims.remove(&metadata.agent_id),
            Err(claims) => {
                let (identity, key) = (identity.to_string(), identity.key());
                let noted = self.logged_claims.note(&metadata.agent_id, &format!("{key} {claims}"));
                if enforced || noted == Noted::Changed {
                    for (claim, _) in &claims.0 {
                        metrics.agent_claims.count((*claim, action));
                    }
                }
                if noted != Noted::Logged
                    && let Some(suppressed) = self.refusals.due("claims", peer.address.ip())
                {
                    self.logged_claims.set_logged(&metadata.agent_id);
                    tracing::warn!(
                        agentID = %agent_id, %peer, identity = %Peer(&identity), %claims, action = action.name(), suppressed,
                        "agent claims what its identity does not vouch for (--agent-identity-binding)"
                    );
                }
                if enforced {
                    return Err(format!("the agent's identity does not vouch for: {claims}"));
                }
            }
        }
        if !enforced {
            return Ok(None);
        }
        let party = identity.party(&metadata.agent_id);
        if backends.belongs_to_another(&metadata.agent_id, &party) {
            return Err(self.foreign_id(&metadata.agent_id, peer, metrics));
        }
        Ok(Some(party))
    }

    /// Counts and logs a refused claim of an id that belongs to another agent. Returns the agent's error.
    pub(super) fn foreign_id(&self, agent_id: &str, peer: &AgentPeer, metrics: &Metrics) -> String {
        metrics.agent_claims.count((Claim::AgentId, ClaimAction::Refused));
        if let Some(suppressed) = self.refusals.due("agent id", peer.address.ip()) {
            tracing::warn!(
                agentID = %Peer(agent_id), %peer, suppressed, "agent id belongs to another agent that is connected"
            );
        }
        RegisterError::ForeignId.to_string()
    }
}

/// The last claims of each agent id, and whether they were logged: an agent that reconnects with the same claims is logged
/// once.
#[derive(Debug, Default)]
struct LoggedClaims {
    hasher: RandomState,
    last: Mutex<HashMap<u64, (u64, bool)>>,
}

/// The result of comparing claims with the agent's last ones.
#[derive(Debug, PartialEq, Eq)]
enum Noted {
    /// The claims differ.
    Changed,
    /// The claims are the same, and the rate limit has suppressed their log line.
    Unlogged,
    /// The claims are the same, and were logged.
    Logged,
}

impl LoggedClaims {
    /// Compares claims with the agent's last ones, and remembers them.
    fn note(&self, agent_id: &str, claims: &str) -> Noted {
        let (agent, claims) = (self.hasher.hash_one(agent_id), self.hasher.hash_one(claims));
        let mut last = self.last.lock();
        if last.len() >= MAX_REMEMBERED_AGENTS && !last.contains_key(&agent) {
            last.clear();
        }
        match last.get(&agent) {
            Some((same, true)) if *same == claims => Noted::Logged,
            Some((same, false)) if *same == claims => Noted::Unlogged,
            _ => {
                last.insert(agent, (claims, false));
                Noted::Changed
            }
        }
    }

    /// Records that the agent's last claims were logged.
    fn set_logged(&self, agent_id: &str) {
        if let Some((_, logged)) = self.last.lock().get_mut(&self.hasher.hash_one(agent_id)) {
            *logged = true;
        }
    }

    /// Forgets the claims of an agent whose identity vouches for all of them.
    fn remove(&self, agent_id: &str) {
        self.last.lock().remove(&self.hasher.hash_one(agent_id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_noted_until_they_are_logged_or_change() {
        let logged_claims = LoggedClaims::default();
        assert_eq!(logged_claims.note("a", "host n1"), Noted::Changed);
        assert_eq!(logged_claims.note("a", "host n1"), Noted::Unlogged, "the rate limit suppressed the line");
        logged_claims.set_logged("a");
        assert_eq!(logged_claims.note("a", "host n1"), Noted::Logged);
        assert_eq!(logged_claims.note("b", "host n1"), Noted::Changed, "another agent");
        assert_eq!(logged_claims.note("a", "host n2"), Noted::Changed);
        logged_claims.set_logged("a");
        logged_claims.remove("a");
        assert_eq!(logged_claims.note("a", "host n2"), Noted::Changed, "after claims that were vouched for");
    }

    #[test]
    fn number_of_remembered_agents_is_bounded() {
        let logged_claims = LoggedClaims::default();
        for agent in 0..2 * MAX_REMEMBERED_AGENTS {
            assert_eq!(logged_claims.note(&agent.to_string(), "host"), Noted::Changed);
        }
        assert!(logged_claims.last.lock().len() <= MAX_REMEMBERED_AGENTS);
    }
}
