//! The metadata of an agent's Connect, parsed and checked.

use std::sync::Arc;

use grpc::single;
use http::HeaderMap;

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

/// Why a Connect is refused, as the gRPC message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectMetadataError {
    #[error("expected one agent ID in the context, got {0}")]
    AgentIds(usize),
    #[error("the agent ID is empty, longer than {MAX_AGENT_ID} bytes or not printable")]
    BadAgentId,
    #[error("expected at most one set of agent identifiers in the context, got {0}")]
    IdentifierSets(usize),
    #[error("{0}")]
    Identifiers(#[from] crate::backends::IdentifiersError),
    #[error("the agent identifiers are not printable")]
    NotPrintable,
}

impl ConnectMetadata {
    /// Parses the metadata of a Connect.
    pub(crate) fn read(metadata: &HeaderMap) -> Result<Self, ConnectMetadataError> {
        let id = single(metadata, AGENT_ID).map_err(ConnectMetadataError::AgentIds)?;
        let id = id.ok_or(ConnectMetadataError::AgentIds(0))?;
        let agent_id = id.to_str().ok().filter(|id| !id.is_empty() && id.len() <= MAX_AGENT_ID);
        let agent_id = agent_id.ok_or(ConnectMetadataError::BadAgentId)?.into();
        let identifiers =
            single(metadata, AGENT_IDENTIFIERS).map_err(ConnectMetadataError::IdentifierSets)?;
        let identifiers = match identifiers {
            Some(text) => Identifiers::parse(text.to_str().map_err(|_| ConnectMetadataError::NotPrintable)?)?,
            None => Identifiers::default(),
        };
        Ok(ConnectMetadata { agent_id, identifiers })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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
        assert_eq!(ConnectMetadata::read(&metadata(&[])).unwrap_err(), ConnectMetadataError::AgentIds(0));
        let two = metadata(&[("agentid", "a"), ("agentid", "b")]);
        assert_eq!(ConnectMetadata::read(&two).unwrap_err(), ConnectMetadataError::AgentIds(2));
        assert_eq!(&*ConnectMetadata::read(&metadata(&[("agentid", "a")])).unwrap().agent_id, "a");
        assert_eq!(
            ConnectMetadata::read(&metadata(&[("agentid", "")])).unwrap_err(),
            ConnectMetadataError::BadAgentId
        );
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
        assert_eq!(ConnectMetadata::read(&two).unwrap_err(), ConnectMetadataError::IdentifierSets(2));
    }
}
