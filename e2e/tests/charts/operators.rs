//! What operators do with charts besides setting values: parent charts, values without a default, several releases of one
//! name, long names, fields and labels of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::helm::{CHARTS, Chart, all_cases, helm, objects, release, template, utf8};
use crate::pods::{list, of_kind, pods, string};
use crate::references::no_nulls;
use crate::yaml;

/// A case of each chart that renders most objects.
fn main_case(chart: Chart) -> std::path::PathBuf {
    chart.case(if chart == Chart::Agent { "token-deployment" } else { "deployment" })
}

fn sets(all: &[&str]) -> Vec<String> {
    all.iter().map(|set| (*set).to_owned()).collect()
}

/// All maps and lists of the values, as `a.b.c`. (The schema requires every other value.)
fn groups(values: &Value, prefix: &str, found: &mut Vec<String>) {
    for (key, value) in values.as_object().into_iter().flatten() {
        let path = format!("{prefix}{}", key.replace('.', "\\."));
        groups(value, &format!("{path}."), found);
        if value.is_object() || value.is_array() {
            found.push(path);
        }
    }
}

/// `--set key=null` drops a default in Helm. The chart renders without it, or names what is missing.
#[test]
fn a_dropped_default_never_breaks_a_template() -> Result<()> {
    for chart in CHARTS {
        let values = yaml::document(&fs::read_to_string(chart.folder().join("values.yaml"))?)?;
        let mut all = Vec::new();
        groups(&values, "", &mut all);
        ensure!(all.len() > 40, "only {} maps and lists", all.len());
        let mut broken = Vec::new();
        for path in all {
            let rendered = template(chart, &main_case(chart), &["--set", &format!("{path}=null")]);
            let checked = rendered.and_then(|text| {
                yaml::documents(&text)?
                    .iter()
                    .try_for_each(|object| no_nulls(object, string(object, "/kind")))
            });
            if let Err(error) = checked {
                let error = format!("{error:#}");
                let signs =
                    ["interface {}", "nil pointer", "wrong type", "error converting YAML", " is null"];
                if signs.iter().any(|sign| error.contains(sign)) {
                    broken.push(format!("{path}: {error}"));
                }
            }
        }
        ensure!(broken.is_empty(), "{}: {broken:#?}", chart.name());
    }
    let dropped = ["podSecurityContext", "securityContext", "probes.startup", "resources"];
    for chart in CHARTS {
        let sets: Vec<String> = dropped.iter().map(|path| format!("{path}=null")).collect();
        let objects = objects(chart, &main_case(chart), &sets)?;
        let pod = pods(&objects)?.into_iter().find(|pod| !pod.test).context("a pod")?;
        let container = pod.main()?;
        for field in ["startupProbe", "securityContext", "resources"] {
            ensure!(container.get(field).is_none(), "{field} is still there");
        }
        ensure!(pod.spec.get("securityContext").is_none() && container.get("livenessProbe").is_some());
    }
    Ok(())
}

