//! Which claims an agent's identity allows (`--agent-identity-binding`).
//!
//! Agents announce their own name and the hosts and networks that they serve; an agent that claims another node's addresses
//! receives that node's traffic. So each claim must follow from the agent's identity:
//!
//! | claim | allowed if |
//! |---|---|
//! | `agentID` | it is a name of the identity, or a UUID (other agents cannot guess it), and no open stream of this id belongs to another party |
//! | `host` | it is a name in the certificate, or the name of the token's node |
//! | `ipv4`, `ipv6` | it is an address in the certificate; with `--agent-identity-source-address` also the source address of the connection |
//! | `cidr` | it is a network of exactly one such address, or the identity is on `--default-route-allowed-names` |
//! | `default-route=true` | the identity is on `--default-route-allowed-names`: a name in its certificate, its token's user or node |
//!
//! Names of a certificate: its common name (for a kubelet also without `system:node:`), DNS names and URIs. Names of a token:
//! its user, and the node name, pod name and pod UID that the API server reports for it. Names are compared byte by byte.
//! Without agent authentication there is no identity, and no claim is checked.
//!
//! A connection's source address is the node's own only if nothing on the path translates addresses. Behind a NodePort or a
//! load balancer (`externalTrafficPolicy: Cluster`) it is the address of another node, and any agent could then receive that
//! node's traffic. So the source address allows nothing unless the operator enables it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serve::logs::Peer;

use super::Identity;
use crate::backends::Identifiers;

pub use crate::metrics::Claim;

/// The rules. By default no agent may claim wide routes, and source addresses allow nothing.
#[derive(Debug, Clone, Default)]
pub struct Binding {
    /// Names that may claim wide routes (`--default-route-allowed-names`).
    pub wide: Vec<String>,
    /// Whether an agent may claim the source address of its connection (`--agent-identity-source-address`).
    pub source_address: bool,
}

/// Claims that do not follow from an identity; not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims(pub Vec<(Claim, String)>);

impl Binding {
    /// Checks the claims of an agent that connects from `from`.
    ///
    /// # Errors
    /// The claims that do not follow from the identity.
    pub fn check(
        &self,
        identity: &Identity,
        agent_id: &str,
        identifiers: &Identifiers,
        from: SocketAddr,
    ) -> Result<(), Claims> {
        if !identity.is_vouched() {
            return Ok(());
        }
        let is_ours = |ip: IpAddr| {
            let ip = ip.to_canonical();
            identity.has_address(ip) || (self.source_address && ip == from.ip().to_canonical())
        };
        let wide = identity.is_any_of(&self.wide);
        let mut unfounded = Vec::new();
        if !identity.is_named(agent_id) && !is_uuid(agent_id) {
            unfounded.push((Claim::AgentId, agent_id.to_owned()));
        }
        // An empty identifier matches nothing. The three keys share one name space: a value that parses as an address is
        // checked as an address, whatever its key.
        for host in identifiers.hosts.iter().filter(|host| !host.is_empty()) {
            match host.parse::<IpAddr>() {
                Ok(ip) if is_ours(ip) => {}
                Ok(_) => unfounded.push((Claim::Address, host.to_string())),
                Err(_) if identity.is_host(host) => {}
                Err(_) => unfounded.push((Claim::Host, host.to_string())),
            }
        }
        for network in &identifiers.networks {
            let single = network.prefix_len() == network.max_prefix_len() && is_ours(network.addr());
            if !single && !wide {
                unfounded.push((Claim::Network, network.to_string()));
            }
        }
        if identifiers.default_route && !wide {
            unfounded.push((Claim::DefaultRoute, "true".to_owned()));
        }
        if unfounded.is_empty() { Ok(()) } else { Err(Claims(unfounded)) }
    }
}

/// Whether the text has the form 8-4-4-4-12 hexadecimal digits. The other forms of a UUID have other lengths.
fn is_uuid(text: &str) -> bool {
    text.len() == 36 && uuid::Uuid::try_parse(text).is_ok()
}

