//! Pods request no unneeded right, and roles grant none.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::helm::{Chart, all_cases, objects};
use crate::pods::{list, of_kind, pods, string};
use crate::rights::{open_to_all, readable};
use crate::yaml;

/// The restricted Pod Security Standard, except for a case's explicit exceptions: root, the host's network and paths.
#[test]
fn pods_are_restricted() -> Result<()> {
    for (chart, case) in all_cases()? {
        let objects = objects(chart, &chart.case(&case), &[])?;
        for pod in pods(&objects)? {
            let what = format!("{} {case}: {}", chart.name(), pod.owner);
            let container = pod.main()?;
            let rights = &container["securityContext"];
            ensure!(rights["allowPrivilegeEscalation"] == false, "{what}: privilege escalation");
            ensure!(rights["privileged"] == false, "{what}: privileged");
            ensure!(
                rights["readOnlyRootFilesystem"] == true,
                "{what}: a root file system that can be written"
            );
            ensure!(rights["capabilities"] == json!({ "drop": ["ALL"] }), "{what}: capabilities");
            let sidecar = pod.owner.contains("sidecar");
            let user = if sidecar { rights } else { &pod.spec["securityContext"] };
            ensure!(user["seccompProfile"]["type"] == "RuntimeDefault", "{what}: seccomp");
            let root = ["uds-daemonset", "static-pod"].contains(&case.as_str()) && !pod.test;
            ensure!((user["runAsUser"] == 0) == root, "{what}: user {}", user["runAsUser"]);
            ensure!((user["runAsNonRoot"] == true) != root, "{what}: runAsNonRoot");
            ensure!(container["resources"]["requests"]["memory"].is_string(), "{what}: no requests");
            // The pod of helm test starts under a quota on limits, too.
            let limits = &container["resources"]["limits"];
            ensure!(limits.is_null() != pod.test, "{what}: limits by default: {limits}");
            let tolerates = list(&pod.spec, "/tolerations") == tolerations(&pod.owner);
            ensure!(sidecar || tolerates, "{what}: taints: {}", pod.spec["tolerations"]);
        }
    }
    Ok(())
}

/// All taints are tolerated; but a Deployment's pods leave a dead node. That toleration comes first, because the first match
/// decides.
fn tolerations(owner: &str) -> Vec<Value> {
    let leave = |key: &str| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 });
    let mut all = vec![json!({ "operator": "Exists" })];
    if owner.starts_with("Deployment") {
        all.insert(0, leave("node.kubernetes.io/unreachable"));
        all.insert(0, leave("node.kubernetes.io/not-ready"));
    }
    all
}

/// No pod mounts a folder with the cluster's own keys.
#[test]
fn no_pod_has_the_clusters_keys() -> Result<()> {
    for (chart, case) in all_cases()? {
        for pod in pods(&objects(chart, &chart.case(&case), &[])?)? {
            for volume in list(&pod.spec, "/volumes") {
                let path = string(volume, "/hostPath/path");
                ensure!(!path.contains("pki"), "{} {case}: {path} is mounted", chart.name());
            }
        }
    }
    Ok(())
}

/// The pod of `helm test` runs as the programs do, but never as root, because a cluster may assign users itself.
#[test]
fn the_checks_pod_is_as_restricted_as_the_programs() -> Result<()> {
    let given =
        ["runAsUser=null", "runAsGroup=null", "fsGroup=null"].map(|set| format!("podSecurityContext.{set}"));
    for (chart, case) in [(Chart::Server, "deployment"), (Chart::Agent, "token-deployment")] {
        let pods = pods(&objects(chart, &chart.case(case), &given)?)?;
        let contexts: Vec<&Value> = pods.iter().map(|pod| &pod.spec["securityContext"]).collect();
        let [program, test] = contexts.as_slice() else { anyhow::bail!("{} pods", pods.len()) };
        ensure!(program == test, "{case}: {test}, the program {program}");
        ensure!(test["runAsUser"].is_null() && test["runAsNonRoot"] == true, "{case}: {test}");
    }
    Ok(())
}

/// Rights on leases for the servers' user are granted only on request.
#[test]
fn servers_rights_on_leases_are_a_choice() -> Result<()> {
    let roles = |sets: &[&str]| -> Result<usize> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let objects = objects(Chart::Agent, &Chart::Agent.case("leases"), &sets)?;
        let server = |object: &&Value| string(object, "/metadata/name").ends_with(":server-leases");
        Ok(objects.iter().filter(server).count())
    };
    ensure!(roles(&[])? == 2, "no rights for servers that come with a kubeconfig");
    ensure!(roles(&["rbac.serverLeases=false"])? == 0, "rights that nobody asked for");
    // Servers with an account of the agents' cluster have their own rights there.
    for (case, own) in [("uds-nonroot", true), ("everything", false)] {
        let objects = objects(Chart::Server, &Chart::Server.case(case), &[])?;
        let mut told =
            of_kind(&objects, "ConfigMap").filter_map(|map| map["data"]["agent-values.yaml"].as_str());
        let told = yaml::document(told.next().context("values for agents")?)?;
        let expected =
            if own { json!({ "serverAuthDelegator": false, "serverLeases": false }) } else { Value::Null };
        ensure!(told["rbac"] == expected, "{case}: {}", told["rbac"]);
    }
    Ok(())
}

