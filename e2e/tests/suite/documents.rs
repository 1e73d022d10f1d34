//! `docs/compatibility.md` names tests: they exist. `docs/migrating.md` names the flags that Go does not have: all of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::program::Program;

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

/// The flags of which a program's help says that Go does not have them.
fn own_flags(program: Program) -> Result<BTreeSet<String>> {
    let output = Command::new(program.path()?).arg("--help").output()?;
    let help = String::from_utf8(output.stdout)?;
    let mut own = BTreeSet::new();
    for block in help.split("\n  --").skip(1) {
        let name = block.split([' ', '[', '\n']).next().unwrap_or_default();
        let words = block.split_whitespace().collect::<Vec<_>>().join(" ");
        if ["(Not a flag of the Go", "has no such flag.)"].iter().any(|mark| words.contains(mark)) {
            own.insert(format!("--{name}"));
        }
    }
    ensure!(own.len() > 6, "only {own:?} in the help of {program:?}");
    Ok(own)
}

/// Whoever goes back to Go must take all of them away, and no other.
#[test]
fn the_way_back_names_every_own_flag() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("a workspace")?;
    let text = std::fs::read_to_string(root.join("docs/migrating.md"))?;
    let step =
        text.split("Remove the flags that are ours: ").nth(1).and_then(|rest| rest.split("Go exits").next());
    let named: BTreeSet<String> =
        step.context("the step")?.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let own: BTreeSet<String> =
        own_flags(Program::Server)?.into_iter().chain(own_flags(Program::Agent)?).collect();
    ensure!(named == own, "docs/migrating.md names {named:?}, the programs have {own:?}");
    Ok(())
}
