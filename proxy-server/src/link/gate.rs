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
                let noted = self.told.note(&hello.agent_id, &format!("{identity} {claims}"));
                if enforced || noted == Noted::Changed {
                    for (claim, _) in &claims.0 {
                        metrics.agent_claims.count((*claim, action));
                    }
                }
                let unlogged = noted != Noted::Logged;
                if let Some(suppressed) =
                    unlogged.then(|| self.refusals.due("claims", peer.address.ip())).flatten()
                {
                    self.told.set_logged(&hello.agent_id);
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

/// The last claims of each agent id, and whether the log has them: an agent that connects again and again with the same claims
/// is logged once.
#[derive(Debug, Default)]
struct Told {
    hasher: RandomState,
    last: Mutex<HashMap<u64, (u64, bool)>>,
}

/// How claims compare with the agent's last ones.
#[derive(Debug, PartialEq, Eq)]
enum Noted {
    /// They differ.
    Changed,
    /// They are the same, and the rate limit has kept them from the log.
    Unlogged,
    /// They are the same, and in the log.
    Logged,
}

impl Told {
    /// Compares claims with the agent's last ones, and remembers them.
    fn note(&self, agent_id: &str, claims: &str) -> Noted {
        let (agent, claims) = (self.hasher.hash_one(agent_id), self.hasher.hash_one(claims));
        let mut last = self.last.lock();
        if last.len() >= REMEMBERED && !last.contains_key(&agent) {
            last.clear();
        }
        match last.get(&agent) {
            Some((same, logged)) if *same == claims => {
                if *logged {
                    Noted::Logged
                } else {
                    Noted::Unlogged
                }
            }
            _ => {
                last.insert(agent, (claims, false));
                Noted::Changed
            }
        }
    }

    /// The agent's last claims are in the log.
    fn set_logged(&self, agent_id: &str) {
        if let Some((_, logged)) = self.last.lock().get_mut(&self.hasher.hash_one(agent_id)) {
            *logged = true;
        }
    }

    /// The agent's identity vouches for all of its claims.
    fn forget(&self, agent_id: &str) {
        self.last.lock().remove(&self.hasher.hash_one(agent_id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_noted_until_they_are_logged_or_change() {
        let told = Told::default();
        assert_eq!(told.note("a", "host n1"), Noted::Changed);
        assert_eq!(told.note("a", "host n1"), Noted::Unlogged, "the rate limit suppressed the line");
        told.set_logged("a");
        assert_eq!(told.note("a", "host n1"), Noted::Logged);
        assert_eq!(told.note("b", "host n1"), Noted::Changed, "another agent");
        assert_eq!(told.note("a", "host n2"), Noted::Changed);
        told.set_logged("a");
        told.forget("a");
        assert_eq!(told.note("a", "host n2"), Noted::Changed, "after claims that were vouched for");
    }

    #[test]
    fn number_of_remembered_agents_is_bounded() {
        let told = Told::default();
        for agent in 0..2 * REMEMBERED {
            assert_eq!(told.note(&agent.to_string(), "host"), Noted::Changed);
        }
        assert!(told.last.lock().len() <= REMEMBERED);
    }
}
