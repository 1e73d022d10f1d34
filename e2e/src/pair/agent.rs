//! A running agent.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use tempfile::TempDir;

use super::server::wait_status;
use super::{local, text};
use crate::metrics::{AGENT, Scrape, wait_for};
use crate::pki::Pki;
use crate::ports::Lease;
use crate::process::{Process, Recipe};
use crate::program::Program;
use crate::wait::DEADLINE;

/// A running proxy-agent.
#[derive(Debug)]
pub struct Agent {
    /// The process.
    pub process: Process,
    /// The health port.
    pub health: SocketAddr,
    /// The admin port.
    pub admin: SocketAddr,
    _ports: Vec<Lease>,
    _folder: Arc<TempDir>,
}

impl Agent {
    /// Starts an agent for any server; `further` flags override the default ones.
    #[allow(clippy::too_many_arguments, reason = "the parts of one command line, named at each call")]
    pub fn start(
        program: Option<std::path::PathBuf>,
        id: &str,
        identifiers: &str,
        server: SocketAddr,
        further: Vec<String>,
        env: Vec<(String, String)>,
        folder: Arc<TempDir>,
        pki: &Pki,
    ) -> Result<Self> {
        let (health, admin) = (Lease::new()?, Lease::new()?);
        let mut args = vec![
            format!("--agent-id={id}"),
            format!("--proxy-server-host={}", server.ip()),
            format!("--proxy-server-port={}", server.port()),
            format!("--ca-cert={}", text(&pki.cluster_ca)?),
            format!("--agent-cert={}", text(&pki.agent.cert)?),
            format!("--agent-key={}", text(&pki.agent.key)?),
            "--health-server-host=127.0.0.1".into(),
            format!("--health-server-port={}", health.port()),
            format!("--admin-server-port={}", admin.port()),
            // Tests use shorter intervals than the default of one second.
            "--sync-interval=100ms".into(),
            "--sync-interval-cap=1s".into(),
            "--probe-interval=100ms".into(),
        ];
        if !identifiers.is_empty() {
            args.push(format!("--agent-identifiers={identifiers}"));
        }
        args.extend(further);
        let program = match program {
            Some(program) => program,
            None => Program::Agent.path()?,
        };
        let name = format!("proxy-agent {id}");
        let process = Process::spawn(Recipe { name, program, args, env })?;
        Ok(Self {
            process,
            health: local(health.port()),
            admin: local(admin.port()),
            _ports: vec![health, admin],
            _folder: folder,
        })
    }

    /// Waits until `/readyz` is 200.
    pub async fn wait_ready(&mut self) -> Result<()> {
        wait_status(&mut self.process, self.health, "/readyz", 200).await
    }

    /// Waits until `/readyz` is 503: no server connection is healthy.
    pub async fn wait_unready(&mut self) -> Result<()> {
        wait_status(&mut self.process, self.health, "/readyz", 503).await
    }

    /// Scrapes the agent's metrics.
    pub async fn metrics(&self) -> Result<Scrape> {
        Scrape::fetch(self.health).await
    }

    /// Waits until the condition holds for the agent's metrics.
    pub async fn wait_metrics(&self, what: &str, condition: impl Fn(&Scrape) -> bool) -> Result<Scrape> {
        wait_for(what, self.health, DEADLINE, condition).await
    }

    /// Waits until a metric (named without prefix) has this value.
    pub async fn wait_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) -> Result<Scrape> {
        let full = format!("{AGENT}{name}");
        let what = format!("{name}{labels:?} = {value} at the agent");
        self.wait_metrics(&what, |scrape| scrape.value(&full, labels) == value).await
    }

    /// Waits until more than a MiB of payload has passed.
    pub async fn wait_transfers(&self) -> Result<Scrape> {
        let bytes = format!("{AGENT}payload_bytes_total");
        self.wait_metrics("a MiB", |scrape| scrape.value(&bytes, &[]) > f64::from(1 << 20)).await
    }

    /// The present value of a metric (named without prefix); an absent one counts as zero.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        Ok(self.metrics().await?.value(&format!("{AGENT}{name}"), labels))
    }
}
