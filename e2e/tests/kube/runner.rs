//! The cases, and how they run on lanes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::Result;
use e2e::cases::{Report, timed};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::world::Lane;
use crate::{attach, copy, exec, extensions, forward, logs, losses, phases, proxy};

/// Number of concurrent cases.
const AT_ONCE: usize = 4;

/// The result of a case.
pub(crate) type Outcome = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// One case; runs on each lane of each phase.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Lane) -> Outcome,
}

/// Makes a table of cases from functions.
macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |lane| Box::pin($module::$name(lane)),
        }),*]
    };
}

/// With a tunnel, everything works. The longest cases come first.
pub(crate) const WITH_TUNNEL: [Case; 26] = cases![
    extensions::discovery,
    logs::whole,
    logs::an_unread_one_does_not_stall_others,
    forward::large,
    forward::many_at_once,
    exec::stdin_by_websocket,
    exec::stdin_by_spdy,
    exec::stdin_by_websocket_to_the_kubelet,
    exec::many_at_once,
    exec::an_unread_one_does_not_stall_others,
    exec::on_a_terminal,
    forward::half_closed,
    forward::by_spdy,
    forward::by_websocket_to_the_kubelet,
    copy::there_and_back,
    logs::tail,
    logs::follow,
    exec::streams_and_exit_code,
    exec::a_failing_command,
    attach::to_a_running_container,
    attach::by_websocket_to_the_kubelet,
    proxy::nodes,
    proxy::pods,
    proxy::services,
    extensions::webhook,
    extensions::aggregated_api,
];

/// Without an agent, everything fails.
pub(crate) const WITHOUT_AGENT: [Case; 7] = cases![
    losses::no_exec,
    losses::no_attach,
    losses::no_port_forward,
    losses::no_logs,
    losses::no_proxy,
    losses::no_webhook,
    losses::no_aggregated_api,
];

/// A short round that checks that a tunnel works again.
pub(crate) const AGAIN: [Case; 4] =
    cases![exec::streams_and_exit_code, logs::tail, proxy::pods, extensions::webhook];

/// The number of cases of all phases.
pub(crate) fn total() -> usize {
    phases::PHASES.iter().map(phases::Phase::total).sum()
}

/// Runs every case on every lane, several at once.
pub(crate) async fn run(report: &mut Report, when: &str, cases: &[Case], lanes: &[Lane]) {
    let gate = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for case in cases {
        for lane in lanes {
            let name = format!("{}/{when}/{}", lane.name(), case.name);
            if !report.wanted(&name) {
                continue;
            }
            let (gate, lane, run, limit) = (gate.clone(), lane.clone(), case.run, report.limit());
            running.spawn(async move {
                let _turn = gate.acquire_owned().await;
                timed(name, limit, run(lane)).await
            });
        }
    }
    report.all(running).await;
}
