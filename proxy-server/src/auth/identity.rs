//! Who an agent is, as far as somebody vouches for it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cluster::api::User;
use transport::tls::PeerIdentity;

/// What kubelets' certificates bear before the node's name.
const NODE: &str = "system:node:";
/// Facts that the API server adds to a token that is bound to a pod. Source: k8s.io/apiserver
/// `pkg/authentication/serviceaccount`.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// Names and addresses that a certificate authority, or the API server, vouches for.
///
/// Whoever may create pods chooses their names, so a pod's name names the agent and no host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// Everything that the agent may call itself.
    names: BTreeSet<String>,
    /// Those of them by which it may take an id over: a pod's, or all of a certificate's.
    own: BTreeSet<String>,
    /// Those of them that are a host's.
    hosts: BTreeSet<String>,
    /// Those of them that a list of names may mean.
    listed: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    /// Tells one agent from another: two streams with equal keys are one party's.
    key: Arc<str>,
    vouched: bool,
}

impl Identity {
    /// Nobody vouches for anything.
    pub fn nobody() -> Self {
        Self::default()
    }

    /// By certificate: its common name (a kubelet's without `system:node:`, too), its DNS names and URIs, and its
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

    /// By token: its user, and the node and pod that the API server says it is bound to.
    pub fn of_token(user: &User) -> Self {
        let [node, pod, uid] = [NODE_NAME, POD_NAME, POD_UID].map(|fact| user.extra(fact));
        let account = Some(user.username.as_str());
        let set = |names: &[Option<&str>]| {
            names.iter().flatten().filter(|name| !name.is_empty()).map(|name| (*name).to_owned()).collect()
        };
        // A pod's successor on the same node is the same party: its streams take over from those that linger.
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

    /// Whether somebody vouches for anything.
    pub fn is_vouched(&self) -> bool {
        self.vouched
    }

    /// Whether the agent may call itself this.
    pub fn is_named(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Whether somebody vouches that this is what it is called, and not only what all agents are.
    pub fn is_called(&self, name: &str) -> bool {
        self.own.contains(name)
    }

    /// Whether this is a host that it stands on.
    pub fn is_host(&self, name: &str) -> bool {
        self.hosts.contains(name)
    }

    /// Whether a list of names means it: by its certificate's names, its token's user or node.
    pub fn is_any_of(&self, list: &[String]) -> bool {
        list.iter().any(|name| self.listed.contains(name))
    }

    /// Whether this is one of its addresses.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address.to_canonical())
    }

    /// Tells one party from another.
    pub fn key(&self) -> &Arc<str> {
        &self.key
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.vouched { &self.key } else { "nobody" })
    }
}
