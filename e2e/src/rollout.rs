//! A rolling restart of every server and every agent: no dial may fail, and no connection may be cut that is shorter than the
//! grace period of the restarted process.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::endpoints::Endpoint;
use crate::load::{self, Plan, Progress, Replica, Report};
use crate::pair::{Pair, Setup};
use crate::process::Signal;
use crate::wait::DEADLINE;

/// The grace period of a server and of an agent.
const GRACE: Duration = Duration::from_secs(40);

/// Three servers with frontends of both kinds, and three agents; restarts each `rounds` times.
pub async fn restart_all_under_load(plan: &Plan, rounds: usize) -> Result<Report> {
    use crate::frontend::Mode::{Grpc, HttpConnect};
    use crate::pair::Front::{Tls, Unix};
    let mut pair = Setup::replicas(&[(Grpc, Unix), (HttpConnect, Unix), (Grpc, Tls)])
        .agents(3)
        .server_arg(format!("--graceful-shutdown-timeout={}s", GRACE.as_secs()))
        .agent_arg(format!("--drain-timeout={}s", GRACE.as_secs()))
        .server_arg("-v=1")
        .agent_arg("-v=1")
        .start()
        .await?;
    let endpoint = Endpoint::echo().await?;
    let replicas = Replica::all_of(&pair)?;
    let events = async |progress: Progress| {
        for _ in 0..rounds {
            for (number, replica) in replicas.iter().enumerate() {
                restart_server(&mut pair, number, replica)
                    .await
                    .with_context(|| format!("server {number}"))?;
                progress.kept().await.with_context(|| format!("server {number}"))?;
            }
            for number in 0..pair.agents.len() {
                restart_agent(&mut pair, number).await.with_context(|| format!("agent {number}"))?;
                progress.kept().await.with_context(|| format!("agent {number}"))?;
            }
        }
        Ok(())
    };
    Ok(load::during(&replicas, &endpoint.target(), plan, events).await?.0)
}

/// Its clients use another server meanwhile, as kube-apiserver's clients do when its server stops.
async fn restart_server(pair: &mut Pair, number: usize, replica: &Replica) -> Result<()> {
    replica.leave().await;
    let server = pair.servers.get_mut(number).context("no such server")?;
    server.process.signal(Signal::TERM)?;
    let status = server.process.exit(GRACE + DEADLINE).await?;
    ensure!(status.success(), "{status}");
    ensure!(!server.process.said("Graceful shutdown timed out"), "the server cut connections off");
    server.process.restart()?;
    server.wait_healthy().await?;
    pair.wait_connected().await?;
    replica.come().await;
    Ok(())
}

async fn restart_agent(pair: &mut Pair, number: usize) -> Result<()> {
    let agent = pair.agents.get_mut(number).context("no such agent")?;
    agent.process.signal(Signal::TERM)?;
    let status = agent.process.exit(GRACE + DEADLINE).await?;
    ensure!(status.success(), "{status}");
    ensure!(!agent.process.said("Connections are left"), "the agent cut connections off");
    agent.process.restart()?;
    pair.wait_connected().await
}
