//! A real kube-apiserver, kubectl and kubelet streaming library around the built programs.
//!
//! One cluster serves all cases: etcd and three kube-apiservers, one for each kind of connection to a proxy-server (gRPC over a
//! Unix socket, HTTP CONNECT over a Unix socket, HTTP CONNECT over TCP with mutual TLS). Every case runs with each kind, first
//! with one server and one agent for each, then with the three servers as replicas and two agents. All of them run in a
//! separate network namespace.
//!
//! Without `KUBE_TOOLS` (the output of `hack/kube-tools`) nothing runs, and a message says so; `hack/check kube` sets it.
//! Arguments are substrings of case names to run.

#![allow(clippy::print_stdout, reason = "a test runner's product is its report")]

mod attach;
mod commands;
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
use std::time::Duration;

use anyhow::Context;
use e2e::cases::Program;

use crate::world::{Ground, World};

fn main() -> ExitCode {
    let program =
        Program { name: "kube", step: "kube", total: runner::total(), limit: Duration::from_secs(180) };
    program.run(async |tools, report| {
        let [one, three] = phases::PHASES;
        let ground = Ground::lay()?;
        // Servers first: a kube-apiserver that finds none retries at growing intervals.
        let pairs = one.start(&ground).await.context("cannot start the servers")?;
        let world = World::start(tools, ground).await.context("cannot start the cluster")?;
        one.run(&world, pairs, report).await.context("one server each")?;
        let pairs = three.start(&world.ground).await.context("cannot start three replicas")?;
        three.run(&world, pairs, report).await.context("three replicas")
    })
}
