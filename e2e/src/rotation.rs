//! Certificates rotated again and again under load: nothing may fail, nothing may be cut.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::endpoints::Endpoint;
use crate::frontend::Mode;
use crate::load::{self, Pace, Plan, Replica, Report};
use crate::metrics::{AGENT, SERVER};
use crate::pair::{Front, Pair, Setup};
use crate::wait::{DEADLINE, until};

/// Files are looked at so often, that a rotation takes as long as it takes to be noticed.
const EVERY: &str = "--certificate-reload-interval=100ms";

/// Every so many rotations a pair that does not match comes first.
const BAD_EVERY: usize = 4;

/// Servers of both kinds of frontend and two agents; `rotations` of every certificate and key, each once the one before
/// is in use everywhere, at least `apart` from it, and not before the dials have kept their rate. After each an agent
/// connects anew.
pub async fn rotate_under_load(plan: &Plan, rotations: usize, apart: Duration) -> Result<Report> {
    let fronts = [(Mode::Grpc, Front::Tls), (Mode::HttpConnect, Front::Tls)];
    let mut pair = Setup::replicas(&fronts)
        .agents(2)
        .server_arg(EVERY)
        .agent_arg(EVERY)
        .server_arg("-v=1")
        .agent_arg("-v=1")
        .start()
        .await?;
    let endpoint = Endpoint::echo().await?;
    let replicas = Replica::all_of(&pair)?;
    let events = async |pace: Pace| {
        for rotation in 1..=rotations {
            if rotation % BAD_EVERY == 0 {
                mismatch(&pair).await?;
            }
            pair.pki.rotate()?;
            in_use(&pair, rotation).await.with_context(|| format!("rotation {rotation}"))?;
            visit(&mut pair, rotation).await?;
            tokio::time::sleep(apart).await;
            pace.kept().await.with_context(|| format!("rotation {rotation}"))?;
        }
        Ok(())
    };
    Ok(load::during(&replicas, &endpoint.target(), plan, events).await?.0)
}

/// Puts another pair's key beside the server's certificate towards agents, and waits until that was refused.
async fn mismatch(pair: &Pair) -> Result<()> {
    let name = format!("{SERVER}certificate_reloads_total");
    let labels = [("result", "failure"), ("side", "agents")];
    let before = pair.server().metrics().await?.value(&name, &labels);
    let other = pair.pki.cluster_leaf(rcgen::ExtendedKeyUsagePurpose::ServerAuth, -60, 3_600)?;
    pair.pki.replace(&[("cluster-server.key", &other.key)])?;
    for server in &pair.servers {
        server.wait_metrics("a refused pair", |scrape| scrape.value(&name, &labels) > before).await?;
    }
    Ok(())
}

/// Waits until so many rotations are in use at every listener and every agent.
async fn in_use(pair: &Pair, rotations: usize) -> Result<()> {
    let labels = |side| [("result", "success"), ("side", side)];
    for server in &pair.servers {
        let name = format!("{SERVER}certificate_reloads_total");
        server
            .wait_metrics("new files in use", |scrape| {
                ["frontend", "agents"]
                    .iter()
                    .all(|side| scrape.value(&name, &labels(side)) >= rotations as f64)
            })
            .await?;
    }
    let name = format!("{AGENT}certificate_reloads_total");
    for agent in &pair.agents {
        agent
            .wait_metrics("new files in use", |scrape| {
                scrape.value(&name, &labels("servers")) >= rotations as f64
            })
            .await?;
    }
    Ok(())
}

/// A third agent comes by with the new certificate and leaves in order.
async fn visit(pair: &mut Pair, number: usize) -> Result<()> {
    pair.add_agent(&format!("visitor-{number}"), "", &["--drain-timeout=60s"])?;
    pair.wait_connected().await?;
    let mut visitor = pair.agents.pop().context("it was added")?;
    visitor.process.signal(crate::process::Signal::TERM)?;
    let status = visitor.process.exit(DEADLINE * 3).await?;
    anyhow::ensure!(status.success(), "the visitor ended with {status}");
    until("the visitor's departure", DEADLINE, || async {
        pair.server()
            .metric("grpc_connections", &[("service_method", "Connect")])
            .await
            .ok()
            .filter(|n| *n == 2.0)
    })
    .await?;
    Ok(())
}
