//! Rules and dashboards: their metrics exist in a scrape of the running programs, and promtool accepts them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::endpoints::{Endpoint, Refusing};
use e2e::exchange::works;
use e2e::metrics::{Scrape, wait_for};
use e2e::pair::Setup;
use e2e::wait::DEADLINE;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::helm::{CHARTS, Chart, objects, root, utf8};
use crate::pods::{list, of_kind};
use crate::yaml;

/// Families that this scenario does not produce: leases, changed files, legacy certificates. The test looks them up in the
/// programs' source instead.
const RARE: [&str; 23] = [
    "agent_certificate_last_reload_success",
    "agent_dropped_packets_total",
    "agent_lease_calls_unanswered_total",
    "agent_lease_lists_total",
    "agent_legacy_certificates_total",
    "agent_retiring_server_connections",
    "agent_server_connection_failure_count",
    "agent_stream_errors_total",
    "agent_unresponsive_peers_total",
    "server_agent_claims_total",
    "server_agent_outlier",
    "server_certificate_last_reload_success",
    "server_dropped_packets_total",
    "server_full_receive_channels",
    "server_lease_calls_unanswered_total",
    "server_lease_delete_total",
    "server_lease_last_renewal_timestamp_seconds",
    "server_lease_list_total",
    "server_name_refusals_total",
    "server_legacy_certificates_total",
    "server_stream_errors_total",
    "server_token_reviews_total",
    "server_unresponsive_peers_total",
];

/// Metrics of other programs: kube-apiserver, its client library, Prometheus itself.
const FOREIGN: [&str; 2] = ["client_dial_failure_total", "apiserver_egress_dialer_dial_failure_count"];

/// All expressions of a chart's rules and dashboard.
fn expressions(chart: Chart) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let rules = yaml::document(&std::fs::read_to_string(chart.folder().join("files/rules.yaml"))?)?;
    let rules = list(&rules, "/groups").iter().flat_map(|group| list(group, "/rules"));
    found.extend(rules.filter_map(|rule| rule["expr"].as_str()).map(str::to_owned));
    let dashboard: Value =
        serde_json::from_slice(&std::fs::read(chart.folder().join("files/dashboard.json"))?)?;
    let targets = list(&dashboard, "/panels").iter().flat_map(|panel| list(panel, "/targets"));
    found.extend(targets.filter_map(|target| target["expr"].as_str()).map(str::to_owned));
    ensure!(found.len() > 20, "only {} expressions", found.len());
    Ok(found)
}

/// The names of metrics in an expression.
fn names(expression: &str) -> BTreeSet<String> {
    expression
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| {
            ["konnectivity_network_proxy_", "process_", "apiserver_"]
                .iter()
                .any(|prefix| word.starts_with(prefix))
        })
        .map(str::to_owned)
        .collect()
}

/// A server's scrape after the loss of its agent under a connection, and an agent's after the loss of its server.
async fn scrapes() -> Result<String> {
    let endpoint = Endpoint::echo().await?;
    let mut text = String::new();
    for lose_agent in [true, false] {
        let mut pair = Setup::grpc().start().await?;
        works(pair.frontend(), &endpoint.target()).await?;
        let refusing = Refusing::new()?;
        ensure!(works(pair.frontend(), &refusing.target()).await.is_err(), "a refusing endpoint was reached");
        let open = pair.frontend().dial(&endpoint.target()).await?;
        // The metrics of the connection and of its peer, which are counted one after the other.
        let (address, name, peer) = if lose_agent {
            pair.agent_mut().process.kill()?;
            (
                pair.server().health,
                "server_connection_resets_total",
                "backend_connection_duration_seconds_count",
            )
        } else {
            pair.server_mut().process.kill()?;
            (pair.agent().health, "agent_connection_resets_total", "agent_server_connection_lost_total{")
        };
        let name = format!("konnectivity_network_proxy_{name}");
        let lost = |scrape: &Scrape| {
            scrape.sum(&name, &[("reason", "link_lost")]) == Some(1.0) && scrape.text.contains(peer)
        };
        text.push_str(&wait_for("a reset", address, DEADLINE, lost).await?.text);
        drop(open);
    }
    Ok(text)
}

#[tokio::test]
async fn every_metric_that_is_asked_for_exists() -> Result<()> {
    let text = scrapes().await?;
    let exists = |name: &str| {
        text.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
    };
    let mut missing = BTreeSet::new();
    for chart in CHARTS {
        for name in expressions(chart)?.iter().flat_map(|expression| names(expression)) {
            let short = name.trim_start_matches("konnectivity_network_proxy_");
            if !exists(&name) && !RARE.contains(&short) && !FOREIGN.contains(&short) {
                missing.insert(name);
            }
        }
    }
    ensure!(missing.is_empty(), "no such metric in a live scrape: {missing:?}");
    Ok(())
}

