//! A fake Kubernetes API that reviews tokens, and pairs whose agents present one.

use std::path::PathBuf;

use anyhow::Result;
use fake_apiserver::FakeApi;
use serde_json::json;

use crate::pair::Setup;

/// The user of valid tokens.
pub const USER: &str = "system:serviceaccount:kube-system:konnectivity-agent";
/// The audience of valid tokens.
pub const AUDIENCE: &str = "system:konnectivity-server";

/// A fake API server, and the files that a server needs to use it.
#[derive(Debug)]
pub struct World {
    /// The API.
    pub api: FakeApi,
    folder: tempfile::TempDir,
}

impl World {
    /// Starts the API.
    pub async fn new() -> Result<Self> {
        Ok(Self { api: FakeApi::start().await?, folder: tempfile::tempdir()? })
    }

    /// The server's kubeconfig.
    pub fn kubeconfig(&self) -> Result<String> {
        let path = self.api.kubeconfig(self.folder.path(), "{token: canary-of-the-server}")?;
        Ok(path.display().to_string())
    }

    /// A file with a token.
    pub fn token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(name);
        std::fs::write(&path, format!("{token}\n"))?;
        Ok(path)
    }

    /// Sets the review of this token: it belongs to `user`, of a pod on that node.
    pub fn knows(&self, token: &str, user: &str, node: &str) {
        let extra = json!({"authentication.kubernetes.io/node-name": [node]});
        let user = json!({"username": user, "extra": extra});
        self.api.set_review(token, json!({"authenticated": true, "user": user, "audiences": [AUDIENCE]}));
    }

    /// Servers that require tokens, and agents that present this one.
    pub fn setup(&self, token: &str) -> Result<Setup> {
        self.require(token, Setup::grpc())
    }

    /// The same for an existing setup.
    pub fn require(&self, token: &str, setup: Setup) -> Result<Setup> {
        let path = self.token(&format!("token-{token}"), token)?;
        Ok(setup
            .server_arg("--cluster-ca-cert=")
            .server_arg("--agent-namespace=kube-system")
            .server_arg("--agent-service-account=konnectivity-agent")
            .server_arg(format!("--authentication-audience={AUDIENCE}"))
            .server_arg(format!("--kubeconfig={}", self.kubeconfig()?))
            .agent_arg("--agent-cert=")
            .agent_arg("--agent-key=")
            .agent_arg(format!("--service-account-token-path={}", path.display())))
    }
}
