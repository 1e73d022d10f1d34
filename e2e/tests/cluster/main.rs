//! What talks to the Kubernetes API, against a real kube-apiserver: leases, real service account tokens, kubeconfigs of
//! every kind, with exactly the rights that the documents name.
//!
//! One cluster for all cases, which run at the same time, each in a namespace of its own; the last one runs alone. Without `KUBE_TOOLS` (what
//! `hack/kube-tools` prints) nothing runs, and one line says so; `hack/check kube` sets it. Arguments are parts of the
//! names of the cases that are to run.

#![allow(clippy::print_stdout, reason = "a test runner's product is its report")]

mod kinds;
mod leases;
mod outage;
mod tokens;
mod world;

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::kube::{Tools, enter};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::world::World;

/// How long one case may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// How many cases there are.
const TOTAL: usize = CASES.len() + ALONE.len();

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

/// Behind the others.
const ALONE: [Case; 1] = cases![outage::a_standstill_of_the_api_changes_nothing];

fn main() -> ExitCode {
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if std::env::args().any(|arg| arg == "--list") {
        println!("{TOTAL}: the cases are printed as they run");
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
        println!("cluster: SKIPPED all {TOTAL} cases: set KUBE_TOOLS, or run hack/check kube");
        return Ok(true);
    };
    enter().context("the cases need a network namespace of their own")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let began = Instant::now();
        let world = Arc::new(World::start(&tools).await.context("cannot start the cluster")?);
        let mut report = Report { began, passed: 0, failed: 0 };
        for cases in [&CASES[..], &ALONE[..]] {
            let wanted =
                |name: &str| filter.is_empty() || filter.iter().any(|part| name.contains(part.as_str()));
            let mut running = JoinSet::new();
            for (name, case) in cases.iter().filter(|(name, _)| wanted(name)) {
                let world = Arc::clone(&world);
                running.spawn(async move {
                    let ended = timeout(LIMIT, case(world)).await;
                    (*name, ended.unwrap_or_else(|_| anyhow::bail!("not done within {LIMIT:?}")))
                });
            }
            while let Some(ended) = running.join_next().await {
                let (name, outcome) = ended.unwrap_or_else(|error| ("a case", Err(error.into())));
                report.note(name, outcome);
            }
        }
        let Report { passed, failed, .. } = report;
        println!("cluster: {passed} passed, {failed} failed, in {} s", began.elapsed().as_secs());
        Ok(failed == 0)
    })
}

/// What came of the cases so far.
struct Report {
    began: Instant,
    passed: usize,
    failed: usize,
}

impl Report {
    fn note(&mut self, name: &str, outcome: Result<()>) {
        let at = self.began.elapsed().as_secs_f32();
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("ok      {at:5.1} s  {name}");
            }
            Err(error) => {
                self.failed += 1;
                println!("FAILED  {at:5.1} s  {name}: {error:#}");
            }
        }
    }
}
