//! Decides which agents the agent port admits: authenticates them, parses the metadata of their Connect, and checks their claims
//! against their identity.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use grpc::single;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use serve::logs::{LogLimit, Peer};

use super::accept::AgentService;
use crate::auth::{AgentAuth, AgentPeer, Binding, Identity, Party};
use crate::backends::{Identifiers, RegisterError};
use crate::metrics::{Claim, ClaimAction};

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
}

impl AgentService {
    /// Checks the claims of an agent. Returns the party that owns its agent id if `mode` is `enforce`.
    ///
    /// # Errors
    /// The text of the refusal.
    pub(super) fn judge(
        &self,
        identity: &Identity,
        ConnectMetadata { agent_id, identifiers }: &ConnectMetadata,
        peer: &AgentPeer,
    ) -> Result<Option<Party>, String> {
        let AgentGate { mode, binding, refusals, logged_claims, .. } = &self.gate;
        if *mode == IdentityBinding::Off {
            return Ok(None);
        }
        let enforced = *mode == IdentityBinding::Enforce;
        match binding.check(identity, agent_id, identifiers, peer.address) {
            Ok(()) => logged_claims.remove(agent_id),
            Err(claims) => {
                let action = if enforced { ClaimAction::Refused } else { ClaimAction::Logged };
                let log = || {
                    let Some(suppressed) = refusals.due("claims", peer.address.ip()) else { return false };
                    let (agent_id, identity) = (Peer(agent_id), identity.to_string());
                    tracing::warn!(
                        agentID = %agent_id, %peer, identity = %Peer(&identity), %claims, action = action.name(), suppressed,
                        "agent claims what its identity does not vouch for (--agent-identity-binding)"
                    );
                    true
                };
                let changed = logged_claims.note(agent_id, &format!("{} {claims}", identity.key()), log);
                if enforced || changed {
                    for (claim, _) in &claims.0 {
                        self.metrics.agent_claims.count((*claim, action));
                    }
                }
                if enforced {
                    return Err(format!("the agent's identity does not vouch for: {claims}"));
                }
            }
        }
        if !enforced {
            return Ok(None);
        }
        let party = identity.party(agent_id);
        if self.backends.belongs_to_another(agent_id, &party) {
            return Err(self.foreign_id(agent_id, peer));
        }
        Ok(Some(party))
    }

