//! Server replicas and agents, started together with an operator's flags.

mod agent;
mod server;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

pub use self::agent::Agent;
pub use self::server::Server;
use crate::balancer::Balancer;
use crate::frontend::{Frontend, Mode, Place};
use crate::metrics::{AGENT, SERVER, Scrape, wait_for};
use crate::pki::Pki;
use crate::process::Recipe;
use crate::program::Program;
use crate::sockets::connections;
use crate::wait::until;

/// Time limit for agents and servers to connect.
const START: Duration = Duration::from_secs(60);

/// The kind of a server's frontend listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// A Unix socket.
    Unix,
    /// TCP with mutual TLS.
    Tls,
}

/// All four kinds of frontends.
pub const FRONTS: [(Mode, Front); 4] = [
    (Mode::Grpc, Front::Unix),
    (Mode::Grpc, Front::Tls),
    (Mode::HttpConnect, Front::Unix),
    (Mode::HttpConnect, Front::Tls),
];

/// The parts of a pair, and their flags.
#[derive(Clone, Debug)]
pub struct Setup {
    /// One for each replica; the last one applies to all further replicas.
    fronts: Vec<(Mode, Front)>,
    /// Frontends of each server besides the first.
    further: Vec<(Mode, Front)>,
    servers: usize,
    agents: usize,
    balanced: bool,
    /// One-way delay between agents and servers.
    distance: Duration,
    server_args: Vec<String>,
    agent_args: Vec<String>,
    agent_ids: Vec<(String, String)>,
    programs: Option<(PathBuf, PathBuf)>,
    /// One for each replica, if frontends must listen at predefined places.
    places: Vec<Place>,
    pki: Option<Pki>,
}

impl Setup {
    /// One server and one agent.
    pub fn new(mode: Mode, front: Front) -> Self {
        Self {
            fronts: vec![(mode, front)],
            further: Vec::new(),
            servers: 1,
            agents: 1,
            balanced: false,
            distance: Duration::ZERO,
            server_args: Vec::new(),
            agent_args: Vec::new(),
            agent_ids: Vec::new(),
            programs: None,
            places: Vec::new(),
            pki: None,
        }
    }

    /// One server and one agent, with gRPC over a Unix socket.
    pub fn grpc() -> Self {
        Self::new(Mode::Grpc, Front::Unix)
    }

    /// HTTP CONNECT over a Unix socket.
    pub fn http_connect() -> Self {
        Self::new(Mode::HttpConnect, Front::Unix)
    }

    /// Sets the number of server replicas. Several replicas get a load balancer.
    pub fn servers(mut self, count: usize) -> Self {
        self.servers = count;
        self.balanced |= count > 1;
        self
    }

    /// Server replicas with these frontends, behind a load balancer.
    pub fn replicas(fronts: &[(Mode, Front)]) -> Self {
        Self { fronts: fronts.to_vec(), ..Self::grpc() }.servers(fronts.len())
    }

    /// The frontend of a replica.
    fn front(&self, replica: usize) -> (Mode, Front) {
        self.fronts.get(replica).or(self.fronts.last()).copied().unwrap_or((Mode::Grpc, Front::Unix))
    }

    /// Adds a frontend to every server: they then have `--frontend` flags.
    pub fn and(mut self, mode: Mode, front: Front) -> Self {
        self.further.push((mode, front));
        self
    }

    /// Sets the number of agents, which are named `agent-0` and so on.
    pub fn agents(mut self, count: usize) -> Self {
        self.agents = count;
        self
    }

    /// Puts a load balancer between agents and servers, even for one server.
    pub fn balanced(mut self) -> Self {
        self.balanced = true;
        self
    }

