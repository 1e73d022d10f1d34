//! The folder of a cluster: its certificates, its data and its temporary files.

use std::fs::write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{ExtendedKeyUsagePurpose, KeyPair};
use tempfile::TempDir;

use super::NODE_ADDRESS;
use super::objects::EXTENSIONS;
use crate::pki::{Authority, Identity, Subject};

/// The group with all rights.
const MASTERS: &str = "system:masters";

/// Certificates and keys of one cluster, in one folder that is deleted on drop.
#[derive(Debug)]
pub struct Files {
    folder: TempDir,
    /// The cluster's only CA.
    pub ca: PathBuf,
    /// kube-apiserver's serving certificate.
    pub apiserver: Identity,
    /// An administrator's client certificate, in the group `system:masters`.
    pub admin: Identity,
    /// kube-apiserver's client certificate for kubelets, in the same group.
    pub kubelet_client: Identity,
    /// The kubelet's serving certificate, also valid for the service names of the webhook and of the aggregated API.
    pub kubelet: Identity,
    /// The key pair that signs service account tokens; the certificate file contains only the public key.
    pub tokens: Identity,
}

impl Files {
    /// Creates all files.
    pub fn create() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("kube").tempdir()?;
        let authority = Authority::create("kube")?;
        let ca = folder.path().join("ca.crt");
        write(&ca, authority.pem())?;
        let issue = |name, organisation, names: &[&str], usage| {
            authority.issue(&Subject { name, organisation, names, usage })?.save(folder.path(), name)
        };
        let server = |name, names: &[&str]| issue(name, None, names, ExtendedKeyUsagePurpose::ServerAuth);
        let client = |name| issue(name, Some(MASTERS), &[], ExtendedKeyUsagePurpose::ClientAuth);
        let (validator, words) = (format!("validator.{EXTENSIONS}.svc"), format!("words.{EXTENSIONS}.svc"));
        let tokens =
            Identity { cert: folder.path().join("tokens.pub"), key: folder.path().join("tokens.key") };
        let pair = KeyPair::generate()?;
        write(&tokens.key, pair.serialize_pem())?;
        write(&tokens.cert, pair.public_key_pem())?;
        Ok(Self {
            apiserver: server("kube-apiserver", &["127.0.0.1", "localhost", "kubernetes.default.svc"])?,
            admin: client("admin")?,
            kubelet_client: client("kubelet-client")?,
            kubelet: server("kubelet", &[NODE_ADDRESS, "127.0.0.2", &validator, &words])?,
            ca,
            tokens,
            folder,
        })
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in the folder, and returns its path.
    pub fn write(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.path(name);
        write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
