//! The scenarios: the fault of each, and its figures.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::balancer::{Loss, Side};
use super::observed::Observed;
use super::report::{Figure, Outcome, Value};
use super::rest;
use super::starve::Starved;
use super::world::{Mix, Sizes, World};
use crate::netns::Network;

/// A fault in production.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// No fault.
    Rest,
    /// The balancer loses all flows, and both sides see it.
    BothReset,
    /// The same with many servers and agents.
    BothResetLarge,
    /// Only the agents see it: the servers keep half-open connections.
    AgentsReset,
    /// Only the servers see it at once, and the balancer relays it to the agents.
    ServersReset,
    /// One agent has 1 % of a CPU.
    SlowAgent,
    /// Only the servers see it: the agents keep half-open connections.
    ServersResetNat,
}

/// All scenarios, in the order of the report.
pub const ALL: [Scenario; 7] = [
    Scenario::Rest,
    Scenario::BothReset,
    Scenario::BothResetLarge,
    Scenario::AgentsReset,
    Scenario::ServersReset,
    Scenario::SlowAgent,
    Scenario::ServersResetNat,
];

/// The durations of the parts of a run.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Load before the fault.
    pub before: Duration,
    /// Observation after the fault.
    pub after: Duration,
}

/// The agents' flag in all runs with a fault, next to the intervals. The keepalive of an hour is the programs' default.
const AGENT_ARGS: [&str; 1] = ["--sync-forever"];

/// The agent with little CPU has used up its first quota.
const SETTLED: Duration = Duration::from_secs(1);

/// Figures of a run are useless if this program did not run for a longer time.
const STALL: Duration = Duration::from_secs(1);

impl Scenario {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rest => "00",
            Self::BothReset => "01",
            Self::BothResetLarge => "01-large",
            Self::AgentsReset => "02",
            Self::ServersReset => "03",
            Self::SlowAgent => "04",
            Self::ServersResetNat => "05",
        }
    }

    /// The name in the report.
    pub fn title(self) -> &'static str {
        match self {
            Self::Rest => "00 at rest",
            Self::BothReset => "01 both sides see the loss",
            Self::BothResetLarge => "01, many programs",
            Self::AgentsReset => "02 only agents see it",
            Self::ServersReset => "03 only servers see it",
            Self::SlowAgent => "04 an agent with 1 % of a CPU",
            Self::ServersResetNat => "05 only servers see it, NAT",
        }
    }

    /// Injects the fault. What is returned holds it.
    fn inject(self, world: &World<'_>) -> Result<Option<Starved>> {
        match self {
            Self::Rest => {}
            Self::BothReset | Self::BothResetLarge => world.balancer.lose(Loss::Both),
            Self::AgentsReset => {
                world.balancer.drop_resets(Side::Servers)?;
                world.balancer.lose(Loss::Both);
            }
            Self::ServersReset => world.balancer.lose(Loss::ServersRelayed),
            Self::SlowAgent => {
                let agent = world.agents.first().context("no agent")?;
                return Ok(Some(Starved::start(agent.process.pid())?));
            }
            Self::ServersResetNat => {
                world.balancer.drop_resets(Side::Agents)?;
                world.balancer.lose(Loss::Both);
            }
        }
        Ok(None)
    }

    fn figures(self, observed: &Observed) -> Vec<Figure> {
        let all = observed.agents;
        let failed = Figure::new("dials that failed, %", None, observed.failed_dials());
        match self {
            Self::Rest => Vec::new(),
            Self::BothReset | Self::BothResetLarge => vec![
                Figure::new("first agent at every server after, s", 1.0, observed.until_servers_have(1)),
                Figure::new("all streams after, s", 10.0, observed.until_servers_have(all)),
                Figure::new("flows for each stream", 2.0, observed.flows_for_each_stream()),
                failed,
            ],
            Self::AgentsReset => vec![
                Figure::new("longest call, s", 5.0, observed.longest_call()),
                Figure::new(
                    "last dial into a dead stream after, s",
                    3.0,
                    observed.last_dial_without_answer(),
                ),
                failed,
            ],
            Self::ServersReset => vec![
                Figure::new("a server without agents for, s", 1.0, observed.until_servers_have(1)),
                failed,
            ],
            Self::SlowAgent => vec![
                Figure::new("dials that the agent gets, %", 3.0, observed.share_of_first_agent(SETTLED)),
                Figure::new(
                    "dials above 25 ms, %",
                    2.0,
                    observed.dials_longer_than(Duration::from_millis(25), SETTLED),
                ),
                failed,
            ],
            Self::ServersResetNat => vec![
                Figure::new(
                    "a server without an agent's stream for, s",
                    5.0,
                    observed.until_servers_have(all),
                ),
                Figure::new("a server without agents for, s", None, observed.until_servers_have(1)),
                failed,
            ],
        }
    }
}

