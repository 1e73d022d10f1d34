//! A real Kubernetes control plane for tests: etcd, kube-apiservers that share it, and credentials for both.
//!
//! There are no controllers, no scheduler and no nodes: a Deployment creates no pods, and no controller creates a default
//! service account. The tests use the real kubectl for objects, tokens and everything else, as an operator would. The endpoints
//! behind a tunnel are in [`Node`].
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use e2e::kube::{Cluster, Tools};
//! let Some(tools) = Tools::find()? else { return Ok(()) };
//! let cluster = Cluster::start(&tools, &[]).await?;
//! let kubectl = cluster.kubectl();
//! kubectl.apply(r#"{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "me", "namespace": "default"}}"#).await?;
//! let token = kubectl.token("default", "me", "some-audience").await?;
//! let kubeconfig = cluster.apiserver().kubeconfig_with_token("me", &token)?;
//! # Ok(())
//! # }
//! ```

mod apiserver;
mod etcd;
mod files;
mod kubeconfig;
mod kubectl;
mod netns;
mod node;
mod objects;
mod session;
mod terminal;
mod tools;

use std::sync::Arc;

use anyhow::Result;

pub use self::apiserver::{ApiServer, Egress};
pub use self::etcd::Etcd;
pub use self::files::Files;
pub use self::kubectl::{Kubectl, Output};
pub use self::netns::{NODE_ADDRESS, enter, inside};
pub use self::node::Node;
pub use self::objects::{EXTENSIONS, extensions, nodes, workload};
pub use self::session::Session;
pub use self::terminal::Terminal;
pub use self::tools::Tools;

/// A running control plane. It ends when its handle is dropped, and also when this process is killed.
#[derive(Debug)]
pub struct Cluster {
    apiservers: Vec<ApiServer>,
    etcd: Etcd,
    files: Arc<Files>,
}

impl Cluster {
    /// Starts etcd and one kube-apiserver for each element of `egress`, or one that dials directly if `egress` is empty; waits
    /// until all are ready (4 to 10 s).
    pub async fn start(tools: &Tools, egress: &[Egress]) -> Result<Self> {
        let files = Arc::new(Files::create()?);
        let mut etcd = Etcd::start(tools, &files)?;
        etcd.wait_ready().await?;
        let mut apiservers = Vec::new();
        let egresses: Vec<Option<&Egress>> =
            if egress.is_empty() { vec![None] } else { egress.iter().map(Some).collect() };
        for (index, egress) in egresses.into_iter().enumerate() {
            let configuration = egress.map(Egress::configuration);
            apiservers.push(ApiServer::start(tools, index, &etcd, configuration.as_deref(), files.clone())?);
        }
        for apiserver in &mut apiservers {
            apiserver.wait_ready().await?;
        }
        Ok(Self { apiservers, etcd, files })
    }

    /// Starts another kube-apiserver with this EgressSelectorConfiguration, without waiting.
    pub fn join(&self, tools: &Tools, configuration: &str) -> Result<ApiServer> {
        ApiServer::start(tools, self.apiservers.len(), &self.etcd, Some(configuration), self.files.clone())
    }

    /// The first kube-apiserver.
    pub fn apiserver(&self) -> &ApiServer {
        self.apiservers.first().expect("a cluster has a kube-apiserver")
    }

    /// All kube-apiservers, in the order of the egress configurations.
    pub fn apiservers(&self) -> &[ApiServer] {
        &self.apiservers
    }

    /// The administrator's kubectl at the first kube-apiserver.
    pub fn kubectl(&self) -> &Kubectl {
        self.apiserver().kubectl()
    }

    /// Certificates and other files.
    pub fn files(&self) -> &Files {
        &self.files
    }
}
