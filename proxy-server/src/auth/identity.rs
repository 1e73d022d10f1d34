//! The authenticated identity of an agent.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cluster::api::User;
use transport::tls::PeerIdentity;

/// The prefix of the node name in a kubelet's certificate.
const NODE: &str = "system:node:";
/// Extra fields that the API server adds to a token that is bound to a pod. Source: k8s.io/apiserver
/// `pkg/authentication/serviceaccount`.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// Names and addresses that a certificate authority or the API server attests.
///
/// A user who may create pods chooses their names. So a pod's name is a name of the agent but not of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// All names that the agent may use as its id.
    names: BTreeSet<String>,
    /// The names by which the agent may take over an agent id: the pod's, or all names of the certificate.
    own: BTreeSet<String>,
    /// The names that are host names.
    hosts: BTreeSet<String>,
    /// The names that a list of allowed names is compared with.
    listed: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    /// Distinguishes parties: two streams with equal keys belong to one party.
    key: Arc<str>,
    vouched: bool,
}

impl Identity {
    /// The identity of an agent that was not authenticated.
    pub fn anonymous() -> Self {
        Self::default()
    }

    /// The identity of a certificate: its common name (for a kubelet also without `system:node:`), DNS names, URIs and
    /// addresses.
    pub fn of_certificate(certificate: &PeerIdentity) -> Self {
        let listed = certificate.common_name.iter().chain(&certificate.dns).chain(&certificate.uris);
        let mut names: BTreeSet<String> = listed.filter(|name| !name.is_empty()).cloned().collect();
        let node = certificate.common_name.as_deref().and_then(|name| name.strip_prefix(NODE));
        names.extend(node.map(str::to_owned));
        let addresses: BTreeSet<IpAddr> = certificate.ips.iter().map(IpAddr::to_canonical).collect();
        let key = format!("certificate {names:?} {addresses:?}").into();
        Self {
            own: names.clone(),
            hosts: names.clone(),
            listed: names.clone(),
            names,
            addresses,
            key,
            vouched: true,
        }
    }

    /// The identity of a token: its user, and the node and pod that the API server reports for it.
    pub fn of_token(user: &User) -> Self {
        let [node, pod, uid] = [NODE_NAME, POD_NAME, POD_UID].map(|fact| user.extra(fact));
        let account = Some(user.username.as_str());
        let set = |names: &[Option<&str>]| {
            names.iter().flatten().filter(|name| !name.is_empty()).map(|name| (*name).to_owned()).collect()
        };
        // A pod's successor on the same node is the same party: its streams take over the agent id from streams that linger.
        let key = format!("token {} {:?}", user.username, node.or(uid)).into();
        Self {
            names: set(&[account, node, pod, uid]),
            own: set(&[pod, uid]),
            hosts: set(&[node]),
            listed: set(&[account, node]),
            addresses: BTreeSet::new(),
            key,
            vouched: true,
        }
    }

    /// Whether the agent was authenticated.
    pub fn is_vouched(&self) -> bool {
        self.vouched
    }

    /// Whether the agent may use this name as its id.
    pub fn is_named(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Whether this name belongs to this one agent, and is not a name that all agents share.
    pub fn is_called(&self, name: &str) -> bool {
        self.own.contains(name)
    }

    /// Whether this is the name of the agent's host.
    pub fn is_host(&self, name: &str) -> bool {
        self.hosts.contains(name)
    }

    /// Whether the list contains a certificate name, or the token's user or node.
    pub fn is_any_of(&self, list: &[String]) -> bool {
        list.iter().any(|name| self.listed.contains(name))
    }

    /// Whether this is an attested address of the agent.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address.to_canonical())
    }

    /// Distinguishes parties: equal keys mean the same party.
    pub fn key(&self) -> &Arc<str> {
        &self.key
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.vouched { &self.key } else { "nobody" })
    }
}
