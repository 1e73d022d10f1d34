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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Everything that the agent may call itself.
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
    /// Tells one agent from another: two streams with equal keys are one party's.
    key: Arc<str>,
    vouched: bool,
}

impl Identity {
    /// Nobody vouches for anything.
    pub fn nobody() -> Self {
        Self { names: BTreeSet::new(), addresses: BTreeSet::new(), key: "".into(), vouched: false }
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
        Self { names, addresses, key, vouched: true }
    }

    /// By token: its user, and the node and pod that the API server says it is bound to.
    pub fn of_token(user: &User) -> Self {
        let [node, pod, uid] = [NODE_NAME, POD_NAME, POD_UID].map(|fact| user.extra(fact));
        let named = [Some(user.username.as_str()), node, pod, uid];
        let names = named.into_iter().flatten().filter(|name| !name.is_empty()).map(str::to_owned).collect();
        // A pod's successor on the same node is the same party: its streams take over from those that linger.
        let key = format!("token {} {:?}", user.username, node.or(uid)).into();
        Self { names, addresses: BTreeSet::new(), key, vouched: true }
    }

    /// Whether somebody vouches for anything.
    pub fn is_vouched(&self) -> bool {
        self.vouched
    }

    /// Whether this is one of its names.
    pub fn is_named(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Whether any of its names is on a list.
    pub fn is_any_of(&self, list: &[String]) -> bool {
        list.iter().any(|name| self.names.contains(name))
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
