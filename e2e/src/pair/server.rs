//! A running server replica.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use super::{Front, Setup, local, text};
use crate::frontend::{Frontend, Place};
use crate::http1;
use crate::metrics::{SERVER, Scrape, wait_for};
use crate::pki::Pki;
use crate::ports::Lease;
use crate::process::{Process, Recipe};
use crate::program::Program;
use crate::wait::{DEADLINE, until};

/// A running proxy-server.
#[derive(Debug)]
pub struct Server {
    /// The process.
    pub process: Process,
    /// A client of its frontend.
    pub frontend: Frontend,
    /// The health port.
    pub health: SocketAddr,
    /// The admin port.
    pub admin: SocketAddr,
    agent: Lease,
    _ports: Vec<Lease>,
    _folder: Arc<TempDir>,
}

impl Server {
    pub(super) fn start(setup: &Setup, index: usize, folder: Arc<TempDir>, pki: &Pki) -> Result<Self> {
        let (agent, health, admin, front) = (Lease::new()?, Lease::new()?, Lease::new()?, Lease::new()?);
        let (mode, front_kind) = setup.front(index);
        let mut args = vec![
            format!("--mode={}", mode.flag()),
            format!("--server-id=server-{index}"),
            format!("--server-count={}", setup.servers),
            format!("--agent-port={}", agent.port()),
            format!("--health-port={}", health.port()),
            format!("--admin-port={}", admin.port()),
            "--agent-bind-address=127.0.0.1".into(),
            "--health-bind-address=127.0.0.1".into(),
            format!("--cluster-cert={}", text(&pki.cluster_server.cert)?),
            format!("--cluster-key={}", text(&pki.cluster_server.key)?),
            format!("--cluster-ca-cert={}", text(&pki.cluster_ca)?),
        ];
        let place = setup.places.get(index).cloned().unwrap_or_else(|| match front_kind {
            Front::Unix => Place::Unix(folder.path().join(format!("s{index}.sock"))),
            Front::Tls => Place::Tls(local(front.port())),
        });
        args.extend(front_flags(&place, pki)?);
        let port = agent.port().to_string();
        args.extend(setup.server_args.iter().map(|arg| arg.replace("{agent-port}", &port)));
        let program = match &setup.programs {
            Some((server, _)) => server.clone(),
            None => Program::Server.path()?,
        };
        let name = format!("proxy-server {index}");
        let process = Process::spawn(Recipe { name, program, args, env: Vec::new() })?;
        Ok(Self {
            process,
            frontend: Frontend::new(mode, place, pki.clone()),
            health: local(health.port()),
            admin: local(admin.port()),
            agent,
            _ports: vec![health, admin, front],
            _folder: folder,
        })
    }

    /// The address for agents.
    pub fn agent_address(&self) -> SocketAddr {
        local(self.agent.port())
    }

    /// The agent port.
    pub fn agent_port(&self) -> u16 {
        self.agent.port()
    }

    /// Waits until the health port answers and the frontend accepts connections.
    pub async fn wait_healthy(&mut self) -> Result<()> {
        wait_status(&mut self.process, self.health, "/healthz", 200).await?;
        let frontend = &self.frontend;
        let found =
            until("a frontend that listens", DEADLINE, || async { frontend.socket().await.ok() }).await;
        found.map(drop).map_err(|error| self.process.explain(&error))
    }

    /// Waits for an agent: `/readyz` is 200.
    pub async fn wait_ready(&mut self) -> Result<()> {
        wait_status(&mut self.process, self.health, "/readyz", 200).await
    }

    /// Waits until no agent is left: `/readyz` is 500.
    pub async fn wait_unready(&mut self) -> Result<()> {
        wait_status(&mut self.process, self.health, "/readyz", 500).await
    }

    /// Kills the process and starts it again on the same ports.
    pub fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.restart()
    }

    /// Scrapes the server's metrics.
    pub async fn metrics(&self) -> Result<Scrape> {
        Scrape::fetch(self.health).await
    }

    /// Waits until the condition holds for the server's metrics.
    pub async fn wait_metrics(&self, what: &str, condition: impl Fn(&Scrape) -> bool) -> Result<Scrape> {
        wait_for(what, self.health, DEADLINE, condition).await
    }

    /// Waits until a metric (named without prefix) has this value.
    pub async fn wait_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) -> Result<Scrape> {
        let full = format!("{SERVER}{name}");
        let what = format!("{name}{labels:?} = {value} at the server");
        self.wait_metrics(&what, |scrape| scrape.value(&full, labels) == value).await
    }

    /// The present value of a metric (named without prefix); an absent one counts as zero.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        Ok(self.metrics().await?.value(&format!("{SERVER}{name}"), labels))
    }
}

/// The flags of a frontend.
fn front_flags(place: &Place, pki: &Pki) -> Result<Vec<String>> {
    Ok(match place {
        Place::Unix(socket) => vec!["--server-port=0".into(), format!("--uds-name={}", text(socket)?)],
        Place::Tls(address) => vec![
            format!("--server-bind-address={}", address.ip()),
            format!("--server-port={}", address.port()),
            format!("--server-cert={}", text(&pki.front_server.cert)?),
            format!("--server-key={}", text(&pki.front_server.key)?),
            format!("--server-ca-cert={}", text(&pki.front_ca)?),
        ],
    })
}

/// Waits until a path answers with this status; fails at once if the process has ended.
pub(super) async fn wait_status(
    process: &mut Process,
    address: SocketAddr,
    path: &str,
    status: u16,
) -> Result<()> {
    let what = format!("{path} of {address} answering {status}");
    let mut alive = Ok(());
    let found = until(&what, DEADLINE, || {
        alive = process.check_alive();
        let dead = alive.is_err();
        async move {
            let answer = http1::get(address, path).await.ok();
            (dead || answer.is_some_and(|answer| answer.head.status == status)).then_some(())
        }
    })
    .await;
    alive?;
    found.map_err(|error| process.explain(&error))?;
    ensure!(process.ended().is_none(), "the process ended");
    Ok(())
}
