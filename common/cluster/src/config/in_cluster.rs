//! The pod's configuration for the API: two variables and two files that kubelet provides.

use std::path::Path;

use super::credentials::Credentials;
use super::tls::{Pem, TlsFiles};
use super::{Config, Server};

/// Where Kubernetes mounts the service account. Source: client-go `rest.InClusterConfig`.
pub(super) const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Reads the environment. The files in `mount`, `token` and `ca.crt`, are read at each use, because kubelet rotates
/// them.
///
/// # Errors
/// If this is not a pod, or it has no service account.
pub(super) fn load(mount: &Path, environment: impl Fn(&str) -> Option<String>) -> Result<Config, String> {
    let missing = |name: &str| {
        format!(
            "this is not a pod ({name} is not set): name a kubeconfig with --kubeconfig, or run as a pod with a service account"
        )
    };
    let variable = |name| environment(name).filter(|value| !value.is_empty()).ok_or_else(|| missing(name));
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let port = variable("KUBERNETES_SERVICE_PORT")?;
    let port = port.parse().map_err(|_| missing("KUBERNETES_SERVICE_PORT"))?;
    let token = mount.join("token");
    std::fs::read(&token).map_err(|error| {
        format!(
            "the pod's service account: cannot read {token:?}: {error}; set automountServiceAccountToken, or name a \
             kubeconfig with --kubeconfig"
        )
    })?;
    Ok(Config {
        server: Server { https: true, host, port, path: String::new() },
        tls: TlsFiles { ca: Some(Pem::File(mount.join("ca.crt"))), ..TlsFiles::default() },
        credentials: Credentials::TokenFile(token),
        proxy: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_cluster_configuration_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let environment = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
            _ => None,
        };
        let error = load(folder.path(), environment).err().unwrap();
        assert!(error.contains("token") && error.contains("--kubeconfig"), "{error}");
        std::fs::write(folder.path().join("token"), "t").unwrap();
        let config = load(folder.path(), environment).unwrap();
        assert_eq!(config.server.to_string(), "https://[fd00::1]:443");
    }

    #[test]
    fn missing_pod_environment_is_an_error() {
        let error = load(Path::new(MOUNT), |_| None).err().unwrap();
        assert!(error.contains("KUBERNETES_SERVICE_HOST") && error.contains("--kubeconfig"), "{error}");
    }
}
