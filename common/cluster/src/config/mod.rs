//! Where the API is and who we are to it: from a kubeconfig, or from what Kubernetes puts into a pod.
//!
//! Read once, at the start; what rotates (token files, certificate files, plug-ins' credentials) is kept as a
//! place and read at its use. Connects to nothing.

mod credentials;
mod exec;
mod impersonation;
mod in_cluster;
mod kubeconfig;
mod server;
mod tls;
mod yaml;

use std::fmt;
use std::path::{Path, PathBuf};

use http::{HeaderName, HeaderValue};
use transport::env_proxy::Proxy;

pub(crate) use credentials::Shown;
pub use credentials::{CredentialError, Credentials};
pub use in_cluster::InCluster;
pub use server::Server;
pub use tls::{Pem, TlsFiles, TlsProblem};

/// How to reach the API, and as whom.
#[derive(Debug)]
pub struct Config {
    /// Where.
    pub server: Server,
    /// Whom to believe.
    pub tls: TlsFiles,
    /// Who we are.
    pub credentials: Credentials,
    /// The proxy that the kubeconfig names; `None`: what the environment says.
    pub proxy: Option<Proxy>,
    /// On whose behalf to act.
    pub impersonate: Vec<(HeaderName, HeaderValue)>,
    /// Further lines for the log: what weakens security.
    pub notices: Vec<String>,
}

/// Why there is no way to the API. One line each, with the fix.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path:?}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no kubeconfig.
    #[error("{path:?} is no kubeconfig: {why}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The kubeconfig asks for what there is not.
    #[error("{path:?}: {why}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and the fix.
        why: String,
    },
    /// No kubeconfig was named, and this is no pod.
    #[error(
        "this is no pod ({0} is not set): name a kubeconfig with --kubeconfig, or run as a pod with a service account"
    )]
    NoPod(&'static str),
    /// The pod has no service account's token.
    #[error(
        "the pod's service account: cannot read {path:?}: {source}; set automountServiceAccountToken, or name a kubeconfig with --kubeconfig"
    )]
    NoToken {
        /// The token's file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Config {
    /// From a kubeconfig's current context, or from the pod's own mounts without one.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(kubeconfig: Option<&Path>) -> Result<Self, ConfigError> {
        match kubeconfig {
            Some(path) => kubeconfig::load(path),
            None => InCluster::default().load(|name| std::env::var(name).ok()),
        }
    }
}

impl fmt::Display for Config {
    /// Where and by what means, without any secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.server, self.credentials)
    }
}
