//! Who gets past the agent port: authentication, and what an agent may claim to be.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use serve::logs::{LogLimit, Peer};

use super::hello::Hello;
use crate::args::IdentityBinding;
use crate::auth::{AgentAuth, AgentPeer, Binding, Identity, Owned, Owners};
use crate::metrics::{ClaimAction, Metrics};

/// Agents whose claims are remembered; beyond that all are forgotten, and said once more.
const REMEMBERED: usize = 4_096;

/// What agents must show, and what they may claim. Cheap to clone; clones are one.
#[derive(Debug, Clone)]
pub struct AgentGate {
    /// What authenticates them.
    pub auth: AgentAuth,
    /// The rate limit of what is logged about those that are refused.
    pub(super) refusals: LogLimit,
    mode: IdentityBinding,
    binding: Arc<Binding>,
    owners: Owners,
    told: Arc<Told>,
}

impl AgentGate {
    /// A gate that binds claims to identities as `mode` says.
    pub fn new(auth: AgentAuth, mode: IdentityBinding, binding: Binding) -> Self {
        let (binding, owners, refusals) = (Arc::new(binding), Owners::default(), LogLimit::default());
        Self { auth, refusals, mode, binding, owners, told: Arc::default() }
    }

    /// Judges what an agent says of itself: its share in its agent id with `enforce`, or the text of its refusal.
    pub(super) fn judge(
        &self,
        identity: &Identity,
        hello: &Hello,
        peer: &AgentPeer,
        metrics: &Metrics,
    ) -> Result<Option<Owned>, String> {
        if self.mode == IdentityBinding::Off {
            return Ok(None);
        }
        let enforced = self.mode == IdentityBinding::Enforce;
        let action = if enforced { ClaimAction::Refused } else { ClaimAction::Logged };
        let agent_id = Peer(&hello.agent_id);
        match self.binding.check(identity, &hello.agent_id, &hello.identifiers, peer.address) {
            Ok(()) => self.told.forget(&hello.agent_id),
            Err(claims) => {
                let identity = identity.to_string();
                let is_news = self.told.is_news(&hello.agent_id, &format!("{identity} {claims}"));
                if enforced || is_news {
                    for (claim, _) in &claims.0 {
                        metrics.agent_claims.count((*claim, action));
                    }
                }
                let due = if is_news { self.refusals.due("claims", peer.address.ip()) } else { None };
                if let Some(suppressed) = due {
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
        let owned = self.owners.claim(&hello.agent_id, identity);
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

/// What was said of agents' claims, by agent id: an agent that connects again and again with the same claims is
/// no news.
#[derive(Debug, Default)]
struct Told {
    hasher: RandomState,
    said: Mutex<HashMap<u64, u64>>,
}

impl Told {
    /// Whether this was not the last that was said of that agent; now it is.
    fn is_news(&self, agent_id: &str, claims: &str) -> bool {
        let (agent, claims) = (self.hasher.hash_one(agent_id), self.hasher.hash_one(claims));
        let mut said = self.said.lock();
        if said.len() >= REMEMBERED && !said.contains_key(&agent) {
            said.clear();
        }
        said.insert(agent, claims) != Some(claims)
    }

    /// The agent claims nothing more that is to be said.
    fn forget(&self, agent_id: &str) {
        self.said.lock().remove(&self.hasher.hash_one(agent_id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_claims_of_an_agent_are_news_once() {
        let told = Told::default();
        assert!(told.is_news("a", "host n1") && !told.is_news("a", "host n1"));
        assert!(told.is_news("b", "host n1"), "another agent");
        assert!(told.is_news("a", "host n2") && told.is_news("a", "host n1"), "changes");
        told.forget("a");
        assert!(told.is_news("a", "host n1"), "again, after claims that were vouched for");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let told = Told::default();
        for agent in 0..2 * REMEMBERED {
            assert!(told.is_news(&agent.to_string(), "host"));
        }
        assert!(told.said.lock().len() <= REMEMBERED);
    }
}
