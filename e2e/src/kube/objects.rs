//! The objects of a node, its pods and its extensions, as controllers and kubelets would write them.

use std::fs::read;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Cluster, Kubectl, Node};

/// The namespace of the webhook's and the aggregated API's services.
pub const EXTENSIONS: &str = "extensions";

/// The nodes, which are the same process, and whether they announce that they accept WebSockets.
const NODES: [(&str, bool); 2] = [("node", false), ("node-ws", true)];

/// The pods of a workload, each on the node of the same index.
const PODS: [&str; 2] = ["app", "app-ws"];

/// The containers of every pod.
const CONTAINERS: [&str; 3] = ["app", "big", "ticks"];

/// Registers the node twice: as `node`, and as `node-ws`, which announces that it accepts WebSockets if kube-apiserver has a field
/// for that.
pub async fn nodes(kubectl: &Kubectl, node: &Node) -> Result<()> {
    let of = |(name, websockets): (&str, bool)| {
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": name },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": node.address.ip() }],
                "daemonEndpoints": { "kubeletEndpoint": { "Port": node.address.port() } },
                "conditions": [ready()],
            },
        });
        if websockets && node.gets_websockets {
            object["status"]["declaredFeatures"] = json!(["ExtendWebSocketsToKubelet"]);
        }
        object
    };
    with_status(kubectl, &list(NODES.map(of))).await
}

/// Creates a namespace with two running pods, `app` on `node` and `app-ws` on `node-ws`, and a service `web` for the first
/// pod's web server. Each pod has the containers `app` (which can be attached to), `big` and `ticks`.
pub async fn workload(kubectl: &Kubectl, node: &Node, namespace: &str) -> Result<()> {
    kubectl
        .apply(
            &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } })
                .to_string(),
        )
        .await?;
    let mut items = Vec::new();
    for (pod, (on, _)) in PODS.into_iter().zip(NODES) {
        items.push(pod_object(node, namespace, pod, on));
    }
    with_status(kubectl, &list(items)).await?;
    let meta = json!({ "name": "web", "namespace": namespace });
    let port = node.web.port();
    let mut items = vec![json!({ "apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {
        "ports": [{ "name": "http", "port": 80, "targetPort": port }],
    } })];
    // kube-apiserver refuses endpoints with a loopback address.
    if !node.web.ip().is_loopback() {
        let target = json!({ "kind": "Pod", "name": PODS[0], "namespace": namespace });
        let ports = json!([{ "name": "http", "port": port }]);
        // For services/proxy kube-apiserver reads Endpoints up to 1.36, and EndpointSlices from 1.37.
        items.push(json!({ "apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": [{
            "addresses": [{ "ip": node.web.ip(), "targetRef": target }],
            "ports": ports,
        }] }));
        items.push(json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "web", "namespace": namespace, "labels": { "kubernetes.io/service-name": "web" },
            },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": [node.web.ip()], "targetRef": target }],
            "ports": ports,
        }));
    }
    kubectl.apply(&list(items)).await
}

fn pod_object(node: &Node, namespace: &str, name: &str, on: &str) -> Value {
    let containers = CONTAINERS.map(|name| {
        json!({
            "name": name,
            "image": "none",
            "stdin": true,
            "ports": [{ "containerPort": node.web.port() }],
        })
    });
    let statuses = CONTAINERS.map(|name| {
        json!({
            "name": name,
            "image": "none",
            "imageID": "none",
            "ready": true,
            "started": true,
            "restartCount": 0,
            "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
        })
    });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "nodeName": on, "containers": containers },
        "status": {
            "phase": "Running",
            "hostIP": node.address.ip(),
            "podIP": node.web.ip(),
            "podIPs": [{ "ip": node.web.ip() }],
            "conditions": [ready()],
            "containerStatuses": statuses,
        },
    })
}

/// Creates the validating webhook, which is called for every ConfigMap with the label `validated`, and the aggregated API
/// `tunnel.example/v1` with the resource `words`. The node serves both, under the names of services.
pub async fn extensions(cluster: &Cluster, node: &Node) -> Result<()> {
    let ca = &cluster.files().ca;
    let ca = base64(&read(ca).with_context(|| format!("cannot read {}", ca.display()))?);
    let (kubectl, port) = (cluster.kubectl(), node.address.port());
    let service = |name: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "namespace": EXTENSIONS },
            "spec": { "type": "ExternalName", "externalName": node.address.ip(), "ports": [{ "port": port }] },
        })
    };
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": EXTENSIONS } });
    kubectl.apply(&namespace.to_string()).await?;
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "validator" },
        "webhooks": [{
            "name": "validator.tunnel.example",
            "clientConfig": {
                "service": { "name": "validator", "namespace": EXTENSIONS, "path": "/validate", "port": port },
                "caBundle": ca,
            },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"],
            }],
            "objectSelector": { "matchExpressions": [{ "key": "validated", "operator": "Exists" }] },
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "admissionReviewVersions": ["v1"],
        }],
    });
    let api = json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": { "name": "v1.tunnel.example" },
        "spec": {
            "group": "tunnel.example",
            "version": "v1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": { "name": "words", "namespace": EXTENSIONS, "port": port },
            "caBundle": ca,
        },
    });
    kubectl.apply(&list([service("validator"), service("words"), webhook, api])).await
}

fn ready() -> Value {
    json!({
        "type": "Ready",
        "status": "True",
        "reason": "Started",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn list(items: impl IntoIterator<Item = Value>) -> String {
    let items: Vec<Value> = items.into_iter().collect();
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

/// Creates objects and then sets their status, which a create ignores.
async fn with_status(kubectl: &Kubectl, manifest: &str) -> Result<()> {
    kubectl.apply(manifest).await?;
    kubectl.apply_status(manifest).await
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_pads() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }
}
