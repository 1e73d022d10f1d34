//! Rows about single packets, requests and credentials: tests of `e2e/tests/suite` against the programs under test.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use tokio::time::Instant;

use super::{Context, Times};

/// Runs tests by their full names. Each must pass.
pub(super) fn pass(context: &Context, names: &[&str]) -> Result<Times> {
    let suite = context.suite.as_ref().context("--suite names the program with the tests")?;
    let began = Instant::now();
    let output = Command::new(suite)
        .arg("--exact")
        .args(names)
        .args(["--test-threads", "2"])
        .output()
        .with_context(|| format!("cannot run {}", suite.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}");
    let passed = format!("{} passed; 0 failed", names.len());
    ensure!(said.contains(&passed), "not {passed}: {}", said.lines().last().unwrap_or_default());
    Ok(Times::default().note(format!("{} tests in {:.1?}", names.len(), began.elapsed())))
}
