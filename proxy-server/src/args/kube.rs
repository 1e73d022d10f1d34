//! Flags of the leases and of the Kubernetes API client.

use std::collections::BTreeMap;
use std::ffi::OsString;

use flags::{FlagError, FlagSet, existing_file};

use super::{KubeClient, Leases};

/// The flags as written on the command line.
#[derive(Debug)]
pub(super) struct RawFlags {
    enable_lease_controller: bool,
    lease_namespace: String,
    lease_label: String,
    kubeconfig: OsString,
    kubeconfig_qps: f32,
    kubeconfig_burst: i64,
    kube_api_content_type: String,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            enable_lease_controller: false,
            lease_namespace: "kube-system".into(),
            lease_label: "k8s-app=konnectivity-server".into(),
            kubeconfig: OsString::new(),
            kubeconfig_qps: 0.0,
            kubeconfig_burst: 0,
            kube_api_content_type: "application/vnd.kubernetes.protobuf".into(),
        }
    }
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Kubernetes");
        set.add(
            "enable-lease-controller",
            &mut self.enable_lease_controller,
            "Publish a lease for this replica and delete expired leases.",
        );
        set.add("lease-namespace", &mut self.lease_namespace, "Namespace of the leases.");
        set.add("lease-label", &mut self.lease_label, "Labels of the leases: KEY=VALUE, comma-separated.");
        set.add(
            "kubeconfig",
            &mut self.kubeconfig,
            "Kubeconfig for the Kubernetes API, for leases and token reviews. Empty: the pod's service account.",
        );
        set.add(
            "kubeconfig-qps",
            &mut self.kubeconfig_qps,
            "Requests to the Kubernetes API per second. 0 or less: no limit, but 32 token reviews at once.",
        );
        set.add(
            "kubeconfig-burst",
            &mut self.kubeconfig_burst,
            "Requests to the Kubernetes API in one burst above --kubeconfig-qps. 0 or less: 10.",
        );
        set.add(
            "kube-api-content-type",
            &mut self.kube_api_content_type,
            "Media type of requests to the Kubernetes API. The value has no effect: requests are JSON.",
        );
    }

    /// `tokens`: the server reviews tokens.
    pub(super) fn check(
        self,
        tokens: bool,
        warnings: &mut Vec<String>,
    ) -> Result<(Leases, KubeClient), FlagError> {
        let kubeconfig = existing_file("kubeconfig", self.kubeconfig)?;
        if kubeconfig.is_some() && !tokens && !self.enable_lease_controller {
            warnings
                .push("--kubeconfig has no effect: there are neither leases nor token reviews".to_owned());
        }
        // The server refuses bad labels even with the controller off, as Go does once its listeners are up.
        let labels = labels(&self.lease_label)?;
        let leases =
            Leases { enabled: self.enable_lease_controller, namespace: self.lease_namespace, labels };
        let kube = KubeClient {
            kubeconfig,
            qps: self.kubeconfig_qps,
            burst: self.kubeconfig_burst,
            content_type: self.kube_api_content_type,
        };
        Ok((leases, kube))
    }
}

/// Parses `KEY=VALUE` pairs separated by commas, and trims blanks. Each pair has exactly one `=`; key and value are not checked
/// further.
fn labels(text: &str) -> Result<BTreeMap<String, String>, FlagError> {
    let want = "it must be KEY=VALUE, or several by commas";
    let label = |pair: &str| {
        let parts = pair.split_once('=').filter(|(_, value)| !value.contains('='));
        let (key, value) =
            parts.ok_or_else(|| FlagError::value("lease-label", format_args!("{text:?}"), want))?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    };
    text.split(',').map(label).collect()
}
