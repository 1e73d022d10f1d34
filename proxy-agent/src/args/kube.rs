//! Flags of the leases and of the Kubernetes API client.

use std::ffi::OsString;

use flags::{FlagError, FlagSet, existing_file};

use super::{KubeClient, LabelSelector, Leases};

/// The flags as written on the command line.
#[derive(Debug)]
pub(super) struct RawFlags {
    count_server_leases: bool,
    lease_namespace: String,
    lease_label_selector: LabelSelector,
    kubeconfig: OsString,
    kube_api_content_type: String,
}

impl Default for RawFlags {
    fn default() -> Self {
        Self {
            count_server_leases: false,
            lease_namespace: "kube-system".into(),
            lease_label_selector: LabelSelector::konnectivity_server(),
            kubeconfig: OsString::new(),
            kube_api_content_type: "application/vnd.kubernetes.protobuf".into(),
        }
    }
}

impl RawFlags {
    pub(super) fn register<'a>(&'a mut self, set: &mut FlagSet<'a>) {
        set.heading("Kubernetes");
        set.add(
            "count-server-leases",
            &mut self.count_server_leases,
            "Count servers by their leases instead of the count that servers send.",
        );
        set.add("lease-namespace", &mut self.lease_namespace, "Namespace of the leases.");
        set.add(
            "lease-label-selector",
            &mut self.lease_label_selector,
            "Label selector of the leases that count.",
        )
        .old_name("lease-label");
        set.add(
            "kubeconfig",
            &mut self.kubeconfig,
            "Kubeconfig for the Kubernetes API, to count leases. Empty: the pod's service account.",
        );
        set.add(
            "kube-api-content-type",
            &mut self.kube_api_content_type,
            "Media type of requests to the Kubernetes API. The value has no effect: requests are JSON.",
        );
    }

    pub(super) fn check(self, warnings: &mut Vec<String>) -> Result<(Leases, KubeClient), FlagError> {
        let kubeconfig = existing_file("kubeconfig", self.kubeconfig)?;
        if kubeconfig.is_some() && !self.count_server_leases {
            warnings.push("--kubeconfig has no effect: leases are not counted".to_owned());
        }
        let leases = Leases {
            counted: self.count_server_leases,
            namespace: self.lease_namespace,
            selector: self.lease_label_selector,
        };
        Ok((leases, KubeClient { kubeconfig, content_type: self.kube_api_content_type }))
    }
}