/// Whether a program registers a metric. `short` is the program and the name without the common prefix; the name, or that of its
/// family without `_total`, must be a string literal in that program's list of metrics, or in the shared ones.
fn registered(short: &str) -> Result<bool> {
    let (half, name) = short.split_once('_').context("a half and a name")?;
    let literals = [format!("\"{name}\""), format!("\"{}\"", name.trim_end_matches("_total"))];
    let own = [
        format!("proxy-{half}/src/metrics/mod.rs"),
        "proxy-server/src/backends/manager/ejections.rs".to_owned(),
    ];
    let own = own.iter().map(|path| Ok(root().join(path)));
    let shared = std::fs::read_dir(root().join("common/serve/src/metrics"))?;
    for path in shared.map(|entry| entry.map(|entry| entry.path())).chain(own) {
        let source = std::fs::read_to_string(path?)?;
        let code = source.split("mod tests {").next().unwrap_or_default();
        if literals.iter().any(|literal| code.contains(literal)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn every_rare_metric_is_registered_and_asked_for() -> Result<()> {
    let mut asked = BTreeSet::new();
    for chart in CHARTS {
        asked.extend(expressions(chart)?.iter().flat_map(|expression| names(expression)));
    }
    for short in RARE {
        ensure!(registered(short)?, "no program registers {short}");
        ensure!(asked.contains(&format!("konnectivity_network_proxy_{short}")), "nobody asks for {short}");
    }
    ensure!(!registered("agent_lease_list_total")?, "a metric of the other half");
    Ok(())
}

/// Runs promtool: `PROMTOOL`, or the one that `hack/tool` installs.
fn promtool(args: &[&str], folder: PathBuf) -> Result<String> {
    let program = match std::env::var_os("PROMTOOL") {
        Some(path) => PathBuf::from(path),
        None => {
            let output = Command::new(root().join("hack/tool")).arg("promtool").output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout)?.trim().into()
        }
    };
    let output =
        Command::new(program).args(args).current_dir(folder).output().context("cannot run promtool")?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "promtool {args:?}: {said}");
    Ok(said)
}

/// The rendered case of a chart that has rules and a dashboard, in namespace `kube-system`.
fn rendered(chart: Chart, sets: &[String]) -> Result<Vec<Value>> {
    objects(chart, &chart.case("everything"), sets)
}

/// The files of a chart with tests of its rules.
fn rule_tests(chart: Chart) -> Result<Vec<String>> {
    let names = std::fs::read_dir(chart.folder())?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    let names = names.collect::<Result<Vec<_>>>()?.into_iter().flatten();
    Ok(names.filter(|name| name.ends_with("_test.yaml")).collect())
}

/// The rules of a release in namespace `kube-system`, next to their tests.
fn rules_of_a_release(chart: Chart) -> Result<TempDir> {
    let objects = rendered(chart, &[])?;
    let rules = of_kind(&objects, "PrometheusRule").next().context("rules")?;
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("files"))?;
    std::fs::write(folder.path().join("files/rules.yaml"), rules["spec"].to_string())?;
    for name in rule_tests(chart)? {
        // The chart's rules name the namespace even in alerts on what is absent.
        let tests = std::fs::read_to_string(chart.folder().join(&name))?;
        std::fs::write(folder.path().join(name), tests.replace("# The chart's rule adds: ", ""))?;
    }
    Ok(folder)
}

#[test]
fn every_alert_is_silent_before_its_time_and_fires_then() -> Result<()> {
    for chart in CHARTS {
        promtool(&["check", "rules", "files/rules.yaml"], chart.folder())?;
        let folder = rules_of_a_release(chart)?;
        promtool(&["check", "rules", "files/rules.yaml"], folder.path().into())?;
        let files = rule_tests(chart)?;
        let args: Vec<&str> = ["test", "rules"].into_iter().chain(files.iter().map(String::as_str)).collect();
        for folder in [folder.path().into(), chart.folder()] {
            promtool(&args, folder)?;
        }
        let rules = yaml::document(&std::fs::read_to_string(chart.folder().join("files/rules.yaml"))?)?;
        let tests = files.iter().map(|name| std::fs::read_to_string(chart.folder().join(name)));
        let tests = tests.collect::<std::io::Result<String>>()?;
        for rule in list(&rules, "/groups").iter().flat_map(|group| list(group, "/rules")) {
            let Some(alert) = rule["alert"].as_str() else { continue };
            let tries = tests.matches(&format!("alertname: {alert}\n")).count();
            ensure!(tries >= 2, "{alert} is tried {tries} times");
        }
    }
    Ok(())
}

/// A release's rules select only its namespace: another release's pods neither raise nor silence its alerts.
#[test]
fn rules_are_about_their_own_release() -> Result<()> {
    for chart in CHARTS {
        let objects = rendered(chart, &[])?;
        let rules = of_kind(&objects, "PrometheusRule").next().context("rules")?;
        let rules = list(rules, "/spec/groups").iter().flat_map(|group| list(group, "/rules"));
        let mut selectors = 0;
        for expression in rules.filter_map(|rule| rule["expr"].as_str()) {
            for selector in expression.split("konnectivity_network_proxy_").skip(1) {
                let own = selector.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
                ensure!(own.starts_with("{namespace=\"kube-system\""), "{}: {expression}", chart.name());
                selectors += 1;
            }
        }
        ensure!(selectors > 8, "only {selectors} selectors");
    }
    Ok(())
}