/// A token of the pod's account is mounted only if the program uses it for the API.
#[test]
fn accounts_tokens_are_mounted_only_where_they_are_used() -> Result<()> {
    for (chart, case) in all_cases()? {
        let objects = objects(chart, &chart.case(&case), &[])?;
        for account in of_kind(&objects, "ServiceAccount") {
            ensure!(account["automountServiceAccountToken"] == false, "{case}: an account mounts its token");
        }
        for pod in pods(&objects)?.iter().filter(|pod| !pod.test) {
            let args: Vec<&str> = list(pod.main()?, "/args").iter().filter_map(Value::as_str).collect();
            let has = |prefix: &str| args.iter().any(|argument| argument.starts_with(prefix));
            let asks = match chart {
                Chart::Agent => has("--count-server-leases"),
                Chart::Server => has("--enable-lease-controller") || has("--agent-namespace="),
            };
            let expected = asks && !has("--kubeconfig=");
            let mounts = pod.spec["automountServiceAccountToken"] == true;
            ensure!(mounts == expected, "{} {case}: token mounted {mounts}, used {expected}", chart.name());
        }
    }
    Ok(())
}

/// Every program can read its files as any configured user; if the pod has a group for them, no other user can.
#[test]
fn files_are_readable_only_by_their_users() -> Result<()> {
    let mut tries: Vec<(Chart, String, &[&str])> =
        all_cases()?.into_iter().map(|(chart, case)| (chart, case, [].as_slice())).collect();
    let no_group: &[&str] = &["podSecurityContext.fsGroup=null"];
    let another_user: &[&str] = &["podSecurityContext.runAsUser=1000", "podSecurityContext.runAsGroup=1000"];
    for sets in [no_group, another_user] {
        tries.push((Chart::Server, "deployment".into(), sets));
        tries.push((Chart::Agent, "mtls-daemonset".into(), sets));
    }
    tries.push((
        Chart::Server,
        "sidecar".into(),
        &["podSecurityContext.runAsUser=0", "podSecurityContext.runAsNonRoot=false"],
    ));
    for (chart, case, sets) in tries {
        let what = format!("{} {case} with {sets:?}", chart.name());
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        for pod in pods(&objects(chart, &chart.case(&case), &sets)?)? {
            let container = pod.main()?;
            let projected =
                list(&pod.spec, "/volumes").iter().filter(|volume| volume.get("projected").is_some());
            for volume in projected {
                readable(&pod.spec, container, volume).with_context(|| format!("{what}: {}", pod.owner))?;
                let root = container["securityContext"]["runAsUser"] == 0;
                let grouped = pod.spec["securityContext"]["fsGroup"].is_u64();
                ensure!(open_to_all(volume) != (root || grouped), "{what}: {volume}");
            }
        }
    }
    Ok(())
}

/// Only servers that authenticate agents by tokens may review tokens.
#[test]
fn tokens_are_reviewed_only_where_agents_show_them() -> Result<()> {
    for (chart, case) in all_cases()? {
        let objects = objects(chart, &chart.case(&case), &[])?;
        let mut args = pods(&objects)?.into_iter().filter(|pod| !pod.test).flat_map(|pod| {
            let args = pod.main().map(|container| list(container, "/args").to_vec()).unwrap_or_default();
            args.into_iter().filter_map(|argument| argument.as_str().map(str::to_owned))
        });
        let shown = match chart {
            Chart::Agent => args.any(|argument| argument.starts_with("--service-account-token-path=")),
            Chart::Server => args.any(|argument| argument.starts_with("--agent-service-account=")),
        };
        let reviews =
            |kind| of_kind(&objects, kind).any(|object| object.to_string().contains("token-review"));
        for kind in ["ClusterRole", "ClusterRoleBinding"] {
            ensure!(shown || !reviews(kind), "{} {case}: a {kind} for reviews without tokens", chart.name());
        }
        ensure!(
            chart == Chart::Server || reviews("ClusterRoleBinding") == shown,
            "{case}: nobody may review the agents' tokens"
        );
    }
    Ok(())
}

/// Every rule of every role, in all cases.
#[test]
fn roles_give_the_least() -> Result<()> {
    let allowed = [
        json!({ "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"] }),
        json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "watch"] }),
        json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "create", "update", "delete"] }),
        json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }),
        json!({ "apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"] }),
    ];
    let mut seen = 0;
    for (chart, case) in all_cases()? {
        for object in objects(chart, &chart.case(&case), &[])? {
            let kind = string(&object, "/kind");
            if kind != "Role" && kind != "ClusterRole" {
                continue;
            }
            for rule in list(&object, "/rules") {
                let index = allowed
                    .iter()
                    .position(|known| known == rule)
                    .with_context(|| format!("{case}: {rule}"))?;
                ensure!((kind == "ClusterRole") == (index == 0), "{case}: {kind} with {rule}");
                seen += 1;
            }
        }
    }
    ensure!(seen > 20, "only {seen} rules");
    Ok(())
}
