//! Locates kube-apiserver, kubectl, etcd and the tests' kubelet.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The variable that names the folder that `hack/kube-tools` prints.
const VARIABLE: &str = "KUBE_TOOLS";

/// A folder with all four programs.
#[derive(Clone, Debug)]
pub struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// The programs in the folder that `KUBE_TOOLS` names; `None` if it is not set. That is no error: building the programs
    /// takes minutes, so it happens only on request.
    pub fn find() -> Result<Option<Self>> {
        match std::env::var_os(VARIABLE) {
            None => Ok(None),
            Some(folder) => Self::open(Path::new(&folder)).map(Some),
        }
    }

    /// Like [`Tools::find`]; builds missing programs (minutes, the first time).
    pub fn find_or_build() -> Result<Self> {
        if let Some(tools) = Self::find()? {
            return Ok(tools);
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/kube-tools");
        let output = Command::new(&script).stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("cannot run {}", script.display()))?;
        ensure!(output.status.success(), "{} failed: {}", script.display(), output.status);
        Self::open(Path::new(String::from_utf8(output.stdout)?.trim()))
    }

    fn open(folder: &Path) -> Result<Self> {
        let tools = Self { folder: folder.to_path_buf() };
        for program in [tools.apiserver(), tools.kubectl(), tools.etcd(), tools.kubelet()] {
            ensure!(
                program.is_file(),
                "{} does not exist: set {VARIABLE} to what hack/kube-tools prints",
                program.display()
            );
        }
        Ok(tools)
    }

    /// The kube-apiserver.
    pub fn apiserver(&self) -> PathBuf {
        self.folder.join("kube-apiserver")
    }

    /// The minor version of Kubernetes, by kube-apiserver: 35 for 1.35.4.
    pub fn minor(&self) -> Result<u32> {
        let output = Command::new(self.apiserver()).arg("--version").output()?;
        let text = String::from_utf8(output.stdout)?;
        let minor = text.strip_prefix("Kubernetes v1.").and_then(|rest| rest.split('.').next());
        minor.and_then(|minor| minor.parse().ok()).with_context(|| format!("not a version: {text:?}"))
    }

    /// The kubectl, usually of the same version.
    pub fn kubectl(&self) -> PathBuf {
        self.folder.join("kubectl")
    }

    /// The etcd.
    pub fn etcd(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    /// The tests' node, from `e2e/kube/kubelet`.
    pub fn kubelet(&self) -> PathBuf {
        self.folder.join("kubelet")
    }
}