/// Runs one scenario with one mix, in its own network; once more if the machine stood still.
pub fn run(scenario: Scenario, mix: &Mix, sizes: Sizes, timing: Timing) -> Result<Outcome> {
    match scenario {
        Scenario::Rest => rest::run(mix, sizes, timing),
        _ => {
            let attempt = || {
                in_network(sizes.agents, async |network| fault(scenario, network, mix, sizes, timing).await)
            };
            let (outcome, stall) = attempt()?;
            if stall < STALL {
                return Ok(outcome);
            }
            eprintln!("the machine stood still for {stall:?}: the figures of a second run count");
            let (outcome, stall) = attempt()?;
            Ok(Outcome { stalled: stall >= STALL, ..outcome })
        }
    }
}

/// Injects the fault. Returns the outcome, and the longest time for which this program did not run.
async fn fault(
    scenario: Scenario,
    network: &Network,
    mix: &Mix,
    sizes: Sizes,
    timing: Timing,
) -> Result<(Outcome, Duration)> {
    let world = World::start(network, mix, sizes, &[], &AGENT_ARGS).await?;
    let load = world.load()?;
    sleep(timing.before).await;
    let fault = Instant::now();
    let starved = scenario.inject(&world)?;
    sleep(timing.after).await;
    let observed = Observed::collect(&world, &load, fault);
    if let Some(starved) = &starved {
        eprintln!("the agent's CPU time is limited by {}", starved.by());
    }
    let stall = *load.stall.lock();
    let mut figures = scenario.figures(&observed);
    if let Some(starved) = &starved {
        let throttled = Value::is(starved.throttled().unwrap_or(f64::NAN));
        figures.push(Figure::new("100 ms periods in which the agent is throttled, %", None, throttled));
    }
    let outcome = Outcome { figures, panels: observed.panels(), stalled: false };
    Ok((outcome, stall))
}

/// Runs a future on the near side of a new network, until it ends or a signal ends this program.
pub fn in_network<T: Send>(agents: u8, work: impl AsyncFnOnce(&Network) -> Result<T> + Send) -> Result<T> {
    let network = Network::new(agents)?;
    network.near.block_on(|| async { unless_signaled(work(&network)).await })
}

/// Runs a future until it ends, or until a signal ends this program.
pub async fn unless_signaled<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut signaled = SIGNALED.get_or_init(|| watch::Sender::new(false)).subscribe();
    tokio::select! {
        done = work => done,
        _ = signaled.wait_for(|signaled| *signaled) => bail!("ended by a signal"),
    }
}

static SIGNALED: OnceLock<watch::Sender<bool>> = OnceLock::new();

/// Whether a signal ends this program.
pub fn signaled() -> bool {
    SIGNALED.get().is_some_and(|signaled| *signaled.borrow())
}

/// From now on SIGINT and SIGTERM end runs with an error, so that their networks and programs are removed.
pub fn end_on_signals() -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let within = runtime.enter();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    drop(within);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            SIGNALED.get_or_init(|| watch::Sender::new(false)).send_replace(true);
        });
    });
    Ok(())
}
