//! Decides which agents the agent port admits: authenticates them, and checks their claims against their identity.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;
use serve::logs::{LogLimit, Peer};

use super::connect_metadata::ConnectMetadata;
use crate::auth::{AgentAuth, AgentPeer, Binding, Identity, Owned, Owners};
use crate::metrics::{ClaimAction, Metrics};

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
const REMEMBERED: usize = 4_096;

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
    owners: Owners,
    logged_claims: LoggedClaims,
}

impl AgentGate {
    /// A gate that binds claims to identities according to `mode`.
    pub fn new(auth: AgentAuth, mode: IdentityBinding, binding: Binding) -> Self {
        let (refusals, toggles) = (LogLimit::default(), LogLimit::default());
        let (owners, logged_claims) = (Owners::default(), LoggedClaims::default());
        Self { auth, refusals, toggles, mode, binding, owners, logged_claims }
    }

    /// Checks the claims of an agent. Returns its ownership of the agent id if `mode` is `enforce`.
    ///
    /// # Errors
    /// The text of the refusal.
    pub(super) fn judge(
        &self,
        identity: &Identity,
        metadata: &ConnectMetadata,
        peer: &AgentPeer,
        metrics: &Metrics,
    ) -> Result<Option<Owned>, String> {
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
                let said = format!("{key} {claims}");
                let is_new = self.logged_claims.note(&metadata.agent_id, &said);
                if enforced || is_new {
                    for (claim, _) in &claims.0 {
                        metrics.agent_claims.count((*claim, action));
                    }
                }
                if is_new
                    && let Some(suppressed) = self.refusals.due_for("claims", (&metadata.agent_id, said))
                {
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
        let owned = self.owners.claim(&metadata.agent_id, identity);
        if owned.is_none() {
            metrics.agent_claims.count((crate::metrics::Claim::AgentId, action));
            if let Some(suppressed) = self.refusals.due("agent id", peer.address.ip()) {
                tracing::warn!(
                    agentID = %agent_id, %peer, suppressed, "agent id belongs to another agent that is connected"
                );
            }
            return Err("the agent ID belongs to another agent that is connected".to_owned());
        }
        Ok(owned)
    }
}

/// The last claims of each agent id: an agent that reconnects with the same claims is logged once.
#[derive(Debug, Default)]
struct LoggedClaims {
    hasher: RandomState,
    last: Mutex<HashMap<u64, u64>>,
}

impl LoggedClaims {
    /// Remembers an agent's claims. Returns whether they differ from its last ones.
    fn note(&self, agent_id: &str, claims: &str) -> bool {
        let (agent, claims) = (self.hasher.hash_one(agent_id), self.hasher.hash_one(claims));
        let mut last = self.last.lock();
        if last.len() >= REMEMBERED && !last.contains_key(&agent) {
            last.clear();
        }
        last.insert(agent, claims) != Some(claims)
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
    fn claims_are_noted_when_they_change() {
        let logged_claims = LoggedClaims::default();
        assert!(logged_claims.note("a", "host n1"));
        assert!(!logged_claims.note("a", "host n1"));
        assert!(logged_claims.note("b", "host n1"), "another agent");
        assert!(logged_claims.note("a", "host n2"));
        logged_claims.remove("a");
        assert!(logged_claims.note("a", "host n2"), "after claims that were vouched for");
    }

    #[test]
    fn number_of_remembered_agents_is_bounded() {
        let logged_claims = LoggedClaims::default();
        for agent in 0..2 * REMEMBERED {
            assert!(logged_claims.note(&agent.to_string(), "host"));
        }
        assert!(logged_claims.last.lock().len() <= REMEMBERED);
    }
}
