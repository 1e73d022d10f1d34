//! Values that an operator sets are rendered as written.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::helm::{CHARTS, Chart, objects};
use crate::pods::{list, pods};

/// Extra arguments reach the program with every value, including `false`, 0 and the empty string.
#[test]
fn arguments_of_ones_own_override() -> Result<()> {
    let tries = [
        (Chart::Server, "uds-daemonset", ["require-agent-auth=false", "v=0", "proxy-strategies="]),
        (Chart::Agent, "leases", ["sync-forever=false", "v=0", "lease-label-selector="]),
    ];
    for (chart, case, arguments) in tries {
        let sets = arguments.map(|argument| format!("extraArgs.{argument}"));
        let objects = objects(chart, &chart.case(case), &sets)?;
        let pod = pods(&objects)?.into_iter().find(|pod| !pod.test).context("a pod")?;
        let args: Vec<&str> = list(pod.main()?, "/args").iter().filter_map(Value::as_str).collect();
        for argument in arguments {
            let name = argument.split('=').next().unwrap_or_default();
            let of_that_name: Vec<&str> =
                args.iter().filter(|arg| arg.starts_with(&format!("--{name}="))).copied().collect();
            ensure!(of_that_name == [format!("--{argument}")], "{argument}: {of_that_name:?}");
        }
    }
    Ok(())
}

/// A sidecar has no pod of its own: its container's security context takes precedence over the pods', including root and
/// `false`.
#[test]
fn a_sidecars_own_context_wins() -> Result<()> {
    let sets = ["runAsUser=0", "runAsNonRoot=false"].map(|set| format!("securityContext.{set}"));
    let objects = objects(Chart::Server, &Chart::Server.case("sidecar"), &sets)?;
    let pod = pods(&objects)?.into_iter().next().context("a sidecar")?;
    let context = &pod.main()?["securityContext"];
    ensure!(context["runAsUser"] == 0 && context["runAsNonRoot"] == false, "{context}");
    ensure!(context["runAsGroup"] == 65532 && context["privileged"] == false, "{context}");
    Ok(())
}

/// A constraint keeps its own selector; a constraint without one gets the release's.
#[test]
fn a_spread_keeps_its_selector() -> Result<()> {
    for (chart, case) in [(Chart::Server, "deployment"), (Chart::Agent, "token-deployment")] {
        let spread = "topologySpreadConstraints[0]";
        let mut sets =
            ["maxSkew=2", "topologyKey=rack", "whenUnsatisfiable=DoNotSchedule"].map(str::to_owned).to_vec();
        sets.push("labelSelector.matchLabels.tier=edge".into());
        let sets: Vec<String> = sets.iter().map(|set| format!("{spread}.{set}")).collect();
        for (sets, labels) in [(sets, 1), (Vec::new(), 2)] {
            let objects = objects(chart, &chart.case(case), &sets)?;
            let pod = pods(&objects)?.into_iter().next().context("a pod")?;
            let constraint = list(&pod.spec, "/topologySpreadConstraints").first().context("a constraint")?;
            let selector = constraint["labelSelector"]["matchLabels"].as_object().context("a selector")?;
            ensure!(selector.len() == labels, "{case} with {sets:?}: {constraint}");
        }
    }
    Ok(())
}

/// A memory limit is rendered only if the user sets one: the programs know their container and node better.
#[test]
fn a_memory_limit_is_the_users() -> Result<()> {
    let tries: [(&[&str], &str); 4] = [
        (&[], ""),
        (&["memoryLimit=256Mi"], "256Mi"),
        (&["memoryLimit=3Gi", "extraArgs.memory-limit=64Mi"], "64Mi"),
        (&["memoryLimit=3Gi", "ownFlags=false"], ""),
    ];
    for (sets, expected) in tries {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        for chart in CHARTS {
            let case = if chart == Chart::Agent { "token-deployment" } else { "deployment" };
            let objects = objects(chart, &chart.case(case), &sets)?;
            let pod = pods(&objects)?.into_iter().find(|pod| !pod.test).context("a pod")?;
            let args = list(pod.main()?, "/args").iter().filter_map(Value::as_str);
            let found: Vec<&str> = args.filter_map(|arg| arg.strip_prefix("--memory-limit=")).collect();
            let wanted = Some(expected).filter(|limit| !limit.is_empty());
            ensure!(found.iter().copied().eq(wanted), "{} with {sets:?}: {found:?}", chart.name());
        }
    }
    Ok(())
}

/// Go's servers before v0.35.0 exit on an unknown flag.
#[test]
fn an_older_gos_server_gets_no_graceful_timeout() -> Result<()> {
    for (set, expected) in [("gracefulShutdownTimeout=", 0), ("gracefulShutdownTimeout=10s", 1)] {
        let objects = objects(Chart::Server, &Chart::Server.case("go-image"), &[set.into()])?;
        let pod = pods(&objects)?.into_iter().next().context("a pod")?;
        let args = list(pod.main()?, "/args").iter().filter_map(Value::as_str);
        let found = args.filter(|argument| argument.starts_with("--graceful-shutdown-timeout")).count();
        ensure!(found == expected, "{set}: {found} times");
    }
    Ok(())
}

/// The priority class can be omitted, because a ResourceQuota may forbid the critical ones.
#[test]
fn a_priority_can_be_left_out() -> Result<()> {
    let tries = [
        (Chart::Server, "deployment", "", Some("system-cluster-critical")),
        (Chart::Server, "tcp-daemonset", "", Some("system-node-critical")),
        (Chart::Server, "deployment", "mine", Some("mine")),
        (Chart::Server, "deployment", "none", None),
        (Chart::Server, "static-pod", "none", None),
        (Chart::Agent, "token-deployment", "mine", Some("mine")),
        (Chart::Agent, "token-deployment", "none", None),
        (Chart::Agent, "token-deployment", "", None),
    ];
    for (chart, case, class, expected) in tries {
        let objects = objects(chart, &chart.case(case), &[format!("priorityClassName={class}")])?;
        let pod = pods(&objects)?.into_iter().find(|pod| !pod.test).context("a pod")?;
        let found = pod.spec["priorityClassName"].as_str();
        ensure!(found == expected, "{} {case} with {class:?}: {found:?}", chart.name());
    }
    Ok(())
}
