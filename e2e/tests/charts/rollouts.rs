//! Rollouts end without help, and a control plane starts from nothing.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::helm::{Chart, all_cases, objects, template};
use crate::pods::{Pod, of_kind, pods, string};
use crate::yaml;

/// The server's pod of a case, with these settings.
fn server(case: &str, sets: &[&str]) -> Result<(Pod, Vec<Value>)> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let objects = objects(Chart::Server, &Chart::Server.case(case), &sets)?;
    let pod = pods(&objects)?.into_iter().find(|pod| !pod.test).context("a pod of servers")?;
    Ok((pod, objects))
}

/// Nodes and agents of a new cluster connect through kube-apiserver's own Service, so its pod must not wait for agents.
#[test]
fn kube_apiservers_pod_does_not_wait_for_agents() -> Result<()> {
    for case in Chart::Server.cases()? {
        let (pod, _) = server(&case, &[])?;
        let expected = if pod.owner.contains("sidecar") { "/healthz" } else { "/readyz" };
        let path = string(pod.main()?, "/readinessProbe/httpGet/path");
        ensure!(path == expected, "{case}: ready by {path}, not by {expected}");
    }
    Ok(())
}

/// The rolling update of the case's Deployment.
fn rolling(case: &str, sets: &[&str]) -> Result<Value> {
    let (_, objects) = server(case, sets)?;
    let deployment = of_kind(&objects, "Deployment").next().context("a Deployment")?;
    Ok(deployment["spec"]["strategy"]["rollingUpdate"].clone())
}

/// Agents with as many streams as counted servers look for no others, or only every 10 minutes: a pod above the count would not
/// become ready in time, and block the rollout.
#[test]
fn a_deployment_surges_only_with_leases() -> Result<()> {
    let in_turn = json!({ "maxSurge": 0, "maxUnavailable": 1 });
    let surge = json!({ "maxSurge": 1, "maxUnavailable": 0 });
    for case in ["deployment", "enforce", "go-image"] {
        ensure!(rolling(case, &[])? == in_turn, "{case}: {}", rolling(case, &[])?);
        let look = rolling(case, &["syncForever=true"])?;
        ensure!(look == in_turn, "{case}: agents look every 10 minutes only: {look}");
        let leases = rolling(case, &["leases.enabled=true"])?;
        ensure!(leases == surge, "{case}: {leases}");
    }
    let own = ["updateStrategy.type=RollingUpdate", "updateStrategy.rollingUpdate.maxSurge=0"];
    ensure!(rolling("deployment", &own)? == json!({ "maxSurge": 0 }), "a strategy of one's own");
    ensure!(rolling("deployment", &["updateStrategy.type=Recreate"])?.is_null(), "all at once");
    Ok(())
}

/// Two pods on one node cannot use the same host ports.
#[test]
fn nothing_surges_on_the_hosts_network() -> Result<()> {
    let mut tries: Vec<(Chart, String, &[&str])> =
        all_cases()?.into_iter().map(|(chart, case)| (chart, case, [].as_slice())).collect();
    tries.push((Chart::Agent, "token-deployment".into(), &["hostNetwork=true"]));
    tries.push((Chart::Agent, "leases".into(), &["hostNetwork=true", "updateStrategy.type=Recreate"]));
    tries.push((Chart::Agent, "hostnetwork".into(), &["updateStrategy.type=RollingUpdate"]));
    tries.push((Chart::Agent, "hostnetwork".into(), &["updateStrategy.rollingUpdate.maxUnavailable=2"]));
    tries.push((Chart::Server, "uds-daemonset".into(), &["updateStrategy.type=OnDelete"]));
    tries.push((Chart::Server, "uds-nonroot".into(), &["updateStrategy.rollingUpdate.maxSurge=0"]));
    let mut seen = 0;
    for (chart, case, sets) in tries {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        for object in objects(chart, &chart.case(&case), &sets)? {
            if object.pointer("/spec/template/spec/hostNetwork") != Some(&Value::Bool(true)) {
                continue;
            }
            let of_deployment = object["kind"] == "Deployment";
            let strategy = &object["spec"][if of_deployment { "strategy" } else { "updateStrategy" }];
            let surge = &strategy["rollingUpdate"]["maxSurge"];
            let none =
                surge == &json!(0) || surge.is_null() && !of_deployment || strategy["type"] == "Recreate";
            ensure!(none, "{} {case} with {sets:?}: {strategy}", chart.name());
            seen += 1;
        }
    }
    ensure!(seen > 8, "only {seen} on the host's network");
    Ok(())
}

