//! Pods come and go without anybody's help: a rollout ends, and a control plane starts from nothing.

use anyhow::{Context, Result, ensure};

use crate::helm::{Chart, objects};
use crate::pods::{pods, string};

/// Nodes and agents of a new cluster come by kube-apiserver's own Service: its pod must not wait for agents.
#[test]
fn kube_apiservers_pod_does_not_wait_for_agents() -> Result<()> {
    for case in Chart::Server.cases()? {
        let objects = objects(Chart::Server, &Chart::Server.case(&case), &[])?;
        let pod = pods(&objects)?.into_iter().find(|pod| !pod.test).context("a pod of servers")?;
        let expected = if pod.owner.contains("sidecar") { "/healthz" } else { "/readyz" };
        let path = string(pod.main()?, "/readinessProbe/httpGet/path");
        ensure!(path == expected, "{case}: ready by {path}, not by {expected}");
    }
    Ok(())
}
