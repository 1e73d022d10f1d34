//! The metadata of an agent's Connect, parsed and checked.

use std::sync::Arc;

use grpc::single;
use http::{HeaderMap, HeaderValue};

use crate::backends::Identifiers;

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
