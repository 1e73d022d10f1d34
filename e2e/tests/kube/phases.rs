//! One phase: some servers and agents, their loss and return, and the proof that bytes went through the tunnel.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cases::Report;
use e2e::kube::Session;
use e2e::metrics::{SERVER, Scrape};
use e2e::pair::{Pair, Setup};
use e2e::process::Signal;
use e2e::sockets::connections;
use e2e::wait::{DEADLINE, until, within_limit};

use crate::commands;
use crate::losses;
use crate::runner::{self, AGAIN, WITH_TUNNEL, WITHOUT_AGENT};
use crate::world::{Dials, FRONTENDS, Ground, Lane, World};

/// Time limit for a call to fail without an agent.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Number of steps that concern all lanes at once.
const STEPS: usize = 9;

/// The numbers of servers and agents.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// Whether the servers are replicas of each other, or independent.
    replicas: bool,
    agents: usize,
}

/// First one server for each kube-apiserver, each with one agent; then the three servers as replicas, with two agents that are
/// connected to all of them.
pub(crate) const PHASES: [Phase; 2] =
    [Phase { name: "one", replicas: false, agents: 1 }, Phase { name: "three", replicas: true, agents: 2 }];

impl Phase {
    /// The number of cases of this phase.
    pub(crate) fn total(&self) -> usize {
        (WITHOUT_AGENT.len() + WITH_TUNNEL.len() + AGAIN.len()) * FRONTENDS.len() + STEPS
    }

    /// Runs all cases with servers that have no agent yet; stops the servers at the end.
    pub(crate) async fn run(&self, world: &World, mut pairs: Vec<Pair>, report: &mut Report) -> Result<()> {
        let lanes = world.lanes(self.name).await?;
        runner::run(report, "without an agent", &WITHOUT_AGENT, &lanes).await;
        self.add_agents(&mut pairs).await?;
        let mut before = Vec::new();
        for lane in &lanes {
            before.push(lane.idle().await?);
        }
        runner::run(report, "with the tunnel", &WITH_TUNNEL, &lanes).await;
        let name = |step: &str| format!("{}/{step}", self.name);
        report.case(&name("the egress metrics moved, without a failure"), moved(&lanes, before)).await;
        report.case(&name("the agents hold the connections"), held(world, &lanes, &pairs)).await;
        report
            .case(
                &name("status tells of the tunnel"),
                commands::status_tells_of_the_tunnel(world, &lanes, &pairs),
            )
            .await;
        report
            .case(
                &name("probe dials as kube-apiserver does"),
                commands::probe_dials_as_kube_apiserver_does(world, &lanes, &pairs),
            )
            .await;
        report
            .case(
                &name("compare finds two servers the same"),
                commands::compare_finds_two_servers_the_same(world, &lanes),
            )
            .await;
        report
            .case(
                &name("a server that restarts stops its own kube-apiserver alone"),
                restarted(&lanes, &mut pairs),
            )
            .await;
        report.case(&name("agents are replaced, and what runs goes on"), replaced(&lanes, &mut pairs)).await;
        report.case(&name("without its agents everything ends at once"), lost(&lanes, &mut pairs)).await;
        report.case(&name("with its agents it is whole again"), returned(&mut pairs)).await;
        runner::run(report, "again", &AGAIN, &lanes).await;
        Ok(())
    }

