//! Outages of some seconds: connections survive, and dials go to a responsive agent. Longer outages: `endurance outages`.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, works};
use e2e::figures::say;
use e2e::frontend::Mode;
use e2e::netns::{Network, if_possible};
use e2e::outages::{Fault, Outage};
use e2e::pair::Setup;
use e2e::payload::Payload;
use e2e::process::Signal;
use tokio::task::JoinSet;
use tokio::time::Instant;

const STOP: Duration = Duration::from_secs(8);

async fn stopped(fault: Fault<'_>, dials: bool) -> Result<()> {
    let outage = |mode| Box::pin(Outage { mode, fault, length: STOP, dials }.survive());
    let (grpc, http_connect) = tokio::join!(outage(Mode::Grpc), outage(Mode::HttpConnect));
    grpc.and(http_connect).map(drop)
}

#[tokio::test]
async fn connections_and_dials_survive_an_agent_that_stands_still() -> Result<()> {
    stopped(Fault::StoppedAgent, true).await
}

#[tokio::test]
async fn connections_survive_a_server_that_stands_still() -> Result<()> {
    stopped(Fault::StoppedServer, false).await
}

#[tokio::test]
async fn connections_and_dials_survive_a_relay_that_stands_still() -> Result<()> {
    stopped(Fault::StuckRelay, true).await
}

/// In namespaces, or with a relay if this machine has none.
#[test]
fn connections_and_dials_survive_a_network_that_passes_nothing() -> Result<()> {
    for (seconds, dials) in [(4, true), (8, false), (8, true)] {
        let length = Duration::from_secs(seconds);
        let outage = |fault| Outage { mode: Mode::HttpConnect, fault, length, dials };
        match if_possible("no namespaces here, a relay stands in", Network::new(1))? {
            Some(network) => {
                network.near.block_on(|| outage(Fault::Blackhole(&network)).survive()).map(drop)?
            }
            None => {
                tokio::runtime::Runtime::new()?.block_on(outage(Fault::StuckRelay).survive()).map(drop)?
            }
        }
    }
    Ok(())
}

/// Dials that wait at a stopped agent move to the other one, and later dials go there; connections through the stopped agent
/// continue when it resumes.
#[tokio::test]
async fn dials_leave_an_agent_that_stands_still_and_come_back_to_it() -> Result<()> {
    let pair = Setup::grpc().agents(2).start().await?;
    let endpoint = Endpoint::echo().await?;
    let target = endpoint.target();
    let mut conns = Vec::new();
    for seed in 0..16 {
        conns.push(echo(pair.frontend().dial(&target).await?, Payload::new(seed, 1_000)).await?);
    }
    pair.agents[0].process.signal(Signal::STOP)?;
    let mut dials = JoinSet::new();
    for _ in 0..16 {
        let (frontend, target) = (pair.frontend().clone(), target.clone());
        dials.spawn(async move {
            let began = Instant::now();
            works(&frontend, &target).await?;
            anyhow::Ok(began.elapsed())
        });
    }
    let mut slowest = Duration::ZERO;
    while let Some(took) = dials.join_next().await {
        slowest = slowest.max(took??);
    }
    say("slowest dial beside a stopped agent", format!("{slowest:.1?}"));
    // Three seconds, doubled for a busy machine.
    ensure!(slowest < Duration::from_secs(6), "{slowest:?}");
    for _ in 0..16 {
        let began = Instant::now();
        works(pair.frontend(), &target).await?;
        ensure!(began.elapsed() < Duration::from_secs(2), "a dial went to the stopped agent");
    }
    pair.agents[0].process.signal(Signal::CONT)?;
    pair.server().process.wait_said("keepalive ping answered again").await?;
    for conn in conns {
        echo(conn, Payload::new(7, 10_000)).await?;
    }
    Ok(())
}