    /// Adds a one-way delay between agents and servers, by a load balancer.
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.distance = delay;
        self.balanced()
    }

    /// Adds a flag of every server; `{agent-port}` is its agent port.
    pub fn server_arg(mut self, arg: impl Into<String>) -> Self {
        self.server_args.push(arg.into());
        self
    }

    /// Adds a flag of every agent.
    pub fn agent_arg(mut self, arg: impl Into<String>) -> Self {
        self.agent_args.push(arg.into());
        self
    }

    /// The most lanes, which a high RTT on a busy machine does not change, and waits for them: for tests of what is at rest.
    pub async fn start_with_lanes(self) -> Result<Pair> {
        let pair = self.agent_arg("--lanes=4").start().await?;
        let lanes = 4.0 * pair.servers.len() as f64;
        let name = format!("{AGENT}server_connection_attempts_total");
        let open = |scrape: &Scrape| scrape.value(&name, &[("result", "connected")]) >= lanes;
        wait_for("all lanes", pair.agent().health, START, open).await?;
        Ok(pair)
    }

    /// Adds an agent with this id and these identifiers, instead of the numbered ones.
    pub fn agent(mut self, id: &str, identifiers: &str) -> Self {
        self.agent_ids.push((id.into(), identifiers.into()));
        self
    }

    /// Uses these programs instead of the environment's.
    pub fn programs(mut self, server: PathBuf, agent: PathBuf) -> Self {
        self.programs = Some((server, agent));
        self
    }

    /// The places where the replicas listen for frontends, in order, instead of paths and ports of the pair's own.
    pub fn places(mut self, places: &[Place]) -> Self {
        self.places = places.to_vec();
        self
    }

    /// Uses these certificates instead of new ones.
    pub fn pki(mut self, pki: &Pki) -> Self {
        self.pki = Some(pki.clone());
        self
    }

    /// Starts everything, and waits until every agent is connected to every server.
    pub async fn start(self) -> Result<Pair> {
        let folder = Arc::new(tempfile::Builder::new().prefix("knp").tempdir()?);
        let pki = match &self.pki {
            Some(pki) => pki.clone(),
            None => Pki::create(folder.path())?,
        };
        let mut servers = Vec::new();
        for index in 0..self.servers {
            servers.push(Server::start(&self, index, folder.clone(), &pki)?);
        }
        for server in &mut servers {
            server.wait_healthy().await?;
        }
        let ports: Vec<SocketAddr> = servers.iter().map(Server::agent_address).collect();
        let balancer =
            if self.balanced { Some(Balancer::with_delay(ports, self.distance).await?) } else { None };
        let mut pair = Pair { servers, agents: Vec::new(), balancer, pki, setup: self, folder };
        let ids = if pair.setup.agent_ids.is_empty() {
            (0..pair.setup.agents).map(|index| (format!("agent-{index}"), String::new())).collect()
        } else {
            pair.setup.agent_ids.clone()
        };
        for (id, identifiers) in &ids {
            pair.add_agent(id, identifiers, &[])?;
        }
        pair.wait_connected().await?;
        Ok(pair)
    }
}

/// Running servers and agents. Dropping it ends all of them.
#[derive(Debug)]
pub struct Pair {
    /// The agents. Declared first: they are stopped before the servers.
    pub agents: Vec<Agent>,
    /// The server replicas.
    pub servers: Vec<Server>,
    /// The load balancer that agents connect to, if any.
    pub balancer: Option<Balancer>,
    /// The certificates.
    pub pki: Pki,
    setup: Setup,
    folder: Arc<TempDir>,
}

impl Pair {
    /// The frontend of the first server.
    pub fn frontend(&self) -> &Frontend {
        &self.server().frontend
    }

    /// The first server.
    pub fn server(&self) -> &Server {
        self.servers.first().expect("a pair has a server")
    }

    /// The first server.
    pub fn server_mut(&mut self) -> &mut Server {
        self.servers.first_mut().expect("a pair has a server")
    }

    /// The first agent.
    pub fn agent(&self) -> &Agent {
        self.agents.first().expect("this pair has an agent")
    }

    /// The first agent.
    pub fn agent_mut(&mut self) -> &mut Agent {
        self.agents.first_mut().expect("this pair has an agent")
    }

    /// The folder that holds certificates and sockets.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The address that agents dial.
    pub fn agent_side_address(&self) -> SocketAddr {
        self.balancer.as_ref().map_or_else(|| self.server().agent_address(), Balancer::address)
    }

