//! Both charts installed by helm into a real kube-apiserver, and their pods run as processes from the templates that are
//! read back from the API: rendered arguments, volumes, environment, probes and roles, nothing typed here. Then
//! kube-apiserver gets the rendered EgressSelectorConfiguration, `kubectl logs` goes through, and `helm test` passes.
//!
//! Without `KUBE_TOOLS` (what `hack/kube-tools` prints) nothing runs, and one line says so; `hack/check charts` sets it.

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

use anyhow::{Context, Result};
use e2e::kube::{Cluster, Tools, enter};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("install: failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let Some(tools) = Tools::find()? else {
        println!("install: SKIPPED: set KUBE_TOOLS, or run hack/check charts");
        return Ok(());
    };
    enter().context("the test needs a network namespace of its own")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut cluster = Cluster::start(&tools, &[]).await.context("cannot start the cluster")?;
        let taken = dry_run::every_case(&cluster).await.context("server-side dry run")?;
        println!("install: kube-apiserver takes {taken} objects of all cases, strictly validated");
        dry_run::restricted(&cluster).await.context("the restricted Pod Security Standard")?;
        println!("install: the agent's and the Deployment's pods pass the restricted Pod Security Standard");
        tunnel::carries(&tools, &mut cluster).await.context("installed release")?;
        println!("install: 3 passed, 0 failed");
        Ok(())
    })
}
