//! The authenticated identity of an agent, and the lists of certificate names that are admitted.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cluster::api::User;
use net::tls::PeerIdentity;

/// The prefix of the node name in a kubelet's certificate.
const NODE: &str = "system:node:";
/// Extra fields that the API server adds to a token that is bound to a pod. Source: k8s.io/apiserver
/// `pkg/authentication/serviceaccount`.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// Names and addresses that a certificate authority or the API server attests; by default none, of an agent that was not
/// authenticated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// All names that the agent may use as its id.
    names: Vec<(Source, String)>,
    addresses: BTreeSet<IpAddr>,
    /// Distinguishes parties: two streams with equal keys belong to one party. Empty if the agent was not authenticated.
    key: Arc<str>,
}

/// Where a name comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Certificate,
    /// The token's user, which all agents share.
    Account,
    /// The node of the token's pod.
    Node,
    /// The token's pod. A user who may create pods chooses their names, so it is a name of the agent but not of a host.
    Pod,
}

impl Identity {
    /// The identity of a certificate: its common name (for a kubelet also without `system:node:`), DNS names, URIs and
    /// addresses.
    pub fn of_certificate(certificate: &PeerIdentity) -> Self {
        let listed = certificate.common_name.iter().chain(&certificate.dns).chain(&certificate.uris);
        let mut names: BTreeSet<String> = listed.filter(|name| !name.is_empty()).cloned().collect();
        let node = certificate.common_name.as_deref().and_then(|name| name.strip_prefix(NODE));
        names.extend(node.map(str::to_owned));
        let addresses: BTreeSet<IpAddr> = certificate.ips.iter().map(IpAddr::to_canonical).collect();
        let key = format!("certificate {names:?} {addresses:?}").into();
        Self { names: names.into_iter().map(|name| (Source::Certificate, name)).collect(), addresses, key }
    }

    /// The identity of a token: its user, and the node and pod that the API server reports for it.
    pub fn of_token(user: &User) -> Self {
        let [node, pod, uid] = [NODE_NAME, POD_NAME, POD_UID].map(|fact| user.extra(fact));
        let account = Some(user.username.as_str());
        let names =
            [(Source::Account, account), (Source::Node, node), (Source::Pod, pod), (Source::Pod, uid)];
        let names = names.into_iter().filter_map(|(source, name)| Some((source, name?.to_owned())));
        // A pod's successor on the same node is the same party: its streams take over the agent id from streams that linger.
        let key = format!("token {} {:?}", user.username, node.or(uid)).into();
        Self { names: names.filter(|(_, name)| !name.is_empty()).collect(), addresses: BTreeSet::new(), key }
    }

    /// Whether the agent was authenticated.
    pub fn is_vouched(&self) -> bool {
        !self.key.is_empty()
    }

    fn has(&self, name: &str, sources: &[Source]) -> bool {
        self.names.iter().any(|(source, known)| known == name && sources.contains(source))
    }

    /// Whether the agent may use this name as its id.
    pub fn is_named(&self, name: &str) -> bool {
        self.names.iter().any(|(_, known)| known == name)
    }

    /// Whether this name belongs to this one agent: the pod's, or a name of the certificate.
    pub fn is_called(&self, name: &str) -> bool {
        self.has(name, &[Source::Certificate, Source::Pod])
    }

    /// Whether this is the name of the agent's host.
    pub fn is_host(&self, name: &str) -> bool {
        self.has(name, &[Source::Certificate, Source::Node])
    }

    /// Whether the list contains a certificate name, or the token's user or node.
    pub fn is_any_of(&self, list: &[String]) -> bool {
        list.iter().any(|name| self.has(name, &[Source::Certificate, Source::Account, Source::Node]))
    }

    /// Whether this is an attested address of the agent.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address.to_canonical())
    }

    /// Distinguishes parties: equal keys mean the same party.
    pub fn key(&self) -> &Arc<str> {
        &self.key
    }

    /// The party as which the agent claims an agent id.
    pub fn party(&self, agent_id: &str) -> Party {
        Party { key: Arc::clone(&self.key), named: self.is_called(agent_id) }
    }
}

/// A party that claims an agent id. The id belongs to the party whose stream announced it first, while a stream of it is open.
#[derive(Debug, Clone)]
pub struct Party {
    key: Arc<str>,
    /// Whether its identity contains the id itself.
    named: bool,
}

impl Party {
    /// Whether two claims of one agent id come from the same party. An agent whose identity contains the id is the same even if the
    /// rest of its identity has changed, because its certificate was renewed or its pod moved.
    pub fn is_same(&self, other: &Party) -> bool {
        self.key == other.key || (self.named && other.named)
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The first word of the key is the kind of credential.
        let kind = self.key.split(' ').next().filter(|kind| !kind.is_empty()).unwrap_or("nobody");
        f.write_str(kind)?;
        for (position, (_, name)) in self.names.iter().enumerate() {
            write!(f, "{} {name}", if position == 0 { "" } else { "," })?;
        }
        self.addresses.iter().try_for_each(|address| write!(f, ", {address}"))
    }
}

/// A list of names. The empty list admits every verified certificate. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedNames(Arc<[String]>);

impl AllowedNames {
    /// Names as in certificates: common names, DNS names, URIs, addresses. They are compared byte by byte; a wildcard is
    /// compared like any other name.
    pub fn new(names: Vec<String>) -> Self {
        Self(names.into())
    }

    /// Whether the certificate has one of these names.
    pub fn allow(&self, certificate: &PeerIdentity) -> bool {
        let texts = certificate.common_name.iter().chain(&certificate.dns).chain(&certificate.uris);
        self.0.is_empty()
            || texts.into_iter().any(|name| self.0.contains(name))
            || certificate.ips.iter().any(|ip| self.0.contains(&ip.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_of_the_certificate_counts() {
        let certificate = PeerIdentity {
            common_name: Some("front".into()),
            dns: vec!["a.example".into()],
            uris: vec!["spiffe://x/y".into()],
            ips: vec!["10.0.0.1".parse().unwrap()],
        };
        let allows = |names: &[&str]| {
            AllowedNames::new(names.iter().map(|n| (*n).to_owned()).collect()).allow(&certificate)
        };
        assert!(allows(&[]) && AllowedNames::default().allow(&PeerIdentity::default()));
        for name in ["front", "a.example", "spiffe://x/y", "10.0.0.1"] {
            assert!(allows(&["x", name]), "{name}");
        }
        for name in ["Front", "*.example", "", "ront"] {
            assert!(!allows(&[name]), "{name}");
        }
        assert!(!AllowedNames::new(vec![String::new()]).allow(&PeerIdentity::default()));
    }
}
