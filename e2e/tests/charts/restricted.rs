//! Pods ask for no right that they do not need, and roles give none.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::helm::{Chart, all_cases, objects};
use crate::pods::{list, of_kind, pods, string};
use crate::rights::{open_to_all, readable};

/// The restricted Pod Security Standard, apart from what a case asks for by name: root, the host's network and paths.
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
            ensure!(container["resources"]["limits"].is_null(), "{what}: limits by default");
            let tolerates = list(&pod.spec, "/tolerations") == [json!({ "operator": "Exists" })];
            ensure!(sidecar || tolerates, "{what}: taints");
        }
    }
    Ok(())
}

/// A token of the pod's account is mounted only where the program talks to the API by it.
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

/// Every program can read its files, whoever it is told to be; where the pod has a group for them nobody else can.
#[test]
fn files_are_for_those_who_use_them() -> Result<()> {
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

/// Only servers that are shown tokens may ask about them.
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