    /// Waits until the first agent has this number of connections to the servers.
    pub async fn wait_lanes(&self, count: usize, limit: Duration) -> Result<()> {
        let (pid, server) = (self.agent().process.pid(), self.agent_side_address());
        let lanes = || async { (connections(pid, server).ok()? == count).then_some(()) };
        until("the agent's lanes", limit, lanes).await
    }

    /// Starts another agent, without waiting for it.
    pub fn add_agent(&mut self, id: &str, identifiers: &str, args: &[&str]) -> Result<()> {
        let agent = self.start_agent(id, identifiers, self.agent_side_address(), args, &[])?;
        self.agents.push(agent);
        Ok(())
    }

    /// Starts an agent for `server`, which belongs to the caller.
    pub fn agent_at(&self, id: &str, server: SocketAddr) -> Result<Agent> {
        self.start_agent(id, "", server, &[], &[])
    }

    /// Starts another agent with these environment variables, without waiting for it.
    pub fn add_agent_with_env(&mut self, id: &str, env: &[(&str, &str)]) -> Result<()> {
        let agent = self.start_agent(id, "", self.agent_side_address(), &[], env)?;
        self.agents.push(agent);
        Ok(())
    }

    fn start_agent(
        &self,
        id: &str,
        identifiers: &str,
        server: SocketAddr,
        further: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Agent> {
        let program = self.setup.programs.as_ref().map(|(_, agent)| agent.clone());
        let flags = self.setup.agent_args.iter().cloned().chain(further.iter().map(|&flag| flag.to_owned()));
        let env = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Agent::start(program, id, identifiers, server, flags.collect(), env, self.folder.clone(), &self.pki)
    }

    /// Another process with the pair's certificates: a server with a socket of its own, or an agent.
    pub fn recipe(&self, program: Program, flags: &[impl AsRef<str>]) -> Result<Recipe> {
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut args: Vec<String> = match program {
            Program::Server => vec![
                "--server-port=0".into(),
                flag("uds-name", &self.folder().join("x.sock")),
                flag("cluster-cert", &self.pki.cluster_server.cert),
                flag("cluster-key", &self.pki.cluster_server.key),
            ],
            Program::Agent => vec![
                flag("ca-cert", &self.pki.cluster_ca),
                flag("agent-cert", &self.pki.agent.cert),
                flag("agent-key", &self.pki.agent.key),
            ],
        };
        args.extend(flags.iter().map(|flag| flag.as_ref().to_owned()));
        Ok(Recipe { name: format!("{program:?}"), program: program.path()?, args, env: Vec::new() })
    }

    /// Waits until every agent knows this number of servers and is connected to each.
    pub async fn wait_servers(&self, servers: f64) -> Result<()> {
        for agent in &self.agents {
            agent.wait_metric("known_server_count", &[], servers).await?;
            agent.wait_metric("open_server_connections", &[], servers).await?;
        }
        Ok(())
    }

    /// Waits until every agent has a stream to every server, and every server knows all agents.
    pub async fn wait_connected(&mut self) -> Result<()> {
        let (agents, servers) = (self.agents.len(), self.servers.len());
        for agent in &mut self.agents {
            agent.process.check_alive()?;
            let name = format!("{AGENT}open_server_connections");
            let connected = wait_for("an agent connected to every server", agent.health, START, |scrape| {
                scrape.value(&name, &[]) == servers as f64
            });
            connected.await.map_err(|error| agent.process.explain(&error))?;
        }
        for server in &mut self.servers {
            server.process.check_alive()?;
            if agents == 0 {
                continue;
            }
            let name = format!("{SERVER}grpc_connections");
            let connected = wait_for("a server with every agent", server.health, START, |scrape| {
                scrape.value(&name, &[("service_method", "Connect")]) >= agents as f64
            });
            connected.await.map_err(|error| server.process.explain(&error))?;
            server.wait_ready().await?;
        }
        Ok(())
    }
}

/// An address of the loopback interface.
fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A path as a flag's value.
fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not text")
}
