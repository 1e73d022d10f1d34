//! Checks the documents' statements about tests and flags: `docs/compatibility.md` names existing tests, and `docs/flags.md`
//! has every flag of the programs. `UPDATE_DOCS=1` writes the generated blocks.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::figures::replace_generated;
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

/// The output of a program's `--help` if it is started under this name.
fn help(program: Program, name: &str) -> Result<String> {
    Ok(String::from_utf8(Command::new(program.path()?).arg0(name).arg("--help").output()?.stdout)?)
}

/// One flag in a program's help.
#[derive(Debug, PartialEq)]
struct Row<'a> {
    heading: &'a str,
    /// Its names, and the kind of its value: `-v, --v LEVEL`.
    title: &'a str,
    default: &'a str,
    meaning: String,
}

impl<'a> Row<'a> {
    fn new(heading: &'a str, line: &'a str) -> Self {
        let (title, default) = line.split_once("  (default ").unwrap_or((line, ")"));
        let default = default.strip_suffix(')').unwrap_or(default);
        Self { heading, title, default, meaning: String::new() }
    }

    /// The long name without dashes.
    fn name(&self) -> &str {
        let (_, name) = self.title.rsplit_once("--").unwrap_or_default();
        name.split([' ', '[']).next().unwrap_or_default()
    }

    /// Whether the help marks the flag as unknown to Go.
    fn is_own(&self) -> bool {
        ["(Not a flag of the Go", "has no such flag.)"].iter().any(|mark| self.meaning.contains(mark))
    }
}

/// The flags of a help text in its order.
fn rows(help: &str) -> Result<Vec<Row<'_>>> {
    let mut heading = "";
    let mut rows: Vec<Row<'_>> = Vec::new();
    for line in help.lines().skip_while(|line| !line.starts_with("Usage: ")).skip(1) {
        if let Some(words) = line.strip_prefix("        ") {
            let row = rows.last_mut().context("words before the first flag")?;
            row.meaning = format!("{} {words}", row.meaning).trim_start().to_owned();
        } else if let Some(flag) = line.strip_prefix("  ") {
            rows.push(Row::new(heading, flag));
        } else if let Some(title) = line.strip_suffix(':') {
            heading = title;
        }
    }
    ensure!(rows.len() > 6, "the help has only {rows:?}");
    Ok(rows)
}

/// A table of one program's flags.
fn flags_table(help: &str) -> Result<String> {
    let mut table = "| flag | default | meaning |\n|---|---|---|\n".to_owned();
    let mut heading = "";
    for row in rows(help)? {
        if row.heading != heading {
            heading = row.heading;
            writeln!(table, "| **{heading}** | | |")?;
        }
        let default = if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
        let meaning = row.meaning.replace('*', "\\*").replace('|', "\\|");
        writeln!(table, "| `{}` | {default} | {meaning} |", row.title)?;
    }
    Ok(table)
}

/// A table of the flags that Go does not have, by program.
fn own_flags_table(server: &str, agent: &str) -> Result<String> {
    let (server, agent) = (rows(server)?, rows(agent)?);
    let own = |rows: &[Row<'_>]| -> BTreeSet<String> {
        rows.iter().filter(|row| row.is_own()).map(|row| row.name().to_owned()).collect()
    };
    let (server, agent) = (own(&server), own(&agent));
    ensure!(server.len().min(agent.len()) > 6, "Go lacks only {server:?} and {agent:?}");
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

#[test]
fn the_flag_page_has_every_flag() -> Result<()> {
    let path = root()?.join("docs/flags.md");
    let page = std::fs::read_to_string(&path)?;
    let names = [
        (Program::Server, "proxy-server"),
        (Program::Agent, "proxy-agent"),
        (Program::Agent, "konnectivity-check"),
    ];
    let [server, agent, check] = names.map(|(program, name)| help(program, name));
    let (server, agent, check) = (server?, agent?, check?);
    let mut wanted = replace_generated(&page, "own flags", &own_flags_table(&server, &agent)?)?;
    for ((_, name), help) in names.iter().zip([server, agent, check]) {
        wanted = replace_generated(&wanted, name, &flags_table(&help)?)?;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted)?;
        return Ok(());
    }
    let differing = page.lines().zip(wanted.lines()).find(|(page, wanted)| page != wanted);
    let fix = "UPDATE_DOCS=1 cargo test -p e2e --test suite documents::";
    ensure!(page == wanted, "docs/flags.md is out of date, first at {differing:?}: run {fix}");
    Ok(())
}
