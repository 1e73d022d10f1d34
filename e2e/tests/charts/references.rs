//! Every reference in a manifest exists: volumes, ports, variables, roles, labels, files.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::helm::{Chart, all_cases, objects};
use crate::pods::{Pod, list, of_kind, pods, string};

fn names<'a>(items: &'a [Value], field: &str) -> BTreeSet<&'a str> {
    items.iter().map(|item| string(item, field)).collect()
}

#[test]
fn all_references_exist() -> Result<()> {
    for (chart, case) in all_cases()? {
        let objects = objects(chart, &chart.case(&case), &[])?;
        check(chart, &objects).with_context(|| format!("{} {case}", chart.name()))?;
    }
    Ok(())
}

fn check(chart: Chart, objects: &[Value]) -> Result<()> {
    let pods = pods(objects)?;
    ensure!(pods.iter().any(|pod| !pod.test), "no pod at all");
    for pod in &pods {
        volumes(pod)
            .and_then(|()| probes(pod))
            .and_then(|()| arguments(pod))
            .with_context(|| pod.owner.clone())?;
        account(pod, objects)?;
    }
    roles(objects)?;
    for object in objects {
        no_nulls(object, "").with_context(|| string(object, "/metadata/name").to_owned())?;
        selectors(chart, object, &pods)?;
    }
    certificates(objects, &pods)
}

/// Every mount has its volume and every volume its mount; no path is mounted twice.
fn volumes(pod: &Pod) -> Result<()> {
    let volumes = names(list(&pod.spec, "/volumes"), "/name");
    let mut used = BTreeSet::new();
    for container in pod.containers() {
        mounted_once(container)?;
        for mount in list(container, "/volumeMounts") {
            let name = string(mount, "/name");
            ensure!(volumes.contains(name), "a mount of the volume {name}, which does not exist");
            used.insert(name);
        }
    }
    ensure!(volumes == used, "volumes {volumes:?}, mounted {used:?}");
    Ok(())
}

/// Checks that no path is mounted twice, in any spelling.
pub(crate) fn mounted_once(container: &Value) -> Result<()> {
    let mut paths = BTreeSet::new();
    for mount in list(container, "/volumeMounts") {
        let path = string(mount, "/mountPath").trim_end_matches('/');
        ensure!(path.starts_with('/'), "no path to mount at: {mount}");
        ensure!(paths.insert(path), "a path is mounted twice: {mount}");
    }
    Ok(())
}

/// Probes use an existing named port; port names and numbers are unique.
fn probes(pod: &Pod) -> Result<()> {
    let container = pod.main()?;
    let ports = list(container, "/ports");
    let port_names = names(ports, "/name");
    let numbers: BTreeSet<_> = ports.iter().filter_map(|port| port["containerPort"].as_u64()).collect();
    ensure!(port_names.len() == ports.len() && numbers.len() == ports.len(), "ports overlap: {ports:?}");
    ensure!(port_names.iter().all(|name| name.len() <= 15), "names of ports have 15 characters at most");
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let port = string(container, &format!("/{probe}/httpGet/port"));
        ensure!(pod.test || port_names.contains(port), "{probe} asks port {port:?}");
    }
    Ok(())
}

/// Flags agree with the pod's ports; files in them are mounted; variables in them are defined.
fn arguments(pod: &Pod) -> Result<()> {
    let container = pod.main()?;
    let env = names(list(container, "/env"), "/name");
    for argument in list(container, "/args").iter().filter_map(Value::as_str) {
        let (flag, value) = argument.split_once('=').context("an argument without value")?;
        let port = match flag {
            "--health-port" | "--health-server-port" => "health",
            "--admin-port" | "--admin-server-port" => "admin",
            "--agent-port" => "agents",
            "--server-port" if value != "0" => "frontend",
            _ => "",
        };
        if !port.is_empty() {
            let number: u64 = value.parse()?;
            let there = |item: &Value| item["name"] == port && item["containerPort"] == number;
            ensure!(list(container, "/ports").iter().any(there), "{argument} is not the port {port}");
        }
        for part in value.split("$(").skip(1) {
            let name = part.split(')').next().unwrap_or_default();
            ensure!(env.contains(name), "{argument} uses a variable that is not defined");
        }
        if value.starts_with('/') {
            mounted(pod, container, flag, value)?;
        }
    }
    Ok(())
}

