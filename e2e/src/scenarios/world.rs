//! The network, the programs and the balancer of one run.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::balancer::{Balancer, Choice};
use super::load::{Endpoint, Load};
use crate::frontend::{Frontend, Mode};
use crate::metrics::{SERVER, Scrape};
use crate::netns::{NEAR, Network};
use crate::pair::{Agent, Front, Pair, Server, Setup};
use crate::wait::until;

/// The servers and agents that are measured together.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Its name in the report.
    pub name: String,
    /// The server's executable.
    pub server: PathBuf,
    /// The agent's executable.
    pub agent: PathBuf,
}

/// How many programs run, and with which interval.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The servers.
    pub servers: usize,
    /// The agents, each in its own namespace.
    pub agents: u8,
    /// The agents' `--sync-interval`.
    pub interval: Duration,
    /// The frontends' protocol.
    pub mode: Mode,
}

/// What a server counted at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) agents: usize,
}

/// The running programs. Dropping it ends all of them, agents first.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) agents: Vec<Agent>,
    pub(super) pair: Pair,
    pub(super) balancer: Balancer<'a>,
    pub(super) endpoint: Endpoint,
    pub(super) network: &'a Network,
    /// For each server the number of its agents over time.
    samples: Arc<Vec<Mutex<Vec<Sample>>>>,
    _scrapes: JoinSet<()>,
}

impl<'a> World<'a> {
    /// Starts everything, and waits until every server has every agent. Must be called on the near side. The balancer prevents
    /// duplicates until then, and chooses at random from then on.
    pub(super) async fn start(
        network: &'a Network,
        mix: &Mix,
        sizes: Sizes,
        server_args: &[&str],
        agent_args: &[&str],
    ) -> Result<Self> {
        let mut setup = Setup::new(sizes.mode, Front::Unix)
            .servers(sizes.servers)
            .agents(0)
            .programs(mix.server.clone(), mix.agent.clone())
            .server_arg(format!("--agent-bind-address={NEAR}"))
            .agent_arg(format!("--sync-interval={}ms", sizes.interval.as_millis()))
            .agent_arg("--sync-interval-cap=10s")
            .agent_arg("--probe-interval=1s");
        for arg in server_args {
            setup = setup.server_arg(*arg);
        }
        for arg in agent_args {
            setup = setup.agent_arg(*arg);
        }
        let pair = setup.start().await?;
        let servers = pair.servers.iter().map(|server| SocketAddr::from((NEAR, server.agent_port())));
        let balancer = Balancer::start(network, servers.collect())?;
        let mut agents = Vec::new();
        for (number, side) in network.far.iter().enumerate() {
            agents.push(side.enter(|| pair.agent_at(&format!("agent-{number}"), balancer.address))?);
        }
        let samples = Arc::new(pair.servers.iter().map(|_| Mutex::default()).collect());
        let scrapes = scrape(&pair.servers, &samples);
        let endpoint = Endpoint::start(network)?;
        let world = Self { agents, pair, balancer, endpoint, network, samples, _scrapes: scrapes };
        world.wait_connected(sizes).await?;
        world.balancer.choose(Choice::Random);
        Ok(world)
    }

    async fn wait_connected(&self, sizes: Sizes) -> Result<()> {
        let limit = Duration::from_secs(30) + sizes.interval * 2 * u32::try_from(sizes.servers)?;
        let full = |sample: &Mutex<Vec<Sample>>| {
            sample.lock().last().is_some_and(|last| last.agents == usize::from(sizes.agents))
        };
        let all = || self.samples.iter().all(full);
        let connected = until("every agent at every server", limit, || async { all().then_some(()) });
        let agent = self.agents.first().context("no agent")?;
        connected.await.map_err(|error| agent.process.explain(&error))
    }

    /// Starts the clients.
    pub(super) fn load(&self) -> Result<Load> {
        let frontends = self.pair.servers.iter().map(|server| server.frontend.clone().reading_once());
        Ok(Load::start(&frontends.collect::<Result<Vec<Frontend>>>()?, self.endpoint.echo.address()))
    }

    /// For each server the number of its agents over time.
    pub(super) fn samples(&self) -> Vec<Vec<Sample>> {
        self.samples.iter().map(|samples| samples.lock().clone()).collect()
    }
}

/// Reads the number of agents from each server's metrics, ten times a second for five servers.
fn scrape(servers: &[Server], samples: &Arc<Vec<Mutex<Vec<Sample>>>>) -> JoinSet<()> {
    let pause = Duration::from_millis(20) * u32::try_from(servers.len()).unwrap_or(u32::MAX);
    let (name, strategy) = (format!("{SERVER}ready_backends"), [("proxy_strategy", "default")]);
    let mut scrapes = JoinSet::new();
    for (number, server) in servers.iter().enumerate() {
        let (health, samples, name) = (server.health, Arc::clone(samples), name.clone());
        scrapes.spawn(async move {
            loop {
                let at = Instant::now();
                if let Ok(scrape) = Scrape::fetch(health).await
                    && let Some(samples) = samples.get(number)
                {
                    let agents = scrape.value(&name, &strategy) as usize;
                    samples.lock().push(Sample { at, agents });
                }
                sleep(pause).await;
            }
        });
    }
    scrapes
}