/// A parent chart switches the charts on and off, and gives them a registry, secrets and a namespace.
#[test]
fn a_parent_chart_can_contain_both() -> Result<()> {
    let parent = tempfile::tempdir()?;
    let mut yaml = "apiVersion: v2\nname: parent\nversion: 1.0.0\ndependencies:\n".to_owned();
    let mut values =
        "global:\n  imageRegistry: registry.example.com/all\n  imagePullSecrets: [all]\n  other: 1\n"
            .to_owned();
    for chart in CHARTS {
        let (name, folder) = (chart.name(), chart.folder());
        let version = yaml::document(&fs::read_to_string(folder.join("Chart.yaml"))?)?["version"].clone();
        let folder = utf8(&folder)?;
        yaml.push_str(&format!(
            "  - {{name: {name}, version: {version}, repository: \"file://{folder}\", condition: {name}.enabled}}\n"
        ));
        let own = fs::read_to_string(main_case(chart))?.replace('\n', "\n  ");
        let own = own.lines().filter(|line| !line.contains("registry:") && line.trim() != "image:");
        values.push_str(&format!("{name}:\n  namespaceOverride: tunnel\n  "));
        values.push_str(&own.collect::<Vec<_>>().join("\n"));
        values.push('\n');
    }
    fs::write(parent.path().join("Chart.yaml"), yaml)?;
    fs::write(parent.path().join("values.yaml"), values)?;
    let folder = utf8(parent.path())?;
    helm(&["dependency", "build", "--skip-refresh", folder])?;
    let render = |sets: &[&str]| -> Result<Vec<Value>> {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        yaml::documents(&helm(&["template", "x", folder].into_iter().chain(sets).collect::<Vec<_>>())?)
    };
    let all = render(&["konnectivity-agent.enabled=true"])?;
    for pod in pods(&all)? {
        ensure!(string(pod.main()?, "/image").starts_with("registry.example.com/all/"), "{}", pod.owner);
        ensure!(pod.spec["imagePullSecrets"][0]["name"] == "all", "{}", pod.owner);
    }
    for object in all.iter().filter(|object| object["metadata"].get("namespace").is_some()) {
        ensure!(object["metadata"]["namespace"] == "tunnel", "{}", object["metadata"]);
    }
    ensure!(of_kind(&all, "Deployment").count() == 2, "both charts");
    let one = render(&["konnectivity-agent.enabled=false"])?;
    ensure!(of_kind(&one, "Deployment").count() == 1, "the agents are switched off");
    Ok(())
}

/// A static pod may not refer to Secrets: it gets none of the parent's.
#[test]
fn a_static_pod_gets_no_secrets_of_a_parent() -> Result<()> {
    let all = objects(
        Chart::Server,
        &Chart::Server.case("static-pod"),
        &sets(&["global.imagePullSecrets={registry}"]),
    )?;
    let pod = pods(&all)?.into_iter().next().context("a pod")?;
    ensure!(pod.spec.get("imagePullSecrets").is_none(), "{}", pod.spec);
    Ok(())
}

/// The longest name that Kubernetes takes gives names that it takes as well, and what refers to them follows.
#[test]
fn long_names_stay_within_kubernetes_limits() -> Result<()> {
    let long = "a".repeat(63);
    for chart in CHARTS {
        for case in chart.cases()? {
            let all = objects(chart, &chart.case(&case), &[format!("fullnameOverride={long}")])?;
            let services: Vec<&str> =
                of_kind(&all, "Service").map(|service| string(service, "/metadata/name")).collect();
            ensure!(services.iter().all(|name| name.len() <= 63), "{case}: {services:?}");
            ensure!(services.iter().collect::<BTreeSet<_>>().len() == services.len(), "{case}: {services:?}");
            for object in &all {
                for (key, label) in object["metadata"]["labels"].as_object().into_iter().flatten() {
                    ensure!(label.as_str().is_some_and(|label| label.len() <= 63), "{case}: {key}={label}");
                }
            }
            let frontend = services.iter().find(|name| name.ends_with("-frontend"));
            let text: String = all.iter().map(Value::to_string).collect();
            let asks = text.contains("-frontend.kube-system.svc");
            ensure!(
                !asks || frontend.is_some_and(|name| text.contains(&format!("{name}.kube-system.svc"))),
                "{case}: kube-apiserver dials another name than {frontend:?}"
            );
        }
    }
    Ok(())
}

