//! The API's address and our credentials: from a kubeconfig, or from kubelet's files in a pod.
//!
//! Read once, at the start. Of values that rotate (token files, certificate files, plug-ins' credentials) the location
//! is kept, and they are read at each use. Makes no connection.

mod credentials;
mod exec;
mod in_cluster;
mod kubeconfig;
mod server;
mod tls;
mod yaml;

use std::fmt;
use std::path::Path;

use net::env_proxy::{EnvProxy, Proxy};

pub(crate) use credentials::PresentedCredentials;
pub use credentials::{Credentials, read_token};
pub use server::Server;
pub(crate) use tls::name as name_in_tls;
pub use tls::{Pem, TlsFiles};

/// How to reach the API, and our credentials.
pub struct Config {
    /// The API's address.
    pub server: Server,
    /// Trusted authorities and our certificate.
    pub tls: TlsFiles,
    /// Our credentials.
    pub credentials: Credentials,
    /// The proxy for the API: the kubeconfig's, otherwise the environment's.
    pub proxy: Option<Proxy>,
}

impl Config {
    /// From a kubeconfig's current context; without a kubeconfig, from the pod's own mounts. Logs the warnings.
    ///
    /// # Errors
    /// Why the API cannot be configured, and the fix, in one line.
    pub fn load(kubeconfig: Option<&Path>) -> Result<Self, String> {
        let config = Self::load_in(kubeconfig, |name| std::env::var(name).ok())?;
        for warning in config.warnings() {
            tracing::warn!("{warning}");
        }
        Ok(config)
    }

    /// Warnings about settings of a kubeconfig that weaken security.
    fn warnings(&self) -> impl Iterator<Item = &'static str> {
        let insecure =
            "the kubeconfig sets insecure-skip-tls-verify: the API server's certificate is not verified";
        let clear = "the kubeconfig's server is http: tokens travel in the clear";
        let found = [(self.tls.insecure, insecure), (!self.server.https, clear)];
        found.into_iter().filter_map(|(found, text)| found.then_some(text))
    }

    /// The same, with the caller's environment.
    ///
    /// # Errors
    /// Why the API cannot be configured, and the fix, in one line.
    pub fn load_in(
        kubeconfig: Option<&Path>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let mut config = match kubeconfig {
            Some(path) => {
                let config = kubeconfig::load(path)?;
                // As with client-go. The files are read again at each use, because they rotate.
                let checked = config.tls.check_files().and_then(|()| config.credentials.check_file());
                checked.map_err(|why| format!("{path:?}: {why}"))?;
                config
            }
            None => in_cluster::load(Path::new(in_cluster::MOUNT), &environment)?,
        };
        // As in client-go, NO_PROXY applies only to the environment's proxies.
        if config.proxy.is_none() {
            let Server { https, host, port, .. } = &config.server;
            let proxies = EnvProxy::for_http(*https, environment);
            let found = proxies.proxy_for(host, *port).map_err(|error| {
                let at = config.server.authority();
                format!("the way to the Kubernetes API at {at}: {error}; or name {host} in NO_PROXY")
            })?;
            config.proxy = found.cloned();
        }
        Ok(config)
    }
}

impl fmt::Display for Config {
    /// The address and the kind of credentials, without any secret. Reads the client certificate's file for its subject.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with ", self.server)?;
        if self.tls.identity.is_none() {
            return self.credentials.fmt(f);
        }
        if !matches!(self.credentials, Credentials::None) {
            write!(f, "{} and ", self.credentials)?;
        }
        let subject = self.tls.subject();
        write!(f, "client certificate {}", subject.as_deref().unwrap_or("(unreadable)"))
    }
}
