//! Repeated certificate rotations under load: no dial may fail, and no connection may be cut.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::endpoints::Endpoint;
use crate::frontend::Mode;
use crate::load::{self, Plan, Progress, Replica, Report};
use crate::metrics::{AGENT, SERVER};
use crate::pair::{Front, Pair, Setup};
use crate::wait::{DEADLINE, until};

/// A short interval of file checks, so that a rotation takes effect at once.
const EVERY: &str = "--certificate-reload-interval=100ms";

/// One in this number of rotations is preceded by a certificate with a wrong key.
const BAD_EVERY: usize = 4;

/// Servers with both kinds of frontends and two agents; rotates every certificate and key `rotations` times. A rotation starts
/// when the previous one is in use everywhere, `apart` has passed, and the dials have kept their rate. After each rotation
/// another agent connects.
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
    let events = async |progress: Progress| {
        for rotation in 1..=rotations {
            if rotation % BAD_EVERY == 0 {
                mismatch(&pair).await?;
            }
            pair.pki.rotate()?;
            in_use(&pair, rotation).await.with_context(|| format!("rotation {rotation}"))?;
            visit(&mut pair, rotation).await?;
            tokio::time::sleep(apart).await;
            progress.kept().await.with_context(|| format!("rotation {rotation}"))?;
        }
        Ok(())
    };
    Ok(load::during(&replicas, &endpoint.target(), plan, events).await?.0)
}

/// Replaces the key of the server's certificate for agents by another certificate's key, and waits until the server refuses it.
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

/// Waits until this number of rotations is in use at every listener and every agent.
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

/// A third agent connects with the new certificate, and leaves in order.
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
