//! Networks and balancers that lose, split or misdirect, and certificates that change.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::{Instant, sleep};

use super::{Base, Context, Times, alone, networked, within};
use crate::balancer::{Balancer, Policy};
use crate::endpoints::Endpoint;
use crate::exchange::{echo, works};
use crate::http1::get_over;
use crate::load::Plan;
use crate::metrics::{AGENT, SERVER, Scrape, wait_for};
use crate::netns::NEAR;
use crate::pair::{Agent, Setup};
use crate::payload::Payload;
use crate::rotation::rotate_under_load;
use crate::soak::{Soak, soak};
use crate::wait::{DEADLINE, until};

/// A router drops every packet between a server and its only agent: both notice, and after the outage the link is back.
pub(super) fn half_open(context: &Context) -> Result<Times> {
    /// The time limit between native programs.
    const NOTICED: Duration = Duration::from_secs(20);
    networked(1, async |network| {
        let setup = Setup::grpc().agents(0).server_arg(format!("--agent-bind-address={NEAR}"));
        let mut pair = context.with(setup).start().await?;
        let address = SocketAddr::from((NEAR, pair.server().agent_port()));
        let far = network.far[0].enter(|| pair.agent_at("far", address))?;
        pair.server_mut().wait_ready().await?;
        let endpoint = Endpoint::echo_at(NEAR.into()).await?;
        let conn = pair.frontend().dial(&endpoint.target()).await?;
        let conn = echo(conn, Payload::new(1, 100_000)).await?;
        network.swallow(&network.far[0])?;
        let cut = Instant::now();
        let name = format!("{SERVER}unresponsive_peers_total");
        wait_for("the server's notice", pair.server().health, NOTICED, |scrape| {
            scrape.value(&name, &[]) > 0.0
        })
        .await?;
        let server = cut.elapsed();
        let name = format!("{AGENT}unresponsive_peers_total");
        until("the agent's notice", NOTICED, || async {
            let stream = network.far[0].connect(far.health).ok()?;
            let scrape = Scrape::parse(get_over(stream, "agent", "/metrics").await.ok()?.body).ok()?;
            (scrape.value(&name, &[]) > 0.0).then_some(())
        })
        .await?;
        let noticed = within("both ends noticed", cut, NOTICED)?;
        network.heal(&network.far[0])?;
        let healed = Instant::now();
        until("a dial", DEADLINE, || async { works(pair.frontend(), &endpoint.target()).await.ok() }).await?;
        let recovered = within("dials worked", healed, Duration::from_secs(15))?;
        drop(echo(conn, Payload::new(2, 100_000)).await.context("the connection from before")?);
        Ok(Times::new(noticed, recovered).note(format!("server {server:.1?}")))
    })
}

/// A balancer that leads an agent of two servers to the same one. Times are a tenth of the real ones: two of the ten minutes, with
/// a pause of a second at most instead of 10 s. Native agents shorten pauses by up to three quarters at random, so that agents do
/// not try in step: 1.6 attempts in each pause are expected.
pub(super) fn balancer_sticks(context: &Context) -> Result<Times> {
    const STICKS: Duration = Duration::from_secs(12);
    alone(async || {
        let mut pair = context.with(Setup::http_connect().servers(2).agents(0)).start().await?;
        pair.balancer.as_ref().context("a balancer")?.set_policy(Policy::Stick(0));
        pair.add_agent("sticky", "", &["--sync-interval=100ms", "--sync-interval-cap=1s"])?;
        let endpoint = Endpoint::echo().await?;
        pair.server_mut().wait_ready().await?;
        let conn = pair.frontend().dial(&endpoint.target()).await?;
        let conn = echo(conn, Payload::new(1, 100_000)).await?;
        // The first attempts come faster.
        sleep(STICKS / 3).await;
        let (base, tries) = (Base::of(&pair)?, accepted(&pair)?);
        sleep(STICKS).await;
        let tries = accepted(&pair)? - tries;
        let most = STICKS.as_secs() as usize * 5 / 2;
        ensure!(tries <= most, "{tries} attempts in {STICKS:?}, not {most}");
        ensure!(tries > 0, "the agent does not look for its second server");
        let conn = echo(conn, Payload::new(2, 100_000)).await?;
        pair.balancer.as_ref().context("a balancer")?.set_policy(Policy::Stick(1));
        let healed = Instant::now();
        pair.wait_connected().await?;
        let recovered = within("the second server was found", healed, Duration::from_secs(5))?;
        drop(echo(conn, Payload::new(3, 100_000)).await?);
        works(&pair.servers[1].frontend, &endpoint.target()).await?;
        base.back(context, &pair).await?;
        Ok(Times {
            recovered: Some(recovered),
            noticed: None,
            note: format!("{tries} attempts in {STICKS:?}"),
        })
    })
}

fn accepted(pair: &crate::pair::Pair) -> Result<usize> {
    Ok(pair.balancer.as_ref().context("a balancer")?.accepted())
}

/// A relay between agent and server that writes one byte at a time.
pub(super) fn single_bytes(context: &Context) -> Result<Times> {
    alone(async || {
        let mut pair = context.with(Setup::http_connect().agents(0)).start().await?;
        let relay = Balancer::with_single_bytes(vec![pair.server().agent_address()]).await?;
        let _agent: Agent = pair.agent_at("sliced", relay.address())?;
        pair.server_mut().wait_ready().await?;
        let endpoint = Endpoint::echo().await?;
        let began = Instant::now();
        for seed in 0..4 {
            let conn = pair.frontend().dial(&endpoint.target()).await?;
            drop(echo(conn, Payload::new(seed, 32 << 10)).await?);
        }
        let took = began.elapsed();
        Ok(Times::default().note(format!("128 KiB each way in {took:.1?}")))
    })
}

/// Every certificate and key rotates, and one is replaced by a bad pair, beside dials and transfers.
pub(super) fn certificates_rotated(_: &Context) -> Result<Times> {
    alone(async || {
        let plan = Plan { rate: 500, hold: Duration::from_millis(100), transfers: 10 };
        let report = rotate_under_load(&plan, 4, Duration::from_millis(500)).await?;
        report.check()?;
        Ok(Times::default().note(format!("{} dials, {} failed", report.dials, report.failed)))
    })
}

/// Random load with stalls, kills and resets.
pub(super) fn soaked(_: &Context) -> Result<Times> {
    alone(async || {
        let time = Duration::from_secs(240);
        let figures = soak(Soak {
            time,
            clients: 60,
            seed: 1,
            kill_every: Duration::from_secs(20),
            cut_every: Duration::from_secs(5),
        })
        .await?;
        figures.check()?;
        Ok(Times::default().note(format!("{} exchanges, {} kills", figures.whole, figures.kills)))
    })
}
