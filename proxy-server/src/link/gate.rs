//! Who gets past the agent port: authentication, and what an agent may claim to be.

use std::sync::Arc;

use serve::logs::{LogLimit, Peer};

use super::hello::Hello;
use crate::args::IdentityBinding;
use crate::auth::{AgentAuth, AgentPeer, Binding, Identity, Owned, Owners};
use crate::metrics::{ClaimAction, Metrics};

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
}

impl AgentGate {
    /// A gate that binds claims to identities as `mode` says.
    pub fn new(auth: AgentAuth, mode: IdentityBinding, binding: Binding) -> Self {
        let (binding, owners, refusals) = (Arc::new(binding), Owners::default(), LogLimit::default());
        Self { auth, refusals, mode, binding, owners }
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
        if let Err(claims) = self.binding.check(identity, &hello.agent_id, &hello.identifiers, peer.address) {
            for (claim, _) in &claims.0 {
                metrics.agent_claims.count((*claim, action));
            }
            let identity = identity.to_string();
            if let Some(suppressed) = self.refusals.due("claims", peer.address.ip()) {
                tracing::warn!(
                    %agent_id, %peer, identity = %Peer(&identity), %claims, action = action.name(), suppressed,
                    "Agent claims what its identity does not vouch for (--agent-identity-binding)"
                );
            }
            if enforced {
                return Err(format!("the agent's identity does not vouch for: {claims}"));
            }
        }
        if !enforced {
            return Ok(None);
        }
        let owned = self.owners.claim(&hello.agent_id, identity);
        if owned.is_none() {
            metrics.agent_claims.count((crate::metrics::Claim::AgentId, action));
            if let Some(suppressed) = self.refusals.due("agent id", peer.address.ip()) {
                tracing::warn!(%agent_id, %peer, suppressed, "Agent id belongs to another agent that is connected");
            }
            return Err("the agent ID belongs to another agent that is connected".to_owned());
        }
        Ok(owned)
    }
}
