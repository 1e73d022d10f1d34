//! A Kubernetes API that is slow, fails, or hangs up, while agents with tokens connect.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fake_apiserver::Fault;
use tokio::time::Instant;

use super::load::Load;
use super::{Context, Times, alone, within};
use crate::endpoints::Endpoint;
use crate::exchange::echo;
use crate::payload::Payload;
use crate::tokens::{USER, World};
use crate::wait::{DEADLINE, until};

/// The faults, and whether an agent may be admitted in spite of them.
const FAULTS: [(Fault, bool); 4] = [
    (Fault::Slow(Duration::from_secs(2)), true),
    (Fault::Status(500, "InternalError"), false),
    (Fault::Close, false),
    (Fault::Hang, false),
];

pub(super) fn api_fails(context: &Context) -> Result<Times> {
    alone(async || {
        let world = World::new().await?;
        world.knows("known", USER, "node-1");
        let mut pair = context.with(world.setup("known")?).start().await?;
        let endpoint = Endpoint::echo().await?;
        let mut conn = pair.frontend().dial(&endpoint.target()).await?;
        let load = Load::start(pair.frontend(), &endpoint.target(), 2);
        let (began, mut recovered) = (Instant::now(), Duration::ZERO);
        for (number, (fault, may_enter)) in FAULTS.into_iter().enumerate() {
            let token = format!("fresh-{number}");
            world.knows(&token, USER, "node-1");
            let path = world.token(&token, &token)?.display().to_string();
            world.api.set_fault("tokenreviews", fault);
            let reviews = world.api.count("tokenreviews");
            let args = [&format!("--service-account-token-path={path}"), "--sync-interval=1s"];
            pair.add_agent(&token, "", &args)?;
            ensure!(
                world.api.wait(|api| api.count("tokenreviews") > reviews).await,
                "no review was asked for"
            );
            conn = echo(conn, Payload::new(1, 100_000)).await.context("the established connection")?;
            let entered = pair.agents.last().context("it was added")?;
            // The review may have been that of an earlier agent's lane.
            let scrape = || async { entered.metric("open_server_connections", &[]).await.ok() };
            let open = until("the agent's health port", DEADLINE, scrape).await?;
            ensure!(may_enter || open == 0.0, "an agent entered without a review");
            world.api.heal();
            let healed = Instant::now();
            pair.wait_connected().await?;
            recovered = recovered.max(within("the agent was admitted", healed, Duration::from_secs(15))?);
        }
        let p99 = load.since(began, 100).await?;
        Ok(Times { recovered: Some(recovered), noticed: None, note: format!("p99 {p99:.1?}") })
    })
}