/// Grafana identifies dashboards by uid, shows them by title, and its collector stores them by file.
#[test]
fn every_release_has_a_dashboard_of_its_own() -> Result<()> {
    for chart in CHARTS {
        let mut seen = BTreeSet::new();
        for name in ["a", "b"] {
            let objects = rendered(chart, &[format!("fullnameOverride={name}")])?;
            let maps = of_kind(&objects, "ConfigMap").filter_map(|map| map["data"].as_object());
            let (file, text) =
                maps.flatten().find(|(file, _)| file.ends_with(".json")).context("a dashboard")?;
            let dashboard: Value = serde_json::from_str(text.as_str().context("text")?)?;
            let uid = dashboard["uid"].as_str().context("a uid")?;
            ensure!(uid.len() <= 40, "Grafana takes 40 characters: {uid}");
            seen.extend([file.clone(), uid.to_owned(), dashboard["title"].to_string()]);
        }
        ensure!(seen.len() == 6, "{} shares some of {seen:?}", chart.name());
    }
    Ok(())
}

/// Agents that never connected have no series of open streams: they count as not covered, not as unknown.
#[test]
fn the_coverage_of_agents_without_servers_is_nothing() -> Result<()> {
    let all = expressions(Chart::Server)?;
    let coverage = all.iter().find(|expression| {
        ["open_server_connections", "known_server_count", " / "].iter().all(|part| expression.contains(part))
    });
    let coverage =
        coverage.context("the panel on coverage")?.replace("$namespace", ".*").replace("$cluster", ".*");
    let series = "konnectivity_network_proxy_agent_known_server_count{namespace=\"n\", pod=\"a\"}";
    let test = json!({ "tests": [{
        "input_series": [{ "series": series, "values": "3" }],
        "promql_expr_test": [{ "expr": coverage, "eval_time": "0m", "exp_samples": [{ "labels": "{}", "value": 0 }] }],
    }]});
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("test.yaml"), test.to_string())?;
    promtool(&["test", "rules", "test.yaml"], folder.path().into()).map(drop)
}

/// promtool parses each expression of the dashboards, as a recording rule.
#[test]
fn every_expression_of_the_dashboards_is_sound() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for chart in CHARTS {
        let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
        for (index, expression) in expressions(chart)?.iter().enumerate() {
            let expression = expression.replace("$__rate_interval", "5m").replace('\n', " ");
            let quoted = serde_json::to_string(&expression)?;
            rules.push_str(&format!("      - record: panel:{index}\n        expr: {quoted}\n"));
        }
        let file = folder.path().join(chart.name());
        std::fs::write(&file, rules)?;
        promtool(&["check", "rules", utf8(&file)?], folder.path().into())?;
    }
    Ok(())
}

/// A dashboard begins with the answer to "is it well?": figures with thresholds and runbooks, then tables. Each panel says what it shows, and each
/// query is about the chosen cluster.
#[test]
fn dashboards_begin_with_the_answer() -> Result<()> {
    for chart in CHARTS {
        let text = std::fs::read_to_string(chart.folder().join("files/dashboard.json"))?;
        let dashboard: Value = serde_json::from_str(&text)?;
        let panels = list(&dashboard, "/panels");
        let of = |kind: &str| panels.iter().filter(|panel| panel["type"] == kind).collect::<Vec<_>>();
        let page = std::fs::read_to_string(root().join("docs/alerts.md"))?.to_lowercase();
        for stat in of("stat") {
            ensure!(stat["gridPos"]["y"] == 1, "{}: not in the first row", stat["title"]);
            ensure!(list(stat, "/fieldConfig/defaults/thresholds/steps").len() > 1, "{}", stat["title"]);
            let link = stat["links"][0]["url"].as_str().context("a runbook")?;
            let alert = link.strip_prefix("docs/alerts.md#").context("a runbook of ours")?;
            ensure!(page.contains(&format!("### {alert}\n")), "{link}: no such section");
        }
        ensure!(of("stat").len() == 6 && of("table").len() == 2, "{}", chart.name());
        let mut places = BTreeSet::new();
        for panel in panels {
            let place = [&panel["gridPos"]["x"], &panel["gridPos"]["y"]].map(|place| place.as_u64());
            ensure!(places.insert(place), "{}: two panels at {place:?}", panel["title"]);
            let text = panel["description"].as_str().unwrap_or_default();
            ensure!(panel["type"] == "row" || text.ends_with('.'), "{}: no description", panel["title"]);
            for expression in list(panel, "/targets").iter().filter_map(|target| target["expr"].as_str()) {
                let own = expression.contains("konnectivity_network_proxy_server")
                    || expression.contains("proxy_agent");
                ensure!(!own || expression.contains("{cluster=~\"$cluster\", "), "{expression}");
            }
        }
        ensure!(list(&dashboard, "/templating/list").iter().any(|variable| variable["name"] == "cluster"));
        ensure!(list(&dashboard, "/links").len() == 2, "links");
    }
    Ok(())
}
