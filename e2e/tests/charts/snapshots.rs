//! The rendered output of each case, stored next to the chart, so that reviews show changes. `UPDATE_SNAPSHOTS=1` writes the
//! snapshots.

use anyhow::{Context, Result, ensure};

use crate::helm::{CHARTS, all_cases, text};

/// Objects that only wrap a file of the chart are omitted: the file is its own snapshot.
fn kept(rendered: &str) -> String {
    rendered
        .split("---\n")
        .filter(|part| {
            !["templates/dashboard.yaml", "templates/prometheusrule.yaml"]
                .iter()
                .any(|name| part.contains(name))
        })
        .collect::<Vec<_>>()
        .join("---\n")
}

#[test]
fn every_case_renders_to_its_snapshot() -> Result<()> {
    let update = std::env::var_os("UPDATE_SNAPSHOTS").is_some();
    for (chart, case) in all_cases()? {
        let rendered = kept(&text(chart, &chart.case(&case), &[])?);
        let path = chart.folder().join(format!("snapshots/{case}.yaml"));
        if update {
            std::fs::create_dir_all(path.parent().context("a folder")?)?;
            std::fs::write(&path, &rendered)?;
        }
        let snapshot =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let differing = rendered.lines().zip(snapshot.lines()).find(|(now, then)| now != then);
        ensure!(
            rendered == snapshot,
            "{} {case} renders differently, first at {differing:?}: look, and run with UPDATE_SNAPSHOTS=1",
            chart.name()
        );
    }
    Ok(())
}

#[test]
fn every_snapshot_has_its_case() -> Result<()> {
    for chart in CHARTS {
        let cases = chart.cases()?;
        for entry in std::fs::read_dir(chart.folder().join("snapshots"))? {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).context("a name in UTF-8")?;
            ensure!(cases.iter().any(|case| case == name), "{} belongs to no case", path.display());
        }
    }
    Ok(())
}
