//! Checks the documents' statements about tests and flags: `docs/compatibility.md` names existing tests, and `docs/flags.md`
//! contains the help of both programs. `UPDATE_DOCS=1` writes the generated blocks.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::program::Program;

/// The names of all functions in the `.rs` files in a folder.
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

fn root() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("a workspace")
}

#[test]
fn every_named_test_exists() -> Result<()> {
    let mut names = BTreeSet::new();
    for folder in ["e2e", "common", "proto", "proxy-server", "proxy-agent"] {
        functions(&root()?.join(folder), &mut names)?;
    }
    let text = std::fs::read_to_string(root()?.join("docs/compatibility.md"))?;
    // Every second part between backticks is quoted.
    let quoted =
        text.split('`').skip(1).step_by(2).filter(|word| word.contains("::") && !word.ends_with("..."));
    let missing: Vec<&str> =
        quoted.filter(|test| test.rsplit("::").next().is_none_or(|name| !names.contains(name))).collect();
    ensure!(missing.is_empty(), "docs/compatibility.md names tests that do not exist: {missing:?}");
    Ok(())
}

/// The output of a program's `--help`.
fn help(program: Program) -> Result<String> {
    Ok(String::from_utf8(Command::new(program.path()?).arg("--help").output()?.stdout)?)
}

/// The flags that a program's help marks as unknown to Go.
fn own_flags(help: &str) -> Result<BTreeSet<&str>> {
    let mut own = BTreeSet::new();
    for block in help.split("\n  --").skip(1) {
        let name = block.split([' ', '[', '\n']).next().unwrap_or_default();
        let words = block.split_whitespace().collect::<Vec<_>>().join(" ");
        if ["(Not a flag of the Go", "has no such flag.)"].iter().any(|mark| words.contains(mark)) {
            own.insert(name);
        }
    }
    ensure!(own.len() > 6, "the help names only {own:?} as flags that Go does not have");
    Ok(own)
}

/// A table of the flags that Go does not have, by program.
fn own_flags_table(server: &str, agent: &str) -> Result<String> {
    let (server, agent) = (own_flags(server)?, own_flags(agent)?);
    let mut table = "| flag | program |\n|---|---|\n".to_owned();
    for flag in server.union(&agent) {
        let program = match (server.contains(flag), agent.contains(flag)) {
            (true, true) => "both",
            (true, false) => "server",
            _ => "agent",
        };
        writeln!(table, "| `--{flag}` | {program} |")?;
    }
    Ok(table)
}

/// Replaces the block between its markers in a page.
fn with_block(page: &str, name: &str, block: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- generated: {name} -->\n"), "<!-- end -->");
    let (before, rest) = page.split_once(&begin).with_context(|| format!("no marker of {name}"))?;
    let (_, after) = rest.split_once(end).with_context(|| format!("no end of {name}"))?;
    Ok(format!("{before}{begin}\n{block}\n{end}{after}"))
}

#[test]
fn the_flag_page_has_the_help_of_both_programs() -> Result<()> {
    let path = root()?.join("docs/flags.md");
    let page = std::fs::read_to_string(&path)?;
    let (server, agent) = (help(Program::Server)?, help(Program::Agent)?);
    let mut wanted = with_block(&page, "own flags", &own_flags_table(&server, &agent)?)?;
    for (name, help) in [("proxy-server --help", server), ("proxy-agent --help", agent)] {
        wanted = with_block(&wanted, name, &format!("```text\n{help}```\n"))?;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted)?;
        return Ok(());
    }
    let differing = page.lines().zip(wanted.lines()).find(|(page, wanted)| page != wanted);
    ensure!(page == wanted, "docs/flags.md is out of date, first at {differing:?}: run with UPDATE_DOCS=1");
    Ok(())
}
