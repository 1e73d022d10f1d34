//! Every case against the API server's own schemas and admission: unknown and missing fields are errors. Monitors, rules and
//! certificates are validated by the CRDs of their projects (`hack/crds`).

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::kube::Cluster;
use serde_json::{Value, json};

use crate::helm::{Chart, all_cases, objects, release};
use crate::pods::{pods, string};
use crate::yaml;

/// Kinds that a plain cluster does not know, with the least number of objects in all cases.
const FOREIGN: [(&str, usize); 3] = [("PodMonitor", 3), ("PrometheusRule", 2), ("Certificate", 3)];

/// Installs the CRDs of optional objects; returns when they are served.
async fn definitions(cluster: &Cluster) -> Result<()> {
    let folder = std::env::var("CRDS").context("CRDS is not set: it is what hack/crds prints")?;
    let kubectl = cluster.kubectl();
    kubectl.ok(&["create", "-f", &folder]).await?;
    kubectl.ok(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await?;
    // The namespace of monitors and rules in the cases.
    kubectl.ok(&["create", "namespace", "monitoring"]).await?;
    for (kind, spec) in [
        (
            "PodMonitor",
            json!({ "selector": {}, "podMetricsEndpoints": [{ "port": "health", "paths": "/" }] }),
        ),
        ("PodMonitor", json!({ "selector": {}, "podMetricsEndpoints": [{ "interval": "half a minute" }] })),
        ("PrometheusRule", json!({ "groups": [{ "name": "a", "rules": [{ "alert": "A" }] }] })),
        ("Certificate", json!({ "secretName": "a", "issuerRef": { "name": "a" }, "usages": ["serving"] })),
    ] {
        let group = if kind == "Certificate" { "cert-manager.io/v1" } else { "monitoring.coreos.com/v1" };
        let wrong =
            json!({ "apiVersion": group, "kind": kind, "metadata": { "name": "wrong" }, "spec": spec });
        ensure!(dry_run(cluster, &[wrong]).await.is_err(), "the definitions let this pass: {kind} {spec}");
    }
    Ok(())
}

/// Dry-runs all objects of all cases.
pub(crate) async fn every_case(cluster: &Cluster) -> Result<()> {
    definitions(cluster).await?;
    let (mut taken, mut kinds) = (0, BTreeMap::<String, usize>::new());
    for (chart, case) in all_cases()? {
        // YAML would read this name as a number. A Service of that name needs Kubernetes 1.36.
        let own = ["--set=fullnameOverride=tunnel"];
        let named = yaml::documents(&release("1e3", chart, &chart.case(&case), &own)?)?;
        dry_run(cluster, &named).await.with_context(|| format!("{} {case} as 1e3", chart.name()))?;
        let mut items: Vec<Value> = objects(chart, &chart.case(&case), &[])?;
        // Pods that exist only inside ConfigMaps.
        for pod in pods(&items)?.into_iter().filter(|pod| pod.owner.starts_with("pod in")) {
            let mut spec = pod.spec.clone();
            if let Some(spec) = spec.as_object_mut() {
                // A sidecar's grace period is that of kube-apiserver's pod: NOTES.txt asks for this value.
                spec.entry("terminationGracePeriodSeconds").or_insert(json!(90));
            }
            items.push(pod_object("inner", "kube-system", &spec));
        }
        taken += items.len();
        for item in &items {
            *kinds.entry(string(item, "/kind").to_owned()).or_default() += 1;
        }
        dry_run(cluster, &items).await.with_context(|| format!("{} {case}", chart.name()))?;
    }
    ensure!(taken > 80, "only {taken} objects");
    for (kind, least) in FOREIGN {
        ensure!(kinds.get(kind).is_some_and(|made| *made >= least), "too few of kind {kind}: {kinds:?}");
    }
    println!("install: kube-apiserver takes {taken} objects of all cases, strictly validated");
    Ok(())
}

async fn dry_run(cluster: &Cluster, items: &[Value]) -> Result<()> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    let args = ["create", "--dry-run=server", "--validate=strict", "-f", "-"];
    cluster.kubectl().ok_with(&args, list.to_string().into()).await.map(drop)
}

fn pod_object(name: &str, namespace: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace }, "spec": spec })
}

/// The pods that should meet the restricted standard do, by kube-apiserver's own admission; a pod that requests root does not.
pub(crate) async fn restricted(cluster: &Cluster) -> Result<()> {
    let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "restricted", "labels": labels } });
    cluster.kubectl().apply(&namespace.to_string()).await?;
    let cases = [
        (Chart::Agent, "token-deployment", true),
        (Chart::Server, "deployment", true),
        (Chart::Server, "uds-daemonset", false),
    ];
    for (chart, case, passes) in cases {
        for pod in pods(&objects(chart, &chart.case(case), &[])?)? {
            if pod.test && !passes {
                continue;
            }
            let answer = dry_run(cluster, &[pod_object("try", "restricted", &pod.spec)]).await;
            ensure!(answer.is_ok() == passes, "{} {case}: {answer:?}", chart.name());
        }
    }
    Ok(())
}