/// The file is in a mount, a projected volume contains it, and files that the program writes are in a writable mount.
fn mounted(pod: &Pod, container: &Value, flag: &str, path: &str) -> Result<()> {
    let mounts = list(container, "/volumeMounts").iter();
    let below = |mount: &&Value| {
        path.strip_prefix(string(mount, "/mountPath"))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mount = mounts
        .filter(below)
        .max_by_key(|mount| string(mount, "/mountPath").len())
        .with_context(|| format!("{flag}={path} is not mounted"))?;
    ensure!((flag == "--uds-name") == (mount["readOnly"] != true), "{flag}={path}: read-only is wrong");
    let volume = list(&pod.spec, "/volumes").iter().find(|volume| volume["name"] == mount["name"]);
    let sources = volume.map_or(&[][..], |volume| list(volume, "/projected/sources"));
    if !sources.is_empty() {
        let name = path.rsplit('/').next().unwrap_or_default();
        let has = |source: &Value| {
            source["serviceAccountToken"]["path"] == name
                || ["/secret/items", "/configMap/items"]
                    .iter()
                    .any(|items| names(list(source, items), "/path").contains(name))
        };
        ensure!(sources.iter().any(has), "{flag}={path}: no source projects it");
    }
    Ok(())
}

fn account(pod: &Pod, objects: &[Value]) -> Result<()> {
    let name = string(&pod.spec, "/serviceAccountName");
    let there = of_kind(objects, "ServiceAccount").any(|account| string(account, "/metadata/name") == name);
    ensure!(name.is_empty() || there, "{}: no service account {name}", pod.owner);
    Ok(())
}

/// Bindings refer to roles and accounts of this release, except for Kubernetes' own ClusterRoles.
fn roles(objects: &[Value]) -> Result<()> {
    for kind in ["RoleBinding", "ClusterRoleBinding"] {
        for binding in of_kind(objects, kind) {
            let (role_kind, role) = (string(binding, "/roleRef/kind"), string(binding, "/roleRef/name"));
            let there = of_kind(objects, role_kind).any(|object| {
                string(object, "/metadata/name") == role
                    && object["metadata"]["namespace"] == binding["metadata"]["namespace"]
            });
            ensure!(
                there || role == "system:auth-delegator",
                "{kind} of {role_kind} {role}, which does not exist"
            );
            for subject in
                list(binding, "/subjects").iter().filter(|subject| subject["kind"] == "ServiceAccount")
            {
                let known = of_kind(objects, "ServiceAccount")
                    .any(|account| account["metadata"]["name"] == subject["name"]);
                ensure!(known, "{kind} for {subject}, which does not exist");
            }
        }
    }
    Ok(())
}

pub(crate) fn no_nulls(value: &Value, path: &str) -> Result<()> {
    match value {
        Value::Null => anyhow::bail!("{path} is null"),
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(i, item)| no_nulls(item, &format!("{path}/{i}")))
        }
        Value::Object(map) => map.iter().try_for_each(|(key, item)| no_nulls(item, &format!("{path}/{key}"))),
        _ => Ok(()),
    }
}

/// Selectors match the release's pods and not the test's; their ports exist there.
fn selectors(chart: Chart, object: &Value, pods: &[Pod]) -> Result<()> {
    let kind = string(object, "/kind");
    let (selector, ports): (&str, Vec<&Value>) = match kind {
        "Deployment" | "DaemonSet" | "PodDisruptionBudget" => ("/spec/selector/matchLabels", Vec::new()),
        "Service" => {
            ("/spec/selector", list(object, "/spec/ports").iter().map(|port| &port["targetPort"]).collect())
        }
        "PodMonitor" => (
            "/spec/selector/matchLabels",
            list(object, "/spec/podMetricsEndpoints").iter().map(|end| &end["port"]).collect(),
        ),
        "NetworkPolicy" => (
            "/spec/podSelector/matchLabels",
            list(object, "/spec/ingress")
                .iter()
                .flat_map(|rule| list(rule, "/ports"))
                .map(|port| &port["port"])
                .collect(),
        ),
        _ => return Ok(()),
    };
    let wanted = object
        .pointer(selector)
        .and_then(Value::as_object)
        .with_context(|| format!("{kind} without selector"))?;
    let chosen: Vec<&Pod> = pods
        .iter()
        .filter(|pod| {
            pod.labels
                .as_object()
                .is_some_and(|labels| wanted.iter().all(|(key, value)| labels.get(key) == Some(value)))
        })
        .collect();
    // A sidecar is in a pod of another release.
    if chosen.is_empty()
        && chart == Chart::Server
        && ["Service", "PodMonitor"].contains(&kind)
        && pods.iter().all(|pod| pod.owner.contains("sidecar"))
    {
        return Ok(());
    }
    ensure!(
        !wanted.is_empty() && chosen.len() == 1 && !chosen[0].test,
        "{kind} chooses {} pods",
        chosen.len()
    );
    let there = names(list(chosen[0].main()?, "/ports"), "/name");
    ensure!(
        ports.iter().all(|port| port.as_str().is_some_and(|name| there.contains(name))),
        "{kind}: {ports:?}, the pod has {there:?}"
    );
    Ok(())
}

/// If a network policy limits access to the health port, it still admits `helm test`, whose requests come through the tunnel,
/// that is from another agent.
#[test]
fn a_network_policy_lets_the_check_in() -> Result<()> {
    for (set, admitted) in [("tests.enabled=true", true), ("tests.enabled=false", false)] {
        let objects = objects(Chart::Agent, &Chart::Agent.case("everything"), &[set.into()])?;
        let policy = of_kind(&objects, "NetworkPolicy").next().context("a NetworkPolicy")?;
        let from = list(policy, "/spec/ingress/0/from");
        let agents = from.iter().any(|entry| entry["podSelector"] == policy["spec"]["podSelector"]);
        ensure!(agents == admitted && from.len() == 1 + usize::from(admitted), "{set}: {from:?}");
    }
    let open = ["networkPolicy.monitoringFrom=null".to_owned()];
    let objects = objects(Chart::Agent, &Chart::Agent.case("everything"), &open)?;
    let policy = of_kind(&objects, "NetworkPolicy").next().context("a NetworkPolicy")?;
    ensure!(policy["spec"]["ingress"][0]["from"].is_null(), "who is not named is kept out: {policy}");
    Ok(())
}

/// Certificates that cert-manager issues are mounted.
fn certificates(objects: &[Value], pods: &[Pod]) -> Result<()> {
    let mounted: BTreeSet<&str> = pods
        .iter()
        .flat_map(|pod| list(&pod.spec, "/volumes"))
        .flat_map(|volume| list(volume, "/projected/sources"))
        .map(|source| string(source, "/secret/name"))
        .collect();
    for certificate in of_kind(objects, "Certificate") {
        let secret = string(certificate, "/spec/secretName");
        ensure!(mounted.contains(secret), "nothing mounts the certificate in {secret}");
    }
    Ok(())
}
