//! The cluster that all cases share, and the accounts and rights that an operator would apply for one installation.

use std::path::PathBuf;

use anyhow::{Context, Result};
use e2e::kube::{Cluster, Kubectl, Tools};
use e2e::pair::Setup;
use serde_json::{Value, json};

/// The audience of agents' tokens.
pub(crate) const AUDIENCE: &str = "system:konnectivity-server";
/// The audience of the API itself.
const API: &str = "https://kubernetes.default.svc";

/// The running cluster, with two nodes.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
}

/// A namespace with the accounts `server` and `agent` and exactly the documented rights.
pub(crate) struct Installation<'a> {
    pub(crate) world: &'a World,
    pub(crate) namespace: &'static str,
}

impl World {
    pub(crate) async fn start(tools: &Tools) -> Result<Self> {
        let cluster = Cluster::start(tools, &[]).await?;
        for name in ["node-1", "node-2"] {
            let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
            cluster.kubectl().apply(&node.to_string()).await?;
        }
        Ok(Self { cluster })
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
        self.cluster.kubectl()
    }

    /// Applies an installation's accounts and rights.
    pub(crate) async fn install(&self, namespace: &'static str) -> Result<Installation<'_>> {
        let meta = |name: &str| json!({ "name": name, "namespace": namespace });
        let account =
            |name: &str| json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(name) });
        let role = |name: &str, verbs: &[&str]| {
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta(name),
                "rules": [{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs }],
            })
        };
        let objects = [
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
            account("server"),
            account("agent"),
            account("other"),
            role("server", &["get", "list", "create", "update", "delete"]),
            role("agent", &["get", "list", "watch"]),
            binding("RoleBinding", meta("server"), "Role", "server", namespace, "server"),
            binding("RoleBinding", meta("agent"), "Role", "agent", namespace, "agent"),
            binding(
                "ClusterRoleBinding",
                json!({ "name": format!("{namespace}-server") }),
                "ClusterRole",
                "system:auth-delegator",
                namespace,
                "server",
            ),
        ];
        for object in objects {
            self.kubectl().apply(&object.to_string()).await?;
        }
        Ok(Installation { world: self, namespace })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "callers write json!")]
fn binding(kind: &str, meta: Value, of: &str, role: &str, namespace: &str, account: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": meta,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": of, "name": role },
        "subjects": [{ "kind": "ServiceAccount", "namespace": namespace, "name": account }],
    })
}

impl Installation<'_> {
    /// A token of an account for the API itself.
    pub(crate) async fn api_token(&self, account: &str) -> Result<String> {
        self.world.kubectl().token(self.namespace, account, API).await
    }

    /// A kubeconfig of an account.
    pub(crate) async fn kubeconfig(&self, account: &str) -> Result<PathBuf> {
        let token = self.api_token(account).await?;
        self.world.cluster.apiserver().kubeconfig_with_token(&format!("{}-{account}", self.namespace), &token)
    }

    /// A token for the proxy-server, of a pod with that account on that node; the pod has the node's name.
    pub(crate) async fn agent_token(&self, account: &str, node: &str) -> Result<String> {
        let pod = format!("{account}-{node}");
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": pod, "namespace": self.namespace },
            "spec": {
                "nodeName": node, "serviceAccountName": account,
                "containers": [{ "name": "agent", "image": "none" }],
            },
        });
        let kubectl = self.world.kubectl();
        kubectl.apply(&object.to_string()).await?;
        let (namespace, audience) =
            (format!("--namespace={}", self.namespace), format!("--audience={AUDIENCE}"));
        let bound = ["--bound-object-kind=Pod".to_owned(), format!("--bound-object-name={pod}")];
        let token =
            kubectl.ok(&["create", "token", account, &namespace, &audience, &bound[0], &bound[1]]).await?;
        Ok(token.trim().to_owned())
    }

    /// Writes a file in the cluster's folder.
    pub(crate) fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.world.cluster.files().write(&format!("{}-{name}", self.namespace), text)?;
        Ok(path.to_str().context("a path that is text")?.to_owned())
    }

    /// kubectl in the namespace.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let namespace = format!("--namespace={}", self.namespace);
        let args: Vec<&str> = std::iter::once(namespace.as_str()).chain(args.iter().copied()).collect();
        self.world.kubectl().ok(&args).await
    }

    /// Servers that review the tokens of the account `agent`.
    pub(crate) async fn with_tokens(&self) -> Result<Setup> {
        Ok(Setup::grpc()
            .agents(0)
            .server_arg("--cluster-ca-cert=")
            .server_arg(format!("--agent-namespace={}", self.namespace))
            .server_arg("--agent-service-account=agent")
            .server_arg(format!("--authentication-audience={AUDIENCE}"))
            .server_arg(format!("--kubeconfig={}", self.kubeconfig("server").await?.display()))
            .agent_arg("--agent-cert=")
            .agent_arg("--agent-key="))
    }

    /// Servers with leases, and agents that count them; the servers' own count is 1.
    pub(crate) async fn with_leases(&self) -> Result<Setup> {
        Ok(Setup::grpc()
            .server_arg("--enable-lease-controller")
            .server_arg("--server-count=1")
            .server_arg(format!("--lease-namespace={}", self.namespace))
            .server_arg(format!("--kubeconfig={}", self.kubeconfig("server").await?.display()))
            .agent_arg("--count-server-leases")
            .agent_arg(format!("--lease-namespace={}", self.namespace))
            .agent_arg(format!("--kubeconfig={}", self.kubeconfig("agent").await?.display())))
    }

    /// The holders of all leases, by name.
    pub(crate) async fn holders(&self) -> Result<Vec<String>> {
        let text = self.kubectl(&["get", "leases", "-o", "jsonpath={.items[*].spec.holderIdentity}"]).await?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }
}
