//! Installs both charts by helm into a real kube-apiserver, and runs their pods as processes from the templates that the API
//! returns: arguments, volumes, environment, probes and roles are the rendered ones. Then kube-apiserver gets the rendered
//! EgressSelectorConfiguration, `kubectl logs` works through the tunnel, and `helm test` passes.
//!
//! Without `KUBE_TOOLS` (the output of `hack/kube-tools`) nothing runs, and a message says so; `hack/check charts` sets it.

#![allow(clippy::print_stdout, reason = "a test runner's product is its report")]

#[path = "../charts/helm.rs"]
#[allow(dead_code, reason = "shared with the tests that need no cluster")]
mod helm;
#[path = "../charts/kubelet.rs"]
#[allow(dead_code, reason = "shared with the tests that need no cluster")]
mod kubelet;
#[path = "../charts/pods.rs"]
#[allow(dead_code, reason = "shared with the tests that need no cluster")]
mod pods;
#[path = "../charts/rights.rs"]
#[allow(dead_code, reason = "shared with the tests that need no cluster")]
mod rights;
#[path = "../charts/yaml.rs"]
mod yaml;

mod dry_run;
mod release;
mod tunnel;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use e2e::cases::Program;
use e2e::kube::Cluster;

fn main() -> ExitCode {
    let program = Program { name: "install", step: "charts", total: 3, limit: Duration::from_secs(300) };
    program.run(async |tools, report| {
        let mut cluster = Cluster::start(tools, &[]).await.context("cannot start the cluster")?;
        report
            .case("kube-apiserver takes all objects, strictly validated", dry_run::every_case(&cluster))
            .await;
        report.case("pods pass the restricted Pod Security Standard", dry_run::restricted(&cluster)).await;
        report.case("an installed release carries", Box::pin(tunnel::carries(tools, &mut cluster))).await;
        Ok(())
    })
}
