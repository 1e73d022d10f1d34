//! A TCP load balancer between agents and servers, in its own network namespace, with the faults of real ones.
//!
//! It copies bytes and knows no protocol. Two faults can be combined: it loses all of its flows, and the resets that its kernel
//! would send toward one side of them are dropped. That side is half-open: its packets get no answer.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use socket2::SockRef;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::netns::{NEAR, Network, VIRTUAL};

/// The port for agents.
const PORT: u16 = 8091;

/// The seed of random choices: five servers are all chosen within twelve flows, which is the expectation.
const SEED: u64 = 1;

/// The server of the next flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The first server to which the agent has no flow: all agents reach all servers without a duplicate.
    Missing,
    /// Any server, at random.
    Random,
}

/// The balancer's treatment of the flows that it has. New flows are carried as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Nothing.
    None,
    /// Both sides get a reset.
    Both,
    /// The server gets a reset, and the agent an orderly end.
    ServersRelayed,
}

/// The side toward which resets are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Servers,
    Agents,
}

/// A connection of an agent, and its continuation to a server.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    agent: SocketAddr,
    pub(super) server: usize,
    /// The port of the connection to the server, once it exists.
    port: Option<u16>,
    pub(super) opened: Instant,
    /// `None` while it is open.
    pub(super) closed: Option<Instant>,
}

#[derive(Debug)]
struct Shared {
    servers: Vec<SocketAddr>,
    choice: Mutex<Choice>,
    flows: Mutex<Vec<Flow>>,
    /// Chooses the servers.
    random: Mutex<SmallRng>,
    loss: watch::Sender<Loss>,
}

/// The load balancer. Dropping it ends all flows.
#[derive(Debug)]
pub(super) struct Balancer<'a> {
    /// The address for agents.
    pub(super) address: SocketAddr,
    network: &'a Network,
    shared: Arc<Shared>,
    /// Its threads belong to the balancer's namespace.
    runtime: Option<Runtime>,
}

impl<'a> Balancer<'a> {
    pub(super) fn start(network: &'a Network, servers: Vec<SocketAddr>) -> Result<Self> {
        let address = SocketAddr::from((VIRTUAL, PORT));
        let runtime = network
            .router
            .enter(|| Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?))?;
        let shared = Arc::new(Shared {
            servers,
            choice: Mutex::new(Choice::Missing),
            flows: Mutex::default(),
            random: Mutex::new(SmallRng::seed_from_u64(SEED)),
            loss: watch::Sender::new(Loss::None),
        });
        let within = runtime.enter();
        let listener = network.router.listen(address).context("cannot bind the balancer")?;
        drop(within);
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, network, shared, runtime: Some(runtime) })
    }

    /// Changes the choice for new flows.
    pub(super) fn choose(&self, choice: Choice) {
        *self.shared.choice.lock() = choice;
    }

    /// Loses all flows. The choices that follow are the same in every run, so that mixes are compared by the same luck.
    pub(super) fn lose(&self, loss: Loss) {
        *self.shared.random.lock() = SmallRng::seed_from_u64(SEED);
        self.shared.loss.send_replace(loss);
    }

    /// From now on drops the resets of the open flows toward one side. Needs nftables.
    pub(super) fn drop_resets(&self, toward: Side) -> Result<()> {
        let flows = self.shared.flows.lock();
        let open = flows.iter().filter(|flow| flow.closed.is_none());
        let lost: Vec<String> = match toward {
            Side::Servers => open.filter_map(|flow| Some(format!("{NEAR} . {}", flow.port?))).collect(),
            Side::Agents => open.map(|flow| format!("{} . {}", flow.agent.ip(), flow.agent.port())).collect(),
        };
        let port = match toward {
            Side::Servers => "sport",
            Side::Agents => "dport",
        };
        let rules = format!(
            "add table ip faults; \
             add chain ip faults out {{ type filter hook output priority 0; }}; \
             add rule ip faults out ip daddr . tcp {port} {{ {} }} tcp flags & rst == rst drop",
            lost.join(", ")
        );
        self.network.router.exec(&["nft", &rules])
    }

    /// The flows that agents opened so far.
    pub(super) fn flows(&self) -> Vec<Flow> {
        self.shared.flows.lock().clone()
    }
}

impl Drop for Balancer<'_> {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    /// Chooses a server for an agent's flow, and notes the flow. Returns its number and its server.
    fn open(&self, agent: SocketAddr) -> (usize, usize) {
        let mut flows = self.flows.lock();
        let random = self.random.lock().random_range(0..self.servers.len().max(1));
        let server = match *self.choice.lock() {
            Choice::Random => random,
            Choice::Missing => {
                let has = flows.iter().filter(|flow| flow.closed.is_none() && flow.agent.ip() == agent.ip());
                let has: BTreeSet<usize> = has.map(|flow| flow.server).collect();
                (0..self.servers.len()).find(|server| !has.contains(server)).unwrap_or(random)
            }
        };
        flows.push(Flow { agent, server, port: None, opened: Instant::now(), closed: None });
        (flows.len() - 1, server)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, agent)) = listener.accept().await {
        let (flow, server) = shared.open(agent);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            if let Some(server) = shared.servers.get(server) {
                // A server that refuses ends the flow.
                let _ = carry(stream, *server, &shared, flow).await;
            }
            if let Some(flow) = shared.flows.lock().get_mut(flow) {
                flow.closed = Some(Instant::now());
            }
        });
    }
}

/// Carries one flow until both sides have ended it, or until it is lost.
async fn carry(mut agent: TcpStream, server: SocketAddr, shared: &Shared, flow: usize) -> Result<()> {
    let mut loss = shared.loss.subscribe();
    let mut server = TcpStream::connect(server).await?;
    if let Some(flow) = shared.flows.lock().get_mut(flow) {
        flow.port = Some(server.local_addr()?.port());
    }
    agent.set_nodelay(true)?;
    server.set_nodelay(true)?;
    tokio::select! {
        // The close of the one side is relayed to the other.
        ended = copy_bidirectional(&mut agent, &mut server) => return Ok(ended.map(drop)?),
        lost = loss.changed() => lost?,
    }
    // A socket with a zero linger is closed by a reset.
    SockRef::from(&server).set_linger(Some(Duration::ZERO))?;
    if *loss.borrow() == Loss::Both {
        SockRef::from(&agent).set_linger(Some(Duration::ZERO))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_is_neither_lucky_nor_unlucky() {
        let flows_until_all = |seed| {
            let (mut random, mut chosen) = (SmallRng::seed_from_u64(seed), BTreeSet::new());
            (1..).find(|_| chosen.insert(random.random_range(0..5_usize)) && chosen.len() == 5)
        };
        assert_eq!(flows_until_all(SEED), Some(12));
    }
}
