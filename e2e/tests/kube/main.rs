//! A real kube-apiserver, kubectl and kubelet streaming library around the built binaries.
//!
//! One cluster is started for all cases: etcd and three kube-apiservers, one for each way to a proxy-server (gRPC over
//! a Unix socket, HTTP CONNECT over one, HTTP CONNECT over TCP with mutual TLS). Every case runs over each way, first
//! with one server and one agent for each, then with the three servers as replicas and two agents. All of it lives in a
//! network namespace of its own.
//!
//! Without `KUBE_TOOLS` (what `hack/kube-tools` prints) nothing runs, and one line says so; `hack/check kube` sets it.
//! Arguments are parts of the names of the cases that are to run.

#![allow(clippy::print_stdout, reason = "a test runner's product is its report")]

mod attach;
mod copy;
mod exec;
mod extensions;
mod forward;
mod logs;
mod losses;
mod phases;
mod proxy;
mod runner;
mod world;

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use e2e::kube::{Tools, enter};

use crate::runner::Report;
use crate::world::{Ground, World};

fn main() -> ExitCode {
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if std::env::args().any(|arg| arg == "--list") {
        println!("{}: the cases are printed as they run", runner::total());
        return ExitCode::SUCCESS;
    }
    match run(&filter) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("kube: failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is well.
fn run(filter: &[String]) -> Result<bool> {
    let Some(tools) = Tools::find()? else {
        println!("kube: SKIPPED all {} cases: set KUBE_TOOLS, or run hack/check kube", runner::total());
        return Ok(true);
    };
    enter().context("the cases need a network namespace of their own")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(until_stopped(everything(&tools, filter)))?;
    report.print();
    if filter.is_empty() && report.failed() == 0 {
        ensure!(report.passed() == runner::total(), "{} cases ran", report.passed());
    }
    Ok(report.failed() == 0)
}

/// Ends on a signal as well, so that everything that was started is stopped in order.
async fn until_stopped<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        done = work => done,
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    }
}

async fn everything(tools: &Tools, filter: &[String]) -> Result<Report> {
    let mut report = Report::new(filter);
    let [one, three] = phases::PHASES;
    let ground = Ground::lay()?;
    // Servers first: a kube-apiserver that finds none waits longer and longer between its tries.
    let pairs = one.start(&ground).await.context("cannot start the servers")?;
    let world = World::start(tools, ground).await.context("cannot start the cluster")?;
    one.run(&world, pairs, &mut report).await.context("one server each")?;
    let pairs = three.start(&world.ground).await.context("cannot start three replicas")?;
    three.run(&world, pairs, &mut report).await.context("three replicas")?;
    Ok(report)
}