/// Settings that let servers be added are passed on to agents.
#[test]
fn agents_are_configured_to_look_for_more_servers() -> Result<()> {
    for (sets, forever) in
        [(vec![], false), (vec!["syncForever=true"], true), (vec!["leases.enabled=true"], true)]
    {
        let (_, objects) = server("deployment", &sets)?;
        let told = of_kind(&objects, "ConfigMap")
            .find_map(|map| map["data"]["agent-values.yaml"].as_str())
            .context("values for agents")?;
        let told = yaml::document(told)?;
        ensure!((told["sync"]["forever"] == true) == forever, "{sets:?}: {told}");
    }
    Ok(())
}

/// `unhealthyPodEvictionPolicy` is enabled by default from Kubernetes 1.27; 1.25 does not know it.
#[test]
fn a_budget_has_the_fields_of_its_cluster() -> Result<()> {
    for (version, known) in
        [("1.25.0", false), ("1.26.15", false), ("1.27.0", true), ("v1.27.3-gke.100", true), ("1.36.0", true)]
    {
        for (chart, case) in [(Chart::Server, "deployment"), (Chart::Agent, "token-deployment")] {
            let rendered = template(chart, &chart.case(case), &["--kube-version", version])?;
            let objects = yaml::documents(&rendered)?;
            let budget = of_kind(&objects, "PodDisruptionBudget").next().context("a budget")?;
            let found = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
            ensure!(found == known, "{} on {version}: {budget}", chart.name());
        }
    }
    Ok(())
}

/// The number of pods that must remain replaces that of pods that may be evicted.
#[test]
fn a_budget_may_name_the_pods_that_remain() -> Result<()> {
    for (chart, case) in [(Chart::Server, "deployment"), (Chart::Agent, "token-deployment")] {
        for (set, most, least) in
            [("", 1.into(), Value::Null), ("1", Value::Null, 1.into()), ("50%", Value::Null, "50%".into())]
        {
            let sets = [format!("podDisruptionBudget.minAvailable={set}"), "replicaCount=3".to_owned()];
            let objects = objects(chart, &chart.case(case), &sets)?;
            let budget = &of_kind(&objects, "PodDisruptionBudget").next().context("a budget")?["spec"];
            ensure!(budget["maxUnavailable"] == most && budget["minAvailable"] == least, "{set:?}: {budget}");
        }
    }
    Ok(())
}

/// A hibernated control plane has no pods: the charts take 0 with every budget.
#[test]
fn a_deployment_may_have_no_pods() -> Result<()> {
    for (chart, case) in [(Chart::Server, "deployment"), (Chart::Agent, "token-deployment")] {
        for budget in [
            "podDisruptionBudget.minAvailable=1",
            "podDisruptionBudget.minAvailable=50%",
            "serviceAccount.create=true",
        ] {
            let objects =
                objects(chart, &chart.case(case), &["replicaCount=0".to_owned(), budget.to_owned()])?;
            let workload = of_kind(&objects, "Deployment").next().context("a Deployment")?;
            ensure!(workload["spec"]["replicas"] == 0, "{} with {budget}", chart.name());
            // The programs would refuse a count of 0, if someone scales the Deployment.
            ensure!(!workload.to_string().contains("--server-count=0"), "{workload}");
        }
    }
    Ok(())
}
