//! Runs helm as an operator runs it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::yaml;

/// One of the two charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chart {
    Agent,
    Server,
}

/// Both charts.
pub(crate) const CHARTS: [Chart; 2] = [Chart::Agent, Chart::Server];

/// The workspace's folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("e2e lies in the workspace")
}

impl Chart {
    /// The name of the chart, and of its releases here.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Agent => "konnectivity-agent",
            Self::Server => "konnectivity-server",
        }
    }

    /// Its folder.
    pub(crate) fn folder(self) -> PathBuf {
        root().join("charts").join(self.name())
    }

    /// The values of `ci/NAME-values.yaml`.
    pub(crate) fn case(self, name: &str) -> PathBuf {
        self.folder().join(format!("ci/{name}-values.yaml"))
    }

    /// The names of all files in `ci/`.
    pub(crate) fn cases(self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.folder().join("ci"))? {
            let name = entry?.file_name().into_string().ok().context("a name in UTF-8")?;
            names.push(name.strip_suffix("-values.yaml").context("a file of values")?.to_owned());
        }
        names.sort();
        ensure!(names.len() > 4, "only {names:?} in ci/ of {}", self.name());
        Ok(names)
    }
}

/// Every chart with every case.
pub(crate) fn all_cases() -> Result<Vec<(Chart, String)>> {
    let mut all = Vec::new();
    for chart in CHARTS {
        all.extend(chart.cases()?.into_iter().map(|case| (chart, case)));
    }
    Ok(all)
}

/// The program: `HELM`, or the one that `hack/tool` installs.
fn program() -> Result<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| find().map_err(|error| format!("{error:#}")));
    found.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("HELM") {
        return Ok(path.into());
    }
    let output =
        Command::new(root().join("hack/tool")).arg("helm").output().context("cannot run hack/tool")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().into())
}

/// Runs helm; returns its standard output, or an error with its output.
pub(crate) fn helm(args: &[&str]) -> Result<String> {
    let output = Command::new(program()?).args(args).output().context("cannot run helm")?;
    if !output.status.success() {
        bail!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// `helm template` in namespace `kube-system` as text, with a case's values and settings.
pub(crate) fn text(chart: Chart, values: &Path, sets: &[String]) -> Result<String> {
    let sets: Vec<String> = sets.iter().map(|set| argument(set)).collect();
    template(chart, values, &sets.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A setting as an argument of helm: as it is if it begins with `--`, otherwise of `--set`.
pub(crate) fn argument(set: &str) -> String {
    if set.starts_with("--") { set.to_owned() } else { format!("--set={set}") }
}

/// `helm template` as text, with a case's values and further arguments.
pub(crate) fn template(chart: Chart, values: &Path, more: &[&str]) -> Result<String> {
    release(chart.name(), chart, values, more)
}

/// The same for a release of that name.
pub(crate) fn release(name: &str, chart: Chart, values: &Path, more: &[&str]) -> Result<String> {
    let folder = chart.folder();
    let mut args = vec!["template", name, utf8(&folder)?, "--namespace", "kube-system"];
    args.extend(["--values", utf8(values)?]);
    args.extend(more);
    helm(&args)
}

/// The same, parsed.
pub(crate) fn objects(chart: Chart, values: &Path, sets: &[String]) -> Result<Vec<Value>> {
    yaml::documents(&text(chart, values, sets)?)
}

/// A path as text.
pub(crate) fn utf8(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}