    /// Counts and logs a refused claim of an id that belongs to another agent. Returns the agent's error.
    pub(super) fn foreign_id(&self, agent_id: &str, peer: &AgentPeer) -> String {
        self.metrics.agent_claims.count((Claim::AgentId, ClaimAction::Refused));
        if let Some(suppressed) = self.gate.refusals.due("agent id", peer.address.ip()) {
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

impl LoggedClaims {
    /// Remembers the claims of an agent, and calls `log` if they are not logged yet; it returns false if the rate limit has
    /// suppressed the line. Returns whether the claims differ from the agent's last ones.
    fn note(&self, agent_id: &str, claims: &str, log: impl FnOnce() -> bool) -> bool {
        let (agent, claims) = (self.hasher.hash_one(agent_id), self.hasher.hash_one(claims));
        let mut last = self.last.lock();
        if last.len() >= MAX_REMEMBERED_AGENTS && !last.contains_key(&agent) {
            last.clear();
        }
        let known = last.get(&agent).copied().filter(|(known, _)| *known == claims);
        let logged = known.is_some_and(|(_, logged)| logged) || log();
        last.insert(agent, (claims, logged));
        known.is_none()
    }

    /// Forgets the claims of an agent whose identity vouches for all of them.
    fn remove(&self, agent_id: &str) {
        self.last.lock().remove(&self.hasher.hash_one(agent_id));
    }
}

/// The agent's id. Lower case on the wire, like all metadata.
const AGENT_ID: &str = "agentid";
/// The hosts and networks that the agent serves.
const AGENT_IDENTIFIERS: &str = "agentidentifiers";
/// Bytes of an agent id. It is a map key and appears in logs; Kubernetes names have at most 253.
const MAX_AGENT_ID: usize = 512;

/// The agent's id and identifiers.
#[derive(Debug, Clone)]
pub(crate) struct ConnectMetadata {
    pub(crate) agent_id: Arc<str>,
    pub(crate) identifiers: Identifiers,
}

impl ConnectMetadata {
    /// Parses the metadata of a Connect.
    ///
    /// # Errors
    /// The gRPC message with which the Connect is refused.
    pub(crate) fn read(metadata: &HeaderMap) -> Result<Self, String> {
        let agent_id = agent_id(metadata)?;
        let identifiers = single(metadata, AGENT_IDENTIFIERS).map_err(|count| {
            format!("expected at most one set of agent identifiers in the context, got {count}")
        })?;
        let identifiers = match identifiers.map(HeaderValue::to_str) {
            Some(Ok(text)) => Identifiers::parse(text)?,
            Some(Err(_)) => return Err("the agent identifiers are not printable".to_owned()),
            None => Identifiers::default(),
        };
        Ok(ConnectMetadata { agent_id: agent_id.into(), identifiers })
    }
}

/// The agent id of the metadata.
///
/// # Errors
/// The text for the agent.
pub(crate) fn agent_id(metadata: &HeaderMap) -> Result<&str, String> {
    let count = |count: usize| format!("expected one agent ID in the context, got {count}");
    let id = single(metadata, AGENT_ID).map_err(count)?.ok_or_else(|| count(0))?;
    let id = id.to_str().ok().filter(|id| id.len() <= MAX_AGENT_ID);
    id.ok_or_else(|| format!("the agent ID is longer than {MAX_AGENT_ID} bytes or not printable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_noted_until_they_are_logged_or_change() {
        let logged_claims = LoggedClaims::default();
        let suppressed = |claims| logged_claims.note("a", claims, || false);
        let logged = |agent, claims| logged_claims.note(agent, claims, || true);
        let known = |claims| !logged_claims.note("a", claims, || panic!("logged again"));
        assert!(suppressed("host n1"));
        assert!(!suppressed("host n1") && !logged("a", "host n1"), "the rate limit suppressed the line");
        assert!(known("host n1"));
        assert!(logged("b", "host n1"), "another agent");
        assert!(logged("a", "host n2") && known("host n2"));
        logged_claims.remove("a");
        assert!(logged("a", "host n2"), "after claims that were vouched for");
    }

    #[test]
    fn number_of_remembered_agents_is_bounded() {
        let logged_claims = LoggedClaims::default();
        for agent in 0..2 * MAX_REMEMBERED_AGENTS {
            assert!(logged_claims.note(&agent.to_string(), "host", || true));
        }
        assert!(logged_claims.last.lock().len() <= MAX_REMEMBERED_AGENTS);
    }

    fn metadata(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn exactly_one_agent_id() {
        let refused = |pairs: &[_]| ConnectMetadata::read(&metadata(pairs)).unwrap_err();
        assert_eq!(refused(&[]), "expected one agent ID in the context, got 0");
        let two = [("agentid", "a"), ("agentid", "b")];
        assert_eq!(refused(&two), "expected one agent ID in the context, got 2");
        // A Go agent with `--agent-id=` sends an empty one.
        for id in ["a", ""] {
            assert_eq!(&*ConnectMetadata::read(&metadata(&[("agentid", id)])).unwrap().agent_id, id);
        }
    }

    #[test]
    fn identifiers_come_once_or_not_at_all() {
        let none = ConnectMetadata::read(&metadata(&[("agentid", "a")])).unwrap();
        assert_eq!(none.identifiers, Identifiers::default());
        let one = metadata(&[("agentid", "a"), ("agentidentifiers", "host=n1&default-route=true")]);
        let one = ConnectMetadata::read(&one).unwrap();
        assert!(one.identifiers.default_route);
        assert_eq!(one.identifiers.hosts.len(), 1);
        let two =
            metadata(&[("agentid", "a"), ("agentidentifiers", "host=a"), ("agentidentifiers", "host=b")]);
        let refused = ConnectMetadata::read(&two).unwrap_err();
        assert_eq!(refused, "expected at most one set of agent identifiers in the context, got 2");
    }
}
