//! The programs' use of the Kubernetes API, against a real kube-apiserver: leases, real service account tokens and kubeconfigs
//! of every kind, with exactly the documented rights.
//!
//! One cluster serves all cases, which run concurrently, each in its own namespace; the last case runs alone. Without
//! `KUBE_TOOLS` (the output of `hack/kube-tools`) nothing runs, and a message says so; `hack/check kube` sets it. Arguments are
//! substrings of case names to run.

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
use e2e::cases::{Program, timed};
use tokio::task::JoinSet;

use crate::world::World;

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

/// Cases that run after the others.
const ALONE: [Case; 1] = cases![outage::a_standstill_of_the_api_changes_nothing];

fn main() -> ExitCode {
    let total = CASES.len() + ALONE.len();
    let program = Program { name: "cluster", step: "kube", total, limit: Duration::from_secs(240) };
    program.run(async |tools, report| {
        let world = Arc::new(World::start(tools).await.context("cannot start the cluster")?);
        for cases in [&CASES[..], &ALONE[..]] {
            let mut running = JoinSet::new();
            for (name, case) in cases.iter().filter(|(name, _)| report.wanted(name)) {
                running.spawn(timed((*name).to_owned(), report.limit(), case(Arc::clone(&world))));
            }
            report.all(running).await;
        }
        Ok(())
    })
}
