//! The folder of a cluster: its certificates, its data, and what is written on the way.

use std::fs::write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{ExtendedKeyUsagePurpose, KeyPair};
use tempfile::TempDir;

use super::NODE_ADDRESS;
use super::objects::EXTENSIONS;
use crate::pki::{Authority, Identity, Subject};

/// The group that may do everything.
const MASTERS: &str = "system:masters";

/// Certificates and keys of one cluster, below one folder that goes with this value.
#[derive(Debug)]
pub struct Files {
    folder: TempDir,
    /// The one authority of the cluster.
    pub ca: PathBuf,
    /// kube-apiserver's own.
    pub apiserver: Identity,
    /// An administrator's, in the group `system:masters`.
    pub admin: Identity,
    /// kube-apiserver's towards kubelets, in the same group.
    pub kubelet_client: Identity,
    /// The kubelet's own, also valid for the webhook's and the aggregated API's service names.
    pub kubelet: Identity,
    /// The key pair that signs service account tokens: the certificate's place holds the public key alone.
    pub tokens: Identity,
}

impl Files {
    /// Makes everything anew.
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

    /// A path below the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file below the folder, and yields its path.
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
