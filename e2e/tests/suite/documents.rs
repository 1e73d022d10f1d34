//! `docs/compatibility.md` names tests: they exist.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The names of all functions in the `.rs` files below a folder.
fn functions(folder: &Path, names: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            functions(&path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let declared = text.lines().filter_map(|line| {
                let line = line.trim_start().trim_start_matches("pub(crate) ");
                line.trim_start_matches("async ").strip_prefix("fn ")
            });
            names.extend(declared.filter_map(|rest| rest.split(['(', '<']).next()).map(str::to_owned));
        }
    }
    Ok(())
}

#[test]
fn every_named_test_exists() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("a workspace")?;
    let mut names = BTreeSet::new();
    for folder in ["e2e", "common", "proto", "proxy-server", "proxy-agent"] {
        functions(&root.join(folder), &mut names)?;
    }
    let text = std::fs::read_to_string(root.join("docs/compatibility.md"))?;
    // Every second piece between backticks is quoted.
    let quoted =
        text.split('`').skip(1).step_by(2).filter(|word| word.contains("::") && !word.ends_with("..."));
    let missing: Vec<&str> =
        quoted.filter(|test| test.rsplit("::").next().is_none_or(|name| !names.contains(name))).collect();
    ensure!(missing.is_empty(), "docs/compatibility.md names tests that do not exist: {missing:?}");
    Ok(())
}
