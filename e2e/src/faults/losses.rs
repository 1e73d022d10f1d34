//! Programs that are killed, stopped, restarted or replaced.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::load::{Load, dialed, ensure_calm, exchange_until_lost};
use super::{Base, Context, Times, alone, within};
use crate::endpoints::Endpoint;
use crate::exchange::{echo, expect_any_end, works};
use crate::frontend::Mode;
use crate::load::{Plan, Replica};
use crate::outages::{Fault, Outage};
use crate::pair::{Pair, Setup};
use crate::payload::Payload;
use crate::process::Signal;
use crate::rollout::restart_all_under_load;
use crate::wait::{DEADLINE, until};

/// Two agents: one is chosen by the address of an endpoint, one by its name.
fn two_agents(context: &Context) -> Setup {
    let setup = Setup::http_connect()
        .server_arg("--proxy-strategies=destHost")
        .agent("by-address", "ipv4=127.0.0.1")
        .agent("by-name", "host=localhost");
    context.with(setup)
}

/// A thousand connections that exchange bytes through one agent, which is killed; others use the other agent.
pub(super) fn agent_killed(context: &Context) -> Result<Times> {
    alone(async || {
        let mut pair = two_agents(context).start().await?;
        let endpoint = Endpoint::echo().await?;
        let by_name = format!("localhost:{}", endpoint.address().port());
        let mut exchanges = JoinSet::new();
        let conns = dialed(pair.frontend(), &endpoint.target(), 1_000).await?;
        for (seed, conn) in conns.into_iter().enumerate() {
            exchanges.spawn(exchange_until_lost(conn, seed as u64, Duration::from_millis(500)));
        }
        let others = Load::start(pair.frontend(), &by_name, 4);
        let before = others.next(200).await?;
        let killed = Instant::now();
        pair.agent_mut().process.kill()?;
        let mut noticed = Duration::ZERO;
        while let Some(ended) = exchanges.join_next().await {
            noticed = noticed.max(ended?? - killed);
        }
        ensure!(noticed <= Duration::from_secs(1), "the last frontend closed after {noticed:.2?}");
        let beside = others.since(killed, 200).await?;
        ensure_calm(before, beside)?;
        let restarted = Instant::now();
        pair.agent_mut().process.restart()?;
        until("a dial through the agent", DEADLINE, || async {
            works(pair.frontend(), &endpoint.target()).await.ok()
        })
        .await?;
        let recovered = restarted.elapsed();
        drop(others);
        endpoint.wait_open(0).await?;
        if context.is_native() {
            pair.server().wait_metric("established_connections", &[], 0.0).await?;
        }
        Ok(Times::new(noticed, recovered).note(format!("others' p99 {before:.1?} -> {beside:.1?}")))
    })
}

/// Fifty agents and two thousand connections, whose server is killed and started again.
pub(super) fn server_restarted(context: &Context) -> Result<Times> {
    const AGENTS: usize = 50;
    alone(async || {
        // The intervals of both projects' defaults, instead of the shorter ones of tests.
        let setup = Setup::http_connect()
            .agents(AGENTS)
            .agent_arg("--sync-interval=1s")
            .agent_arg("--sync-interval-cap=10s")
            .agent_arg("--probe-interval=1s");
        let mut pair = context.with(setup).start().await?;
        let endpoint = Endpoint::echo().await?;
        let conns = dialed(pair.frontend(), &endpoint.target(), 2_000).await?;
        let killed = Instant::now();
        pair.server_mut().restart()?;
        for mut conn in conns {
            expect_any_end(&mut conn).await?;
        }
        endpoint.wait_open(0).await?;
        let noticed = within("every connection was closed", killed, Duration::from_secs(15))?;
        pair.server_mut().wait_ready().await?;
        let ready = Instant::now();
        until("the first dial", DEADLINE, || async { works(pair.frontend(), &endpoint.target()).await.ok() })
            .await?;
        let first = within("the first dial succeeded", ready, Duration::from_secs(1))?;
        pair.wait_connected().await?;
        let recovered = within("all agents were back", killed, Duration::from_secs(15))?;
        Ok(Times::new(noticed, recovered).note(format!("first dial {first:.1?} after ready")))
    })
}

