//! The frame of a test program that starts one cluster for all of its cases: arguments, the network namespace, the runtime, the
//! report, and a clear message if the tools are missing.
//!
//! Arguments are substrings of case names to run; without arguments all cases must run.

#![allow(clippy::print_stdout, reason = "a test program's product is its report")]

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::kube::{Tools, enter};

/// A test program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The prefix of its output lines.
    pub name: &'static str,
    /// The step of `hack/check` that sets `KUBE_TOOLS`.
    pub step: &'static str,
    /// The number of its cases.
    pub total: usize,
    /// Time limit of one case on a busy machine.
    pub limit: Duration,
}

/// A finished case: its name, its result and its duration.
pub type Ended = (String, Result<()>, Duration);

/// The results of the cases so far.
#[derive(Debug)]
pub struct Report {
    program: Program,
    filter: Vec<String>,
    passed: usize,
    failures: Vec<String>,
    began: Instant,
}

impl Program {
    /// Runs the cases, each of which adds its result to the report.
    pub fn run(self, cases: impl AsyncFnOnce(&Tools, &mut Report) -> Result<()>) -> ExitCode {
        let filter = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
        if std::env::args().any(|arg| arg == "--list") {
            println!("{}: the cases are printed as they run", self.total);
            return ExitCode::SUCCESS;
        }
        let report = Report { program: self, filter, passed: 0, failures: Vec::new(), began: Instant::now() };
        match self.find_and_run(report, cases) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                println!("{}: failed: {error:#}", self.name);
                ExitCode::FAILURE
            }
        }
    }

    /// Whether all cases passed.
    fn find_and_run(
        self,
        mut report: Report,
        cases: impl AsyncFnOnce(&Tools, &mut Report) -> Result<()>,
    ) -> Result<bool> {
        let Program { name, step, total, .. } = self;
        let Some(tools) = Tools::find()? else {
            println!("{name}: SKIPPED all {total} cases: set KUBE_TOOLS, or run hack/check {step}");
            return Ok(true);
        };
        enter().context("the cases need a network namespace of their own")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(until_stopped(cases(&tools, &mut report)))?;
        report.finish()
    }
}

/// Also ends on a signal, so that all started processes are stopped in order.
async fn until_stopped(work: impl Future<Output = Result<()>>) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        done = work => done,
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    }
}

/// Runs a case within a time limit.
pub async fn timed(name: String, limit: Duration, case: impl Future<Output = Result<()>>) -> Ended {
    let began = Instant::now();
    let ended = timeout(limit, case).await;
    (name, ended.unwrap_or_else(|_| bail!("not done within {limit:?}")), began.elapsed())
}

impl Report {
    /// Whether the arguments select this case.
    pub fn wanted(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| name.contains(part.as_str()))
    }

    /// The time limit of one case.
    pub fn limit(&self) -> Duration {
        self.program.limit
    }

    /// Runs one case alone.
    pub async fn case(&mut self, name: &str, case: impl Future<Output = Result<()>>) {
        if self.wanted(name) {
            let ended = timed(name.to_owned(), self.program.limit, case).await;
            self.note(ended);
        }
    }

    /// Waits for cases that run concurrently.
    pub async fn all(&mut self, mut running: JoinSet<Ended>) {
        while let Some(ended) = running.join_next().await {
            self.note(ended.unwrap_or_else(|error| ("a case".into(), Err(error.into()), Duration::ZERO)));
        }
    }

    fn note(&mut self, (name, outcome, took): Ended) {
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("ok      {:5.1} s  {name}", took.as_secs_f32());
            }
            Err(error) => {
                println!("FAILED  {:5.1} s  {name}: {error:#}", took.as_secs_f32());
                self.failures.push(name);
            }
        }
    }

    /// Prints the last line, which `hack/check` reads. Without a filter, a case that neither passed nor failed is missing.
    fn finish(&self) -> Result<bool> {
        let (name, total) = (self.program.name, self.program.total);
        for case in &self.failures {
            println!("{name}: failed: {case}");
        }
        let took = self.began.elapsed().as_secs();
        println!("{name}: {} passed, {} failed, in {took} s", self.passed, self.failures.len());
        if self.filter.is_empty() && self.failures.is_empty() {
            ensure!(self.passed == total, "{} of {total} cases ran", self.passed);
        }
        Ok(self.failures.is_empty())
    }
}
