//! A release in the cluster: installed by helm, read back from the API, and run as kubelet would run it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use e2e::kube::Cluster;
use serde_json::Value;

use crate::helm::{Chart, utf8};
use crate::kubelet::{Kubelet, Running};
use crate::pods::{Pod, list, pods, string};

/// The release's namespace.
pub(crate) const NAMESPACE: &str = "kube-system";

/// `helm install` of a chart with a values file; returns its notes.
pub(crate) async fn install(
    cluster: &Cluster,
    chart: Chart,
    values: &Path,
    sets: &[String],
) -> Result<String> {
    let folder = chart.folder();
    let mut args = vec!["install".to_owned(), chart.name().into(), utf8(&folder)?.into()];
    args.extend(["--values".into(), utf8(values)?.into()]);
    for set in sets {
        args.extend(["--set".into(), set.clone()]);
    }
    helm(cluster, args).await
}

/// helm as the cluster's administrator.
pub(crate) async fn helm(cluster: &Cluster, mut args: Vec<String>) -> Result<String> {
    args.extend(["--namespace".into(), NAMESPACE.into(), "--kubeconfig".into()]);
    args.push(cluster.apiserver().kubeconfig().display().to_string());
    let run = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        crate::helm::helm(&args)
    });
    run.await?
}

/// An object of the API.
pub(crate) async fn get(cluster: &Cluster, kind: &str, name: &str) -> Result<Value> {
    let text = cluster.kubectl().ok(&["get", kind, name, "--namespace", NAMESPACE, "-o", "json"]).await?;
    Ok(serde_json::from_str(&text)?)
}

/// The pod template of a workload in the API.
pub(crate) async fn template(cluster: &Cluster, kind: &str, name: &str) -> Result<Pod> {
    let object = get(cluster, kind, name).await?;
    pods(&[object])?.pop().context("a pod template")
}

/// A token as kubelet requests it: bound to an existing pod.
async fn pod_token(cluster: &Cluster, account: &str, audience: &str, pod: &str) -> Result<String> {
    let bound = format!("--bound-object-name={pod}");
    let mut args =
        vec!["create", "token", account, "--namespace", NAMESPACE, "--bound-object-kind=Pod", &bound];
    let audience = format!("--audience={audience}");
    if audience != "--audience=" {
        args.push(&audience);
    }
    cluster.kubectl().ok(&args).await
}

/// Runs a pod, with Secrets, ConfigMaps and tokens from the API.
pub(crate) async fn run(
    cluster: &Cluster,
    pod: &Pod,
    name: &str,
    apiserver: std::net::SocketAddr,
) -> Result<(Kubelet, Running)> {
    let mut kubelet = Kubelet::new()?;
    let account = string(&pod.spec, "/serviceAccountName");
    for source in list(&pod.spec, "/volumes").iter().flat_map(|volume| list(volume, "/projected/sources")) {
        if let Some(token) = source.get("serviceAccountToken") {
            let audience = string(token, "/audience");
            kubelet.token(audience, pod_token(cluster, account, audience, name).await?.trim());
        }
        for (field, kind) in [("secret", "Secret"), ("configMap", "ConfigMap")] {
            let kept = string(source, &format!("/{field}/name"));
            if !kept.is_empty() {
                kubelet.keep_object(kind, &get(cluster, kind, kept).await?)?;
            }
        }
    }
    if pod.spec["automountServiceAccountToken"] == true {
        let token = cluster.kubectl().ok(&["create", "token", account, "--namespace", NAMESPACE]).await?;
        let ca = std::fs::read(&cluster.files().ca)?;
        kubelet.account(NAMESPACE, token.trim(), &ca)?;
    }
    kubelet.apiserver(apiserver);
    kubelet.real_host();
    let running = kubelet.run(pod, name)?;
    Ok((kubelet, running))
}

/// Writes text to a file in the cluster's folder.
pub(crate) fn file(cluster: &Cluster, name: &str, text: &str) -> Result<PathBuf> {
    cluster.files().write(name, text)
}