/// Programs that stand still for 20 s. Connections through native programs survive, and every byte arrives.
pub(super) fn stopped(_: &Context) -> Result<Times> {
    alone(async || {
        let mut recovered = Duration::ZERO;
        for fault in [Fault::StoppedAgent, Fault::StoppedServer] {
            let outage =
                Outage { mode: Mode::HttpConnect, fault, length: Duration::from_secs(20), dials: false };
            recovered = recovered.max(outage.survive().await?);
        }
        ensure!(recovered <= Duration::from_secs(15), "recovered after {recovered:.1?}");
        Ok(Times { recovered: Some(recovered), ..Times::default() })
    })
}

/// Every server and agent is restarted in turn; then Go's programs are replaced by ours, servers first and agents first.
pub(super) fn rollouts(context: &Context) -> Result<Times> {
    alone(async || {
        let plan = Plan { rate: 20, hold: Duration::from_secs(1), transfers: 0 };
        let report = restart_all_under_load(&plan, 1).await?;
        report.check()?;
        let mut note = format!("{} dials", report.dials);
        if context.go.is_some() {
            for servers_first in [true, false] {
                let (dials, failed) = replaced(context, servers_first).await?;
                ensure!(
                    failed * 1_000 <= dials,
                    "{failed} of {dials} dials failed, servers first: {servers_first}"
                );
                note = format!("{note}; from Go {dials}, {failed} failed");
            }
        }
        Ok(Times::default().note(note))
    })
}

/// Replaces two Go servers and two Go agents by ours, one by one, beside clients that use the servers that are up.
async fn replaced(context: &Context, servers_first: bool) -> Result<(usize, usize)> {
    let (server, agent) = context.go.clone().context("Go's programs")?;
    let mut pair = Setup::http_connect().servers(2).agents(2).programs(server, agent).start().await?;
    let endpoint = Endpoint::echo().await?;
    let replicas = Replica::all_of(&pair)?;
    // Connections are short: Go's programs cut those that are open when they stop.
    let plan = Plan { rate: 20, hold: Duration::ZERO, transfers: 0 };
    let events = async |_| {
        for servers in [servers_first, !servers_first] {
            match servers {
                true => replace_servers(&mut pair, &replicas).await?,
                false => replace_agents(&mut pair).await?,
            }
        }
        Ok(())
    };
    let (report, ()) = crate::load::during(&replicas, &endpoint.target(), &plan, events).await?;
    Ok((report.dials, report.failed))
}

async fn replace_servers(pair: &mut Pair, replicas: &[Replica]) -> Result<()> {
    for (number, replica) in replicas.iter().enumerate() {
        replica.leave().await;
        let server = &mut pair.servers[number];
        server.process.signal(Signal::TERM)?;
        server.process.exit(DEADLINE).await?;
        server.process.restart_as(&crate::program::Program::Server.path()?)?;
        server.wait_healthy().await?;
        pair.wait_connected().await?;
        replica.come().await;
    }
    Ok(())
}

async fn replace_agents(pair: &mut Pair) -> Result<()> {
    /// Go's agent drains and does not end by itself: it is killed after this time, as by kubelet.
    const GRACE: Duration = Duration::from_secs(2);
    for number in 0..pair.agents.len() {
        let agent = &mut pair.agents[number];
        agent.process.signal(Signal::TERM)?;
        // It may not have ended.
        let _ = agent.process.exit(GRACE).await;
        agent.process.restart_as(&crate::program::Program::Agent.path()?)?;
        pair.wait_connected().await?;
    }
    Ok(())
}

/// The file of a frontend's Unix socket is deleted while a connection is open.
pub(super) fn socket_deleted(context: &Context) -> Result<Times> {
    alone(async || {
        let pair = context.with(Setup::http_connect()).start().await?;
        let endpoint = Endpoint::echo().await?;
        let base = Base::of(&pair)?;
        let conn = pair.frontend().dial(&endpoint.target()).await?;
        let crate::frontend::Place::Unix(path) = &pair.frontend().place else { anyhow::bail!("no socket") };
        let deleted = Instant::now();
        std::fs::remove_file(path)?;
        let conn = echo(conn, Payload::new(1, 1 << 20)).await.context("the live connection")?;
        until("a dial", DEADLINE, || async { works(pair.frontend(), &endpoint.target()).await.ok() }).await?;
        let recovered = within("the socket was bound again", deleted, Duration::from_secs(10))?;
        drop(echo(conn, Payload::new(2, 1 << 20)).await.context("the live connection")?);
        base.back(context, &pair).await?;
        Ok(Times { recovered: Some(recovered), ..Times::default() })
    })
}
