//! What talks to the Kubernetes API, against a real kube-apiserver: leases, real service account tokens, kubeconfigs of
//! every kind, with exactly the rights that the documents name.
//!
//! One cluster for all cases, which run at the same time, each in a namespace of its own. Without `KUBE_TOOLS` (what
//! `hack/kube-tools` prints) nothing runs, and one line says so; `hack/check kube` sets it. Arguments are parts of the
//! names of the cases that are to run.

#![allow(clippy::print_stdout, reason = "a test runner's product is its report")]

mod kinds;
mod leases;
mod tokens;
mod world;

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::kube::Tools;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::world::World;

/// How long one case may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

type Outcome = Pin<Box<dyn Future<Output = Result<()>> + Send>>;
type Case = (&'static str, fn(Arc<World>) -> Outcome);

macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$((concat!(stringify!($module), "::", stringify!($name)), |world| Box::pin($module::$name(world)))),*]
    };
}

const CASES: [Case; 9] = cases![
    leases::agents_follow_a_scale_from_one_to_three_to_two,
    leases::expired_leases_are_deleted_and_others_stay,
    leases::without_rights_everything_still_serves,
    tokens::a_bound_token_lets_its_agent_in,
    tokens::other_tokens_do_not,
    tokens::a_revoked_token_does_not,
    tokens::a_thief_takes_no_other_nodes_traffic,
    kinds::certificate_token_file_and_plug_in,
    kinds::an_expired_token_is_replaced_in_its_file,
];

fn main() -> ExitCode {
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if std::env::args().any(|arg| arg == "--list") {
        println!("{}: the cases are printed as they run", CASES.len());
        return ExitCode::SUCCESS;
    }
    match run(&filter) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("cluster: failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is well.
fn run(filter: &[String]) -> Result<bool> {
    let Some(tools) = Tools::find()? else {
        println!("cluster: SKIPPED all {} cases: set KUBE_TOOLS, or run hack/check kube", CASES.len());
        return Ok(true);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let began = Instant::now();
        let world = Arc::new(World::start(&tools).await.context("cannot start the cluster")?);
        let mut running = JoinSet::new();
        let wanted = |name: &str| filter.is_empty() || filter.iter().any(|part| name.contains(part.as_str()));
        for (name, case) in CASES.into_iter().filter(|(name, _)| wanted(name)) {
            let world = Arc::clone(&world);
            running.spawn(async move {
                let ended = timeout(LIMIT, case(world)).await;
                (name, ended.unwrap_or_else(|_| anyhow::bail!("not done within {LIMIT:?}")))
            });
        }
        let (mut passed, mut failed) = (0, 0);
        while let Some(ended) = running.join_next().await {
            let (name, outcome) = ended.unwrap_or_else(|error| ("a case", Err(error.into())));
            match outcome {
                Ok(()) => {
                    passed += 1;
                    println!("ok      {:5.1} s  {name}", began.elapsed().as_secs_f32());
                }
                Err(error) => {
                    failed += 1;
                    println!("FAILED  {:5.1} s  {name}: {error:#}", began.elapsed().as_secs_f32());
                }
            }
        }
        println!("cluster: {passed} passed, {failed} failed, in {} s", began.elapsed().as_secs());
        Ok(failed == 0)
    })
}
