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
    /// A client of its first frontend.
    pub frontend: Frontend,
    /// Clients of its further frontends.
    pub further: Vec<Frontend>,
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
        let (agent, health, admin) = (Lease::new()?, Lease::new()?, Lease::new()?);
        let mut ports = Vec::new();
        let mut place = |name: String, front| {
            Ok::<_, anyhow::Error>(match front {
                Front::Unix => Place::Unix(folder.path().join(name)),
                Front::Tls => {
                    let port = Lease::new()?;
                    let place = Place::Tls(local(port.port()));
                    ports.push(port);
                    place
                }
            })
        };
        let (mode, front) = setup.front(index);
        let first = match setup.places.get(index) {
            Some(place) => place.clone(),
            None => place(format!("s{index}.sock"), front)?,
        };
        let mut frontends = vec![Frontend::new(mode, first, pki.clone())];
        for (number, (mode, front)) in setup.further.iter().enumerate() {
            let place = place(format!("s{index}-{number}.sock"), *front)?;
            frontends.push(Frontend::new(*mode, place, pki.clone()));
        }
        let mut args = vec![
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
        args.extend(front_flags(&frontends, pki)?);
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
            frontend: frontends.remove(0),
            further: frontends,
            health: local(health.port()),
            admin: local(admin.port()),
            agent,
            _ports: ports.into_iter().chain([health, admin]).collect(),
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
        for frontend in [&self.frontend].into_iter().chain(&self.further) {
            let found =
                until("a frontend that listens", DEADLINE, || async { frontend.socket().await.ok() }).await;
            found.map_err(|error| self.process.explain(&error))?;
        }
        Ok(())
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

/// The flags of the frontends: Go's for one, `--frontend` for several.
fn front_flags(frontends: &[Frontend], pki: &Pki) -> Result<Vec<String>> {
    let mut flags = Vec::new();
    for Frontend { mode, place, .. } in frontends {
        let mode = mode.flag();
        flags.extend(match place {
            _ if frontends.len() > 1 => vec![match place {
                Place::Unix(socket) => format!("--frontend={mode}+unix:{}", text(socket)?),
                Place::Tls(address) => format!("--frontend={mode}+tcp:{address}"),
            }],
            Place::Unix(socket) => vec![
                format!("--mode={mode}"),
                "--server-port=0".into(),
                format!("--uds-name={}", text(socket)?),
            ],
            Place::Tls(address) => vec![
                format!("--mode={mode}"),
                format!("--server-bind-address={}", address.ip()),
                format!("--server-port={}", address.port()),
            ],
        });
    }
    if frontends.iter().any(|frontend| matches!(frontend.place, Place::Tls(_))) {
        flags.extend([
            format!("--server-cert={}", text(&pki.front_server.cert)?),
            format!("--server-key={}", text(&pki.front_server.key)?),
            format!("--server-ca-cert={}", text(&pki.front_ca)?),
        ]);
    }
    Ok(flags)
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
