//! Kubeconfig files for clients of the kube-apiserver.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::Files;
use crate::pki::Identity;

/// A kubeconfig (JSON is YAML, too) for a client with a certificate.
pub(super) fn with_certificate(files: &Files, server: SocketAddr, identity: &Identity) -> String {
    let user = json!({ "client-certificate": identity.cert, "client-key": identity.key });
    kubeconfig(files, server, &user)
}

/// A kubeconfig for a client with a bearer token.
pub(super) fn with_token(files: &Files, server: SocketAddr, token: &str) -> String {
    kubeconfig(files, server, &json!({ "token": token }))
}

fn kubeconfig(files: &Files, server: SocketAddr, user: &Value) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "only",
        "contexts": [{ "name": "only", "context": { "cluster": "only", "user": "only" } }],
        "clusters": [{
            "name": "only",
            "cluster": { "server": format!("https://{server}"), "certificate-authority": files.ca },
        }],
        "users": [{ "name": "only", "user": user }],
    })
    .to_string()
}