/// Releases share no object, even if their names and namespaces read the same one after the other, if the name of one is longer
/// by the name of a role, or if the names are long.
#[test]
fn releases_share_no_object() -> Result<()> {
    let more = ["prometheus.rules", "prometheus.podMonitor", "grafana.dashboard"]
        .map(|place| format!("--set={place}.namespace=monitoring"));
    let long = "r".repeat(53);
    // Namespace, release, and the names of the objects of agents and servers.
    let releases = [
        ("one", "x", ["", ""]),
        ("two", "x", ["", ""]),
        ("tenant", "a-x", ["", ""]),
        ("tenant-a", "x", ["", ""]),
        ("three", "x", ["x", "x-server"]),
        ("four", &long, ["", ""]),
    ];
    for cases in [["everything", "everything"], ["leases", "uds-nonroot"]] {
        let mut seen = BTreeSet::new();
        for (namespace, name, full_names) in releases {
            for ((chart, case), full_name) in CHARTS.into_iter().zip(cases).zip(full_names) {
                let full_name = format!("--set=nameOverride=,fullnameOverride={full_name}");
                let mut args = vec!["--namespace", namespace, &full_name];
                args.extend(more.iter().map(String::as_str));
                for object in yaml::documents(&release(name, chart, &chart.case(case), &args)?)? {
                    let metadata = &object["metadata"];
                    // Objects of the user have no namespace.
                    if metadata.get("namespace").is_none() && !string(&object, "/kind").starts_with("Cluster")
                    {
                        continue;
                    }
                    let key = |name: &Value| {
                        (object["kind"].to_string(), metadata["namespace"].to_string(), name.to_string())
                    };
                    let key_of_object = key(&metadata["name"]);
                    ensure!(
                        seen.insert(key_of_object.clone()),
                        "{case}: two releases have {key_of_object:?}"
                    );
                    // One folder keeps the dashboards of all releases.
                    for (file, _) in object["data"].as_object().into_iter().flatten() {
                        ensure!(
                            !file.ends_with(".json") || seen.insert(key(&json!(file))),
                            "{case}: two releases have the file {file}"
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// Names that YAML would read as numbers stay texts, and no Service has a dot in its name.
#[test]
fn names_of_digits_and_names_with_dots_are_taken() -> Result<()> {
    let more = [
        "--namespace=2024",
        "--kube-version=1.36.0",
        "--set-string=nameOverride=7",
        "--set=fullnameOverride=",
    ];
    for (chart, case) in all_cases()? {
        for name in ["123", "1e3", "my.tunnel"] {
            for object in yaml::documents(&release(name, chart, &chart.case(&case), &more)?)? {
                texts(&object).with_context(|| format!("{} {case} as {name}: {object}", chart.name()))?;
                for (_, inner) in
                    object["data"].as_object().into_iter().flatten().filter(|(key, _)| key.ends_with(".yaml"))
                {
                    texts(&yaml::document(inner.as_str().context("a document")?)?)
                        .with_context(|| inner.to_string())?;
                }
                let name = string(&object, "/metadata/name");
                ensure!(object["kind"] != "Service" || !name.contains('.'), "{case}: Service {name}");
            }
        }
    }
    Ok(())
}

/// Checks that names and labels are texts.
fn texts(value: &Value) -> Result<()> {
    for (key, inner) in value.as_object().into_iter().flatten() {
        let name = ["name", "namespace", "serviceAccountName", "secretName", "leaseNamespace"]
            .contains(&key.as_str());
        ensure!(!name || inner.is_string(), "{key} is {inner}");
        let mut labels = inner.as_object().into_iter().flatten();
        let of_labels = key == "labels" || key == "matchLabels";
        ensure!(!of_labels || labels.all(|(_, label)| label.is_string()), "{key} are {inner}");
        texts(inner)?;
    }
    value.as_array().into_iter().flatten().try_for_each(texts)
}

/// An upgrade from any case to any other changes no binding's role: kube-apiserver would refuse it.
#[test]
fn no_upgrade_changes_the_role_of_a_binding() -> Result<()> {
    for chart in CHARTS {
        let mut roles = BTreeMap::new();
        for case in chart.cases()? {
            let all = objects(chart, &chart.case(&case), &sets(&["nameOverride=", "fullnameOverride="]))?;
            for binding in all.iter().filter(|object| string(object, "/kind").ends_with("Binding")) {
                let metadata = &binding["metadata"];
                let key = ["kind", "namespace", "name"]
                    .map(|field| metadata.get(field).or(binding.get(field)).map(Value::to_string));
                let role = binding["roleRef"].clone();
                let known = roles.entry(key.clone()).or_insert_with(|| role.clone());
                ensure!(
                    *known == role,
                    "{} {case}: {key:?} was bound to {known}, and now to {role}",
                    chart.name()
                );
            }
        }
        ensure!(!roles.is_empty(), "{}: no binding", chart.name());
    }
    Ok(())
}

/// Each object has the common labels.
#[test]
fn common_labels_are_on_every_object() -> Result<()> {
    let sets = sets(&["commonLabels.team=edge", "extraObjects=null"]);
    for (chart, case) in all_cases()? {
        for object in objects(chart, &chart.case(&case), &sets)? {
            let metadata = &object["metadata"];
            ensure!(metadata["labels"]["team"] == "edge", "{} {case}: {metadata}", chart.name());
        }
    }
    Ok(())
}

/// The values for agents render as they are, with a parent's registry and with a service account whose name is a number.
#[test]
fn the_values_for_agents_render() -> Result<()> {
    let sets = [
        "--set=image.registry=,global.imageRegistry=registry.example.com/all",
        "--set-string=agentAuth.serviceAccount=123",
    ];
    let all = yaml::documents(&template(Chart::Server, &Chart::Server.case("uds-daemonset"), &sets)?)?;
    let values = all.iter().find_map(|object| object["data"]["agent-values.yaml"].as_str());
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("agent-values.yaml");
    fs::write(&file, values.context("values for agents")?)?;
    let all = objects(Chart::Agent, &file, &[])?;
    for pod in pods(&all)? {
        ensure!(string(pod.main()?, "/image").starts_with("registry.example.com/all/"), "{}", pod.owner);
    }
    for object in &all {
        ensure!(object["metadata"]["name"].is_string(), "{}: {}", object["kind"], object["metadata"]);
    }
    ensure!(
        of_kind(&all, "ServiceAccount").any(|account| account["metadata"]["name"] == "123"),
        "no account 123"
    );
    Ok(())
}

/// The number of agents can be left to an autoscaler.
#[test]
fn without_a_replica_count_the_deployment_sets_none() -> Result<()> {
    for (set, expected) in [("replicaCount=null", Value::Null), ("replicaCount=0", json!(0))] {
        let all = objects(Chart::Agent, &main_case(Chart::Agent), &sets(&[set]))?;
        let workload = of_kind(&all, "Deployment").next().context("a workload")?;
        ensure!(workload["spec"]["replicas"] == expected, "{set}: {}", workload["spec"]["replicas"]);
    }
    Ok(())
}

/// Labels of one's own replace the chart's, but not those of selectors; no key appears twice.
#[test]
fn own_labels_replace_the_charts() -> Result<()> {
    let sets = sets(&[
        "commonLabels.app\\.kubernetes\\.io/part-of=platform",
        "podLabels.app\\.kubernetes\\.io/component=edge",
        "podAnnotations.mesh=none",
        "prometheus.podMonitor.enabled=true,prometheus.podMonitor.labels.app\\.kubernetes\\.io/component=edge",
        "prometheus.rules.enabled=true,prometheus.rules.labels.app\\.kubernetes\\.io/component=edge",
        "grafana.dashboard.enabled=true,grafana.dashboard.labels.app\\.kubernetes\\.io/component=edge",
    ]);
    for chart in CHARTS {
        let all = objects(chart, &main_case(chart), &sets)?;
        let workload = of_kind(&all, "Deployment").next().context("a workload")?;
        ensure!(workload["metadata"]["labels"]["app.kubernetes.io/part-of"] == "platform");
        let labels = &workload["spec"]["template"]["metadata"]["labels"];
        ensure!(labels["app.kubernetes.io/component"] == "edge", "{labels}");
        let test = of_kind(&all, "Pod").next().context("the pod of helm test")?;
        ensure!(test["metadata"]["annotations"]["mesh"] == "none", "{}", test["metadata"]);
        let dashboard = of_kind(&all, "ConfigMap")
            .find(|map| string(map, "/metadata/name").ends_with("-dashboard"))
            .context("a dashboard")?;
        let others = ["PodMonitor", "PrometheusRule"].map(|kind| of_kind(&all, kind).next());
        for object in others.into_iter().chain([Some(test), Some(dashboard)]) {
            let labels = &object.context("an object")?["metadata"]["labels"];
            ensure!(labels["app.kubernetes.io/component"] == "edge", "{labels}");
        }
    }
    Ok(())
}

/// The account has labels of its own, and gives its token to containers of one's own.
#[test]
fn the_service_account_has_labels_and_mounts_its_token_if_asked() -> Result<()> {
    let sets = sets(&[
        "serviceAccount.labels.tier=edge",
        "serviceAccount.labels.app\\.kubernetes\\.io/part-of=platform",
        "serviceAccount.automount=true",
    ]);
    for (chart, case) in [(Chart::Agent, "mtls-daemonset"), (Chart::Server, "deployment")] {
        let all = objects(chart, &chart.case(case), &sets)?;
        let pod = pods(&all)?.into_iter().find(|pod| !pod.test).context("a pod")?;
        let name = string(&pod.spec, "/serviceAccountName");
        let account = of_kind(&all, "ServiceAccount").find(|account| account["metadata"]["name"] == name);
        let account = account.context("an account")?;
        let labels = &account["metadata"]["labels"];
        ensure!(labels["tier"] == "edge" && labels["app.kubernetes.io/part-of"] == "platform", "{labels}");
        ensure!(labels["app.kubernetes.io/managed-by"] == "Helm", "{labels}");
        ensure!(account["automountServiceAccountToken"] == true, "{account}");
        ensure!(pod.spec["automountServiceAccountToken"] == true, "{}", pod.spec);
        let tests = pods(&all)?.into_iter().filter(|pod| pod.test);
        for test in tests {
            ensure!(test.spec["automountServiceAccountToken"] == false, "{}", test.spec);
        }
    }
    Ok(())
}

/// Fields that the charts do not know are passed on; those that they set are refused, all of them.
#[test]
fn fields_of_ones_own_are_passed_on() -> Result<()> {
    let own = sets(&[
        "extraPodSpec.runtimeClassName=gvisor",
        "extraContainerSpec.lifecycle.preStop.sleep.seconds=1",
    ]);
    for chart in CHARTS {
        let schema: Value = serde_json::from_slice(&fs::read(chart.folder().join("values.schema.json"))?)?;
        let refused = |pointer: &str, field: &str| {
            list(&schema, &format!("{pointer}/propertyNames/not/enum")).iter().any(|name| name == field)
        };
        let mut own = own.clone();
        let kinds: &[&str] = if chart == Chart::Server {
            &["deployment", "everything"]
        } else {
            &["everything", "hostnetwork"]
        };
        for case in kinds {
            let pause = "preStopSleepSeconds=0";
            if chart == Chart::Server {
                own.extend(sets(&["service.extraSpec.loadBalancerIP=192.0.2.1", pause]));
            }
            let plain = objects(
                chart,
                &chart.case(case),
                &if chart == Chart::Server { sets(&[pause]) } else { Vec::new() },
            )?;
            for pod in pods(&plain)?.iter().filter(|pod| !pod.test) {
                for (field, _) in pod.spec.as_object().into_iter().flatten() {
                    ensure!(refused("/properties/extraPodSpec", field), "{case}: extraPodSpec takes {field}");
                }
                for (field, _) in pod.main()?.as_object().into_iter().flatten() {
                    ensure!(
                        refused("/properties/extraContainerSpec", field),
                        "{case}: extraContainerSpec takes {field}"
                    );
                }
            }
            for service in
                of_kind(&plain, "Service").filter(|service| service["spec"].get("sessionAffinity").is_some())
            {
                for (field, _) in service["spec"].as_object().into_iter().flatten() {
                    let place = "/properties/service/properties/extraSpec";
                    ensure!(refused(place, field), "{case}: service.extraSpec takes {field}");
                }
            }
            let all = objects(chart, &chart.case(case), &own)?;
            let pod = pods(&all)?.into_iter().find(|pod| !pod.test).context("a pod")?;
            ensure!(pod.spec["runtimeClassName"] == "gvisor" && pod.main()?["lifecycle"].is_object());
            let mut services = of_kind(&all, "Service");
            ensure!(
                chart == Chart::Agent
                    || services.any(|service| service["spec"]["loadBalancerIP"] == "192.0.2.1")
            );
        }
    }
    Ok(())
}
