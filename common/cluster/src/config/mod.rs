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
use transport::env_proxy::{EnvProxy, Proxy, ProxyUrlError};

pub(crate) use credentials::Shown;
pub use credentials::{CredentialError, Credentials};
pub use in_cluster::InCluster;
pub use server::Server;
pub(crate) use tls::name as name_in_tls;
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
    /// The proxy before the API: the kubeconfig's, or else the environment's.
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
    /// The environment puts a proxy before the API that cannot be used.
    #[error("the way to the Kubernetes API at {at}: {source}; or name {host} in NO_PROXY")]
    Proxy {
        /// `HOST:PORT`.
        at: String,
        /// The API's host.
        host: String,
        /// Why.
        source: ProxyUrlError,
    },
}

impl Config {
    /// From a kubeconfig's current context, or from the pod's own mounts without one.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(kubeconfig: Option<&Path>) -> Result<Self, ConfigError> {
        Self::load_in(kubeconfig, |name| std::env::var(name).ok())
    }

    /// The same, in an environment of the caller's.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load_in(
        kubeconfig: Option<&Path>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut config = match kubeconfig {
            Some(path) => {
                let config = kubeconfig::load(path)?;
                config.check_files().map_err(|why| ConfigError::Content { path: path.to_owned(), why })?;
                config
            }
            None => InCluster::default().load(&environment)?,
        };
        // As client-go: NO_PROXY is for the environment's proxies alone.
        if config.proxy.is_none() {
            let Server { https, host, port, .. } = &config.server;
            let proxies = EnvProxy::for_http(*https, environment);
            let found = proxies.proxy_for(host, *port).map_err(|source| ConfigError::Proxy {
                at: config.server.authority(),
                host: host.clone(),
                source,
            })?;
            config.proxy = found.cloned();
        }
        Ok(config)
    }

    /// The files that a kubeconfig names can be read at the start, or the process does not start; client-go does the same.
    /// They are read again at each use, since they rotate.
    fn check_files(&self) -> Result<(), String> {
        self.tls.check_files().map_err(|problem| problem.to_string())?;
        self.credentials.check_file().map_err(|error| error.to_string())
    }
}

impl fmt::Display for Config {
    /// Where and by what means, without any secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.server, self.credentials)
    }
}