    /// The servers, without agents.
    pub(crate) async fn start(&self, ground: &Ground) -> Result<Vec<Pair>> {
        let setup = |setup: Setup| setup.pki(&ground.pki).agents(0);
        if self.replicas {
            let fronts = FRONTENDS.map(|(_, mode, front)| (mode, front));
            return Ok(vec![setup(Setup::replicas(&fronts)).places(&ground.places).start().await?]);
        }
        let mut pairs = Vec::new();
        for ((_, mode, front), place) in FRONTENDS.into_iter().zip(&ground.places) {
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

/// Checks that kube-apiserver dialed through its egress selector, and that no dial has failed since `before`.
async fn moved(lanes: &[Lane], before: Vec<Dials>) -> Result<()> {
    for (lane, before) in lanes.iter().zip(before) {
        let now = lane.idle().await?;
        let (succeeded, failed) = (now.succeeded - before.succeeded, now.failed - before.failed);
        // Each exec, attach, port-forward and cp has its own connection to the kubelet.
        ensure!(succeeded >= 20.0, "{}: {succeeded} dials succeeded", lane.name());
        ensure!(failed == 0.0, "{}: {failed} dials failed, {succeeded} succeeded", lane.name());
        println!("        {}: {succeeded} egress dials, none failed", lane.name());
    }
    Ok(())
}

/// While commands run, agents hold connections to the kubelet, and kube-apiservers do not.
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

/// Kills the agents: running commands end at once, and new ones fail at once.
async fn lost(lanes: &[Lane], pairs: &mut [Pair]) -> Result<()> {
    let mut sessions = cats(lanes).await?;
    // With two agents, the loss of one leaves the path through the other.
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
        // The servers must notice the loss before they can notice the return.
        for agent in &mut pair.agents {
            agent.wait_ready().await?;
        }
        pair.wait_connected().await?;
    }
    Ok(())
}

/// Kills and restarts one server after the other. (The server's own kube-apiserver is not checked meanwhile: over gRPC it waits
/// half a minute for the socket.)
async fn restarted(lanes: &[Lane], pairs: &mut [Pair]) -> Result<()> {
    let works = async |lane: &Lane| lane.ok(&["exec", "app", "-c", "app", "--", "true"]).await.map(drop);
    let mut index = 0;
    for pair in pairs {
        for server in 0..pair.servers.len() {
            pair.servers[server].process.kill()?;
            for (other, lane) in lanes.iter().enumerate() {
                if other != index {
                    works(lane).await.with_context(|| format!("without server {index}"))?;
                }
            }
            pair.servers[server].process.restart()?;
            pair.servers[server].wait_healthy().await?;
            pair.wait_connected().await?;
            works(&lanes[index]).await.with_context(|| format!("after the return of server {index}"))?;
            index += 1;
        }
    }
    Ok(())
}

/// A rolling update: new agents start, the old ones drain at the first signal and end at the second.
async fn replaced(lanes: &[Lane], pairs: &mut [Pair]) -> Result<()> {
    let mut sessions = cats(lanes).await?;
    for pair in pairs.iter_mut() {
        let old = pair.agents.len();
        for index in 0..old {
            pair.add_agent(&format!("fresh-{index}"), "", &[])?;
        }
        pair.wait_connected().await?;
        for agent in pair.agents.iter().take(old) {
            agent.process.signal(Signal::TERM)?;
        }
        for server in &pair.servers {
            let packets = format!("{SERVER}stream_packets_total");
            let told = |scrape: &Scrape| scrape.value(&packets, &[("packet_type", "DRAIN")]) >= old as f64;
            server.wait_metrics("a DRAIN from every old agent", told).await?;
        }
    }
    for (session, lane) in sessions.iter_mut().zip(lanes) {
        session.send("still here\n")?;
        session.wait_for("still here").await?;
        let text = lane.ok(&["exec", "app", "-c", "app", "--", "echo", "by a fresh agent"]).await?;
        ensure!(text == "by a fresh agent\n", "{}: {text:?}", lane.name());
    }
    for pair in pairs {
        for mut agent in pair.agents.drain(..pair.agents.len() / 2) {
            agent.process.signal(Signal::TERM)?;
            agent.process.exit(DEADLINE).await?;
        }
    }
    for session in &mut sessions {
        session.exit().await?;
    }
    Ok(())
}

/// One running `cat` on each lane, after its first answer.
pub(crate) async fn cats(lanes: &[Lane]) -> Result<Vec<Session>> {
    let mut sessions = Vec::new();
    for lane in lanes {
        let mut session = lane.session(&["exec", "-i", "app", "-c", "app", "--", "cat"])?;
        session.send("hello\n")?;
        sessions.push(session);
    }
    for session in &sessions {
        until("an echo", DEADLINE, || async { session.seen().contains("hello").then_some(()) }).await?;
    }
    Ok(sessions)
}
