//! Runs cases over lanes, a few at once, and reports.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::world::Lane;
use crate::{attach, copy, exec, extensions, forward, logs, losses, phases, proxy};

/// How many cases run at the same time.
const AT_ONCE: usize = 4;

/// How long one case may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// What a case comes to.
pub(crate) type Outcome = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// One case: runs over each lane of each phase.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Lane) -> Outcome,
}

/// A table of cases out of functions.
macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |lane| Box::pin($module::$name(lane)),
        }),*]
    };
}

/// With a tunnel, everything works. The longest come first.
pub(crate) const WITH_TUNNEL: [Case; 26] = cases![
    extensions::discovery,
    logs::whole,
    logs::an_unread_one_stalls_nobody,
    forward::large,
    forward::many_at_once,
    exec::stdin_by_websocket,
    exec::stdin_by_spdy,
    exec::stdin_by_websocket_to_the_kubelet,
    exec::many_at_once,
    exec::an_unread_one_stalls_nobody,
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

/// A short round, to see that a tunnel is whole again.
pub(crate) const AGAIN: [Case; 4] =
    cases![exec::streams_and_exit_code, logs::tail, proxy::pods, extensions::webhook];

/// How many cases all phases together have.
pub(crate) fn total() -> usize {
    phases::PHASES.iter().map(phases::Phase::total).sum()
}

/// What came of all cases.
pub(crate) struct Report {
    filter: Vec<String>,
    passed: usize,
    failures: Vec<String>,
    began: Instant,
}

impl Report {
    pub(crate) fn new(filter: &[String]) -> Self {
        Self { filter: filter.to_vec(), passed: 0, failures: Vec::new(), began: Instant::now() }
    }

    pub(crate) fn passed(&self) -> usize {
        self.passed
    }

    pub(crate) fn failed(&self) -> usize {
        self.failures.len()
    }

    fn wanted(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| name.contains(part.as_str()))
    }

    /// Runs every case over every lane.
    pub(crate) async fn run(&mut self, when: &str, cases: &[Case], lanes: &[Lane]) {
        let gate = Arc::new(Semaphore::new(AT_ONCE));
        let mut running = JoinSet::new();
        for case in cases {
            for lane in lanes {
                let name = format!("{}/{when}/{}", lane.name(), case.name);
                if !self.wanted(&name) {
                    continue;
                }
                let (gate, lane, run) = (gate.clone(), lane.clone(), case.run);
                running.spawn(async move {
                    let _turn = gate.acquire_owned().await;
                    let began = Instant::now();
                    let ended = timeout(LIMIT, run(lane)).await;
                    let outcome = ended.unwrap_or_else(|_| anyhow::bail!("not done within {LIMIT:?}"));
                    (name, outcome, began.elapsed())
                });
            }
        }
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok((name, outcome, took)) => self.note(&name, outcome, took),
                Err(error) => self.note("a case", Err(error.into()), Duration::ZERO),
            }
        }
    }

    /// Runs a step that concerns all lanes at once.
    pub(crate) async fn step(&mut self, name: &str, step: impl Future<Output = Result<()>>) {
        if !self.wanted(name) {
            return;
        }
        let began = Instant::now();
        let outcome =
            timeout(LIMIT, step).await.unwrap_or_else(|_| anyhow::bail!("not done within {LIMIT:?}"));
        self.note(name, outcome, began.elapsed());
    }

    fn note(&mut self, name: &str, outcome: Result<()>, took: Duration) {
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("ok      {:5.1} s  {name}", took.as_secs_f32());
            }
            Err(error) => {
                println!("FAILED  {:5.1} s  {name}: {error:#}", took.as_secs_f32());
                self.failures.push(name.to_owned());
            }
        }
    }

    pub(crate) fn print(&self) {
        for name in &self.failures {
            println!("kube: failed: {name}");
        }
        let took = self.began.elapsed().as_secs();
        println!("kube: {} passed, {} failed, in {took} s", self.passed, self.failures.len());
    }
}