impl fmt::Display for Claims {
    /// The first four claims, escaped because the agent chose them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (claim, value)) in self.0.iter().take(4).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", claim.name(), Peer(value))?;
        }
        match self.0.len().saturating_sub(4) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cluster::api::User;
    use net::tls::PeerIdentity;

    use super::*;

    const FROM: &str = "[::ffff:10.0.0.7]:1234";
    const UUID: &str = "6f1c1c0e-5b0a-4f0e-9d7e-0123456789ab";

    fn unfounded(identity: &Identity, wide: &[&str], agent_id: &str, identifiers: &str) -> Vec<String> {
        let wide = wide.iter().map(|name| (*name).to_owned()).collect();
        judged(&Binding { wide, source_address: true }, identity, agent_id, identifiers)
    }

    fn judged(binding: &Binding, identity: &Identity, agent_id: &str, identifiers: &str) -> Vec<String> {
        let identifiers = Identifiers::parse(identifiers).unwrap();
        match binding.check(identity, agent_id, &identifiers, FROM.parse().unwrap()) {
            Ok(()) => Vec::new(),
            Err(Claims(claims)) => {
                claims.into_iter().map(|(claim, value)| format!("{}={value}", claim.name())).collect()
            }
        }
    }

    fn token(node: &str) -> Identity {
        let fact = |name: &str, value: &str| {
            (format!("authentication.kubernetes.io/{name}"), Some(vec![value.to_owned()]))
        };
        let extra =
            BTreeMap::from([fact("node-name", node), fact("pod-name", "agent-x"), fact("pod-uid", "u-1")]);
        Identity::of_token(&User { username: "system:serviceaccount:kube-system:agent".into(), extra })
    }

    fn certificate() -> Identity {
        Identity::of_certificate(&PeerIdentity {
            common_name: Some("system:node:node-1".into()),
            dns: vec!["node-1.example".into()],
            ips: vec!["10.0.0.9".parse().unwrap(), "fd00::9".parse().unwrap()],
            ..PeerIdentity::default()
        })
    }

    #[test]
    fn a_token_vouches_for_its_node_and_the_connection_for_its_address() {
        let node = token("node-1");
        for id in ["node-1", "agent-x", "u-1", UUID] {
            assert!(
                unfounded(
                    &node,
                    &[],
                    id,
                    "host=node-1&ipv4=10.0.0.7&host=&ipv4=::ffff:10.0.0.7&cidr=10.0.0.7/32"
                )
                .is_empty(),
                "{id}"
            );
        }
        let rows = [
            ("node-2", "", "agent_id=node-2"),
            (UUID, "host=node-2", "host=node-2"),
            (UUID, "host=Node-1", "host=Node-1"),
            (UUID, "host=agent-x", "host=agent-x"),
            (UUID, "ipv4=10.0.0.8", "address=10.0.0.8"),
            (UUID, "host=10.0.0.8", "address=10.0.0.8"),
            (UUID, "ipv4=node-2", "host=node-2"),
            (UUID, "ipv4=010.0.0.7", "host=010.0.0.7"),
            (UUID, "cidr=10.0.0.0/8", "network=10.0.0.0/8"),
            (UUID, "cidr=10.0.0.8/32", "network=10.0.0.8/32"),
            (UUID, "default-route=true", "default_route=true"),
        ];
        for (id, identifiers, want) in rows {
            assert_eq!(unfounded(&node, &[], id, identifiers), [want], "{identifiers}");
        }
    }

    /// Behind SNAT the source address is another node's.
    #[test]
    fn where_a_connection_comes_from_vouches_for_nothing_unless_asked_for() {
        let (binding, own) = (Binding::default(), "ipv4=10.0.0.7&cidr=10.0.0.7/32");
        for identity in [token("node-1"), certificate()] {
            let want = ["address=10.0.0.7", "network=10.0.0.7/32"];
            assert_eq!(judged(&binding, &identity, UUID, own), want, "{identity}");
        }
        assert!(judged(&binding, &certificate(), UUID, "ipv4=10.0.0.9&cidr=10.0.0.9/32").is_empty());
    }

    #[test]
    fn a_certificate_vouches_for_its_names_and_addresses() {
        let node = certificate();
        for id in ["system:node:node-1", "node-1", "node-1.example"] {
            assert!(
                unfounded(&node, &[], id, "host=node-1&ipv4=10.0.0.9&ipv6=fd00:0::9&ipv4=10.0.0.7")
                    .is_empty(),
                "{id}"
            );
        }
        assert_eq!(unfounded(&node, &[], "node-2", "host=node-2&ipv4=10.0.0.10").len(), 3);
    }

    #[test]
    fn wide_routes_are_for_those_on_the_list() {
        for wide in ["node-1", "system:serviceaccount:kube-system:agent"] {
            assert!(
                unfounded(&token("node-1"), &[wide], UUID, "default-route=true&cidr=10.0.0.0/8").is_empty()
            );
        }
        assert_eq!(
            unfounded(
                &token("node-1"),
                &["node-2", "agent-x", "u-1"],
                UUID,
                "default-route=true&cidr=10.0.0.0/8"
            )
            .len(),
            2
        );
    }

    #[test]
    fn without_an_identity_claims_are_not_checked() {
        assert!(unfounded(&Identity::default(), &[], "x", "host=y&default-route=true").is_empty());
    }

    #[test]
    fn logged_claims_are_escaped_and_few() {
        let identifiers = (0..6).map(|n| format!("host=h{n}%0a")).collect::<Vec<_>>().join("&");
        let identifiers = Identifiers::parse(&identifiers).unwrap();
        let claims =
            Binding::default().check(&token("n"), UUID, &identifiers, FROM.parse().unwrap()).unwrap_err();
        assert_eq!(claims.to_string(), "host h0\\n, host h1\\n, host h2\\n, host h3\\n and 2 more");
    }

    #[test]
    fn parties_are_distinguished_by_node_not_by_pod() {
        assert_eq!(token("node-1").key(), token("node-1").key());
        assert_ne!(token("node-1").key(), token("node-2").key());
        assert_ne!(certificate().key(), token("node-1").key());
    }
}
