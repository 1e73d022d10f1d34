//! A panic ends its connection or its agent stream, and is counted. The server ends if a task that it needs panics. Debug builds
//! panic for certain targets and agent ids.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, works};
use e2e::frontend::Mode;
use e2e::metrics::AGENT;
use e2e::pair::{Front, Setup};
use e2e::payload::Payload;

#[tokio::test]
async fn a_panic_of_the_server_ends_only_its_connection() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let pair = Setup::new(mode, Front::Unix).start().await?;
        let endpoint = Endpoint::echo().await?;
        let open = pair.frontend().dial(&endpoint.target()).await?;
        ensure!(pair.frontend().dial("panic-server.invalid:1").await.is_err());
        pair.server().wait_metric("panics_total", &[], 1.0).await?;
        echo(open, Payload::new(1, 100_000)).await?;
        works(pair.frontend(), &endpoint.target()).await?;
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
        let place = pair.server().process.forgive_panic().context("the panic's message")?;
        ensure!(place.contains("proxy-server/src/dial/mod.rs"), "{place}");
    }
    Ok(())
}

#[tokio::test]
async fn a_panic_of_an_agents_stream_ends_only_that_stream() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let mut pair = Setup::new(mode, Front::Unix).start().await?;
        let endpoint = Endpoint::echo().await?;
        ensure!(pair.frontend().dial("panic-agent.invalid:1").await.is_err());
        let panicked =
            |scrape: &e2e::metrics::Scrape| scrape.value(&format!("{AGENT}panics_total"), &[]) >= 1.0;
        pair.agent().wait_metrics("a counted panic", panicked).await?;
        pair.wait_connected().await?;
        works(pair.frontend(), &endpoint.target()).await?;
        let place = pair.agent().process.forgive_panic().context("the panic's message")?;
        ensure!(place.contains("proxy-agent/src/link/handler.rs"), "{place}");
    }
    Ok(())
}

#[tokio::test]
async fn a_server_without_its_sweep_exits_for_a_restart() -> Result<()> {
    let mut pair = Setup::new(Mode::Grpc, Front::Unix).start().await?;
    pair.add_agent("panic-server.invalid", "", &[])?;
    let server = &mut pair.server_mut().process;
    ensure!(server.exit(Duration::from_secs(20)).await?.code() == Some(1));
    server.wait_said("the task of the ejection of agents has ended, exiting for a restart").await?;
    let place = server.forgive_panic().context("the panic's message")?;
    ensure!(place.contains("proxy-server/src/backends/manager/ejections.rs"), "{place}");
    Ok(())
}
