//! Checks the documents' statements about the charts.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::helm::{CHARTS, Chart, helm, objects, root, template, text, utf8};
use crate::pods::{list, pods};
use crate::yaml;

#[test]
fn the_readmes_tables_are_those_of_the_values() -> Result<()> {
    let output = Command::new(root().join("hack/chart-readme")).arg("--check").output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Each alert has its section, and each section its alert; runbook links lead to them.
#[test]
fn every_alert_is_explained() -> Result<()> {
    let page = std::fs::read_to_string(root().join("docs/alerts.md"))?;
    let mut explained: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let mut alerts = Vec::new();
    for chart in CHARTS {
        let rules = yaml::document(&std::fs::read_to_string(chart.folder().join("files/rules.yaml"))?)?;
        for rule in list(&rules, "/groups").iter().flat_map(|group| list(group, "/rules")) {
            let Some(alert) = rule["alert"].as_str().map(str::to_owned) else { continue };
            let link = format!("docs/alerts.md#{}", alert.to_lowercase());
            ensure!(rule["annotations"]["runbook_url"] == link, "{alert}: the runbook is not {link}");
            ensure!(rule["annotations"]["runbook"].is_string(), "{alert}: nothing to do at once");
            alerts.push(alert);
        }
    }
    alerts.sort();
    alerts.dedup();
    explained.sort_unstable();
    ensure!(alerts == explained, "alerts {alerts:?}, sections of docs/alerts.md {explained:?}");
    Ok(())
}

/// The guide's values are those of a case that another test starts, and its helm commands render with them.
#[test]
fn the_guides_commands_render() -> Result<()> {
    let guide = std::fs::read_to_string(root().join("docs/install.md"))?;
    let folder = tempfile::tempdir()?;
    let block =
        guide.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).context("values")?;
    let servers = folder.path().join("server-values.yaml");
    std::fs::write(&servers, block)?;
    let rendered = text(Chart::Server, &servers, &[])?;
    ensure!(
        rendered == text(Chart::Server, &Chart::Server.case("uds-daemonset"), &[])?,
        "the guide's values differ from their case"
    );
    let map = objects(Chart::Server, &servers, &[])?;
    let map = map
        .iter()
        .find_map(|object| object["data"]["agent-values.yaml"].as_str())
        .context("values for agents")?;
    std::fs::write(folder.path().join("agent-values.yaml"), map)?;
    let mut ran = 0;
    for page in ["docs/install.md", "charts/konnectivity-agent/README.md"] {
        let page = std::fs::read_to_string(root().join(page))?.replace("\\\n", " ");
        for line in page.lines().filter_map(|line| line.strip_prefix("helm install ")) {
            let words = line.split_whitespace().filter(|word| *word != "--wait").map(|word| match word {
                values if values.ends_with("-values.yaml") => {
                    folder.path().join(values).display().to_string()
                }
                "CHART" => Chart::Agent.folder().display().to_string(),
                chart if chart.starts_with("charts/") => root().join(chart).display().to_string(),
                other => other.to_owned(),
            });
            let words: Vec<String> = std::iter::once("template".to_owned()).chain(words).collect();
            helm(&words.iter().map(String::as_str).collect::<Vec<_>>()).with_context(|| line.to_owned())?;
            ran += 1;
        }
    }
    ensure!(ran == 3, "{ran} commands");
    Ok(())
}

/// The documented list of tolerations without cordoned nodes has the taints that tolerating everything covers, except a
/// cordon's.
#[test]
fn the_list_without_cordoned_nodes_is_one() -> Result<()> {
    let page = std::fs::read_to_string(root().join("docs/answers.md"))?;
    let block = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).context("a list")?;
    let folder = tempfile::tempdir()?;
    let values = folder.path().join("values.yaml");
    std::fs::write(&values, block)?;
    for (chart, case) in [(Chart::Server, "deployment"), (Chart::Agent, "token-deployment")] {
        let rendered = template(chart, &chart.case(case), &["--values", utf8(&values)?])?;
        let pod = pods(&yaml::documents(&rendered)?)?.into_iter().next().context("a pod")?;
        let tolerated = |taint: &str, effect: &str| {
            list(&pod.spec, "/tolerations").iter().any(|item| {
                item["key"].as_str().is_none_or(|key| key == taint)
                    && item["effect"].as_str().is_none_or(|of| of == effect)
            })
        };
        for taint in ["not-ready", "unreachable", "network-unavailable", "disk-pressure"] {
            ensure!(tolerated(&format!("node.kubernetes.io/{taint}"), "NoSchedule"), "{case}: {taint}");
        }
        ensure!(
            !tolerated("node.kubernetes.io/unschedulable", "NoSchedule"),
            "{case} starts on cordoned nodes"
        );
        // A pod never leaves a node whose taint it tolerates without limit; Kubernetes adds 300 s if there is no toleration.
        ensure!(!tolerated("node.kubernetes.io/unreachable", "NoExecute"), "{case} stays on dead nodes");
    }
    Ok(())
}

/// Files and headings that documents link to exist.
#[test]
fn links_between_documents_lead_somewhere() -> Result<()> {
    let mut pages = Vec::from(CHARTS.map(|chart| chart.folder().join("README.md")));
    for folder in [root().to_path_buf(), root().join("docs")] {
        for entry in std::fs::read_dir(folder)? {
            pages.push(entry?.path());
        }
    }
    for page in pages.iter().filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let content = std::fs::read_to_string(page)?;
        let folder = page.parent().context("a folder")?;
        for target in content.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("http") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { page.clone() } else { folder.join(file) };
            ensure!(path.exists(), "{} links to {target}, which does not exist", page.display());
            if !anchor.is_empty() {
                let headings = std::fs::read_to_string(&path)?;
                let found =
                    headings.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor);
                ensure!(found, "{} links to {target}: no such heading", page.display());
            }
        }
    }
    Ok(())
}

/// GitHub's anchor of a heading.
fn slug(heading: &str) -> String {
    let plain = heading.trim_start_matches('#').trim().to_lowercase();
    plain
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}
