//! Every case against the API server's own schemas: unknown and missing fields are errors, and admission has its say.

use anyhow::{Context, Result, ensure};
use e2e::kube::Cluster;
use serde_json::{Value, json};

use crate::helm::{Chart, all_cases, objects};
use crate::pods::{pods, string};

/// What needs definitions that no plain cluster has.
const FOREIGN: [&str; 2] = ["monitoring.coreos.com/v1", "cert-manager.io/v1"];

/// Dry-runs all objects of all cases.
pub(crate) async fn every_case(cluster: &Cluster) -> Result<()> {
    let mut taken = 0;
    for (chart, case) in all_cases()? {
        let mut items: Vec<Value> = objects(chart, &chart.case(&case), &[])?
            .into_iter()
            .filter(|object| !FOREIGN.contains(&string(object, "/apiVersion")))
            .collect();
        // Pods that only stand in ConfigMaps.
        for pod in pods(&items)?.into_iter().filter(|pod| pod.owner.starts_with("pod in")) {
            items.push(pod_object("inner", "kube-system", &pod.spec));
        }
        taken += items.len();
        dry_run(cluster, &items).await.with_context(|| format!("{} {case}", chart.name()))?;
    }
    ensure!(taken > 80, "only {taken} objects");
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

/// The pods that are to pass the restricted standard do, by kube-apiserver's own admission; one that asks for root does not.
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
