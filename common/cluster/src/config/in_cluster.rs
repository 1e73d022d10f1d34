//! The pod's configuration for the API: two variables and two files that kubelet provides.

use std::path::PathBuf;

use super::credentials::Credentials;
use super::tls::{Pem, TlsFiles};
use super::{Config, ConfigError, Server};

/// Where Kubernetes mounts the service account. Source: client-go `rest.InClusterConfig`.
const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The service account that kubelet mounts into a pod.
#[derive(Debug, Clone)]
pub struct InCluster {
    /// The folder with `token` and `ca.crt`.
    pub mount: PathBuf,
}

impl Default for InCluster {
    fn default() -> Self {
        Self { mount: MOUNT.into() }
    }
}

impl InCluster {
    /// Reads the environment. The files are read at each use, because kubelet rotates them.
    ///
    /// # Errors
    /// If this is not a pod, or it has no service account.
    pub fn load(&self, environment: impl Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        let variable = |name: &'static str| {
            environment(name).filter(|value| !value.is_empty()).ok_or(ConfigError::NoPod(name))
        };
        let host = variable("KUBERNETES_SERVICE_HOST")?;
        let port = variable("KUBERNETES_SERVICE_PORT")?;
        let port = port.parse().map_err(|_| ConfigError::NoPod("KUBERNETES_SERVICE_PORT"))?;
        let token = self.mount.join("token");
        if let Err(source) = std::fs::read(&token) {
            return Err(ConfigError::NoToken { path: token, source });
        }
        Ok(Config {
            server: Server { https: true, host, port, path: String::new() },
            tls: TlsFiles { ca: Some(Pem::File(self.mount.join("ca.crt"))), ..TlsFiles::default() },
            credentials: Credentials::token_file(token),
            proxy: None,
            impersonate: Vec::new(),
            warnings: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_cluster_configuration_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let pod = InCluster { mount: folder.path().to_owned() };
        let environment = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
            _ => None,
        };
        let error = pod.load(environment).unwrap_err().to_string();
        assert!(error.contains("token") && error.contains("--kubeconfig"), "{error}");
        std::fs::write(folder.path().join("token"), "t").unwrap();
        let config = pod.load(environment).unwrap();
        assert_eq!(config.server.to_string(), "https://[fd00::1]:443");
        assert!(!format!("{config:?}").contains("\"t\""));
    }

    #[test]
    fn missing_pod_environment_is_an_error() {
        let error = InCluster::default().load(|_| None).unwrap_err().to_string();
        assert!(error.contains("KUBERNETES_SERVICE_HOST") && error.contains("--kubeconfig"), "{error}");
    }
}
