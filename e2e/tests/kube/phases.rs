//! One phase: servers and agents in some numbers, their loss and their return, and the proof that bytes went through.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kube::Session;
use e2e::pair::{Pair, Setup};
use e2e::sockets::connections;
use e2e::wait::{DEADLINE, until, within_limit};

use crate::losses;
use crate::runner::{AGAIN, Report, WITH_TUNNEL, WITHOUT_AGENT};
use crate::world::{Lane, WAYS, World};

/// How soon a call must fail when there is no agent.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Steps that concern all lanes at once.
const STEPS: usize = 4;

/// How many servers and agents there are.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// Whether the servers are replicas of each other, or each stands for itself.
    replicas: bool,
    agents: usize,
}

/// One server for each kube-apiserver with one agent; then the three servers as replicas, with two agents that are
/// connected to all of them.
pub(crate) const PHASES: [Phase; 2] =
    [Phase { name: "one", replicas: false, agents: 1 }, Phase { name: "three", replicas: true, agents: 2 }];

impl Phase {
    /// How many cases this phase has.
    pub(crate) fn total(&self) -> usize {
        (WITHOUT_AGENT.len() + WITH_TUNNEL.len() + AGAIN.len()) * WAYS.len() + STEPS
    }

    pub(crate) async fn run(&self, world: &World, report: &mut Report) -> Result<()> {
        let lanes = world.lanes(self.name).await?;
        let mut pairs = self.start(world).await?;
        report.run("without an agent", &WITHOUT_AGENT, &lanes).await;
        self.add_agents(&mut pairs).await?;
        let before = dials(&lanes).await?;
        report.run("with the tunnel", &WITH_TUNNEL, &lanes).await;
        let name = |step: &str| format!("{}/{step}", self.name);
        report.step(&name("the egress metrics moved"), moved(&lanes, before)).await;
        report.step(&name("the agents hold the connections"), held(world, &lanes, &pairs)).await;
        report.step(&name("without its agents everything ends at once"), lost(&lanes, &mut pairs)).await;
        report.step(&name("with its agents it is whole again"), returned(&mut pairs)).await;
        report.run("again", &AGAIN, &lanes).await;
        Ok(())
    }

    /// The servers, without agents.
    async fn start(&self, world: &World) -> Result<Vec<Pair>> {
        let setup = |setup: Setup| setup.pki(&world.pki).agents(0);
        if self.replicas {
            let fronts = WAYS.map(|(_, mode, front)| (mode, front));
            return Ok(vec![setup(Setup::replicas(&fronts)).places(&world.places).start().await?]);
        }
        let mut pairs = Vec::new();
        for ((_, mode, front), place) in WAYS.into_iter().zip(&world.places) {
            pairs.push(setup(Setup::new(mode, front)).places(std::slice::from_ref(place)).start().await?);
        }
        Ok(pairs)
    }

    async fn add_agents(&self, pairs: &mut [Pair]) -> Result<()> {
        for pair in pairs {
            for index in 0..self.agents {
                pair.add_agent(&format!("agent-{index}"), "", &[])?;
            }
            pair.wait_connected().await?;
        }
        Ok(())
    }
}

async fn dials(lanes: &[Lane]) -> Result<Vec<(f64, f64)>> {
    let mut all = Vec::new();
    for lane in lanes {
        all.push(lane.dials().await?);
    }
    Ok(all)
}

/// kube-apiserver dialled through its egress selector, and no dial failed since `before`.
async fn moved(lanes: &[Lane], before: Vec<(f64, f64)>) -> Result<()> {
    for ((lane, before), now) in lanes.iter().zip(before).zip(dials(lanes).await?) {
        let (started, failed) = (now.0 - before.0, now.1 - before.1);
        // Each of exec, attach, port-forward and cp is a connection of its own to the kubelet.
        ensure!(started >= 20.0, "{}: {started} dials started", lane.name());
        println!("        {}: {started} egress dials, {failed} failed", lane.name());
    }
    Ok(())
}

/// While commands run, agents hold connections to the kubelet, and no kube-apiserver does.
async fn held(world: &World, lanes: &[Lane], pairs: &[Pair]) -> Result<()> {
    let sessions = cats(lanes).await?;
    let mut by_agents = 0;
    for agent in pairs.iter().flat_map(|pair| &pair.agents) {
        by_agents += connections(agent.process.pid(), world.node.address)?;
    }
    ensure!(by_agents >= lanes.len(), "the agents hold {by_agents} connections to the kubelet");
    for lane in lanes {
        let direct = connections(lane.apiserver().process.pid(), world.node.address)?;
        ensure!(direct == 0, "{}: kube-apiserver holds {direct} connections to the kubelet", lane.name());
    }
    drop(sessions);
    Ok(())
}

/// Kills the agents: running commands end, and new ones fail, at once.
async fn lost(lanes: &[Lane], pairs: &mut [Pair]) -> Result<()> {
    let mut sessions = cats(lanes).await?;
    // With two agents, the loss of one leaves the way by the other.
    for pair in pairs.iter_mut() {
        let count = pair.agents.len();
        for (index, agent) in pair.agents.iter_mut().enumerate() {
            agent.process.kill()?;
            if index + 1 < count {
                for lane in lanes {
                    let text = lane.ok(&["exec", "app", "-c", "app", "--", "echo", "still there"]).await?;
                    ensure!(text == "still there\n", "{}: {text:?}", lane.name());
                }
            }
        }
    }
    for session in &mut sessions {
        session.exit().await?;
    }
    for lane in lanes {
        within_limit("a call without agents", AT_ONCE, losses::no_exec(lane.clone())).await??;
        within_limit("a call without agents", AT_ONCE, losses::no_logs(lane.clone())).await??;
    }
    Ok(())
}

async fn returned(pairs: &mut [Pair]) -> Result<()> {
    for pair in pairs {
        for agent in &mut pair.agents {
            agent.process.restart()?;
        }
        // The servers have to have noticed the loss before they can have noticed the return.
        for agent in &mut pair.agents {
            agent.wait_ready().await?;
        }
        pair.wait_connected().await?;
    }
    Ok(())
}

/// One running `cat` over each lane that has answered.
async fn cats(lanes: &[Lane]) -> Result<Vec<Session>> {
    let mut sessions = Vec::new();
    for lane in lanes {
        let args = lane.args(&["exec", "-i", "app", "-c", "app", "--", "cat"]);
        let mut session =
            Session::start(lane.kubectl(), &args.iter().map(String::as_str).collect::<Vec<_>>())?;
        session.send("hello\n")?;
        sessions.push(session);
    }
    for session in &sessions {
        until("an echo", DEADLINE, || async { session.seen().contains("hello").then_some(()) }).await?;
    }
    Ok(sessions)
}
