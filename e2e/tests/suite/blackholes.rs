//! Hosts that vanish: no packet arrives any more, nothing is refused or closed.
//!
//! The tests use network namespaces if this machine permits them, otherwise a relay that stops copying bytes, but not in CI.

use std::cell::Cell;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::adversarial::{AdversarialAgent, AdversarialServer, AgentMeta};
use e2e::balancer::Balancer;
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, works};
use e2e::figures::say;
use e2e::frontend::Conn;
use e2e::http1::get_over;
use e2e::metrics::{AGENT, Scrape};
use e2e::netns::{NEAR, Namespace, Network, if_possible};
use e2e::pair::{Agent, Pair, Setup};
use e2e::payload::Payload;
use e2e::wait::{until, within_limit};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Time limit for the detection of a lost host: 30 to 42 s after the first ping, which an idle connection sends after 10 s.
const GIVEN_UP: Duration = Duration::from_secs(70);

/// The path to a peer, which can be cut.
enum NetworkPath<'a> {
    Routed(&'a Network),
    Relayed(Balancer),
}

impl NetworkPath<'_> {
    fn cut(&self, cut: bool) -> Result<()> {
        match self {
            NetworkPath::Relayed(relay) => relay.pause(cut),
            NetworkPath::Routed(network) if cut => network.swallow(&network.far[0])?,
            NetworkPath::Routed(network) => network.heal(&network.far[0])?,
        }
        Ok(())
    }

    /// Waits for a gauge of an agent on this path.
    async fn wait_metric(&self, agent: &Agent, name: &str, condition: impl Fn(f64) -> bool) -> Result<f64> {
        let full = format!("{AGENT}{name}");
        until(name, GIVEN_UP * 2, || async {
            let scrape = match self {
                NetworkPath::Relayed(_) => agent.metrics().await.ok()?,
                NetworkPath::Routed(network) => {
                    let stream = network.far[0].connect(agent.health).ok()?;
                    Scrape::parse(get_over(stream, "agent", "/metrics").await.ok()?.body).ok()?
                }
            };
            Some(scrape.value(&full, &[])).filter(|value| condition(*value))
        })
        .await
    }
}

/// The address of the servers.
fn near(network: Option<&Network>) -> Ipv4Addr {
    if network.is_some() { NEAR } else { Ipv4Addr::LOCALHOST }
}

/// Two agents of one server, one of them on a path that can be cut.
struct Rig<'a> {
    vanishing: Agent,
    _staying: Agent,
    pair: Pair,
    endpoint: Endpoint,
    path: NetworkPath<'a>,
}

impl<'a> Rig<'a> {
    async fn new(network: Option<&'a Network>) -> Result<Self> {
        let at = near(network);
        let setup = Setup::grpc().agents(0).server_arg(format!("--agent-bind-address={at}"));
        // A stuck relay acknowledges, like the kernel of a stopped program: only this time-out ends its streams.
        let patience = if network.is_some() { 30 } else { 10 };
        let patience = &format!("--unresponsive-timeout={patience}s");
        let mut pair = setup.server_arg(patience).agent_arg(patience).start().await?;
        let server = SocketAddr::from((at, pair.server().agent_port()));
        let (path, vanishing, staying) = match network {
            Some(network) => {
                let start = |far: &Namespace, id| far.enter(|| pair.agent_at(id, server));
                let agents = (start(&network.far[0], "vanishing")?, start(&network.far[1], "staying")?);
                (NetworkPath::Routed(network), agents.0, agents.1)
            }
            None => {
                let relay = Balancer::start(vec![server]).await?;
                let vanishing = pair.agent_at("vanishing", relay.address())?;
                (NetworkPath::Relayed(relay), vanishing, pair.agent_at("staying", server)?)
            }
        };
        ready(&pair, 2.0).await?;
        pair.server_mut().wait_ready().await?;
        let endpoint = Endpoint::echo_at(at.into()).await?;
        Ok(Self { pair, vanishing, _staying: staying, endpoint, path })
    }

    /// Connections through both agents, and the number of those through the vanishing one.
    async fn established(&self) -> Result<(Vec<Conn>, f64)> {
        let mut conns = Vec::new();
        for seed in 0..16 {
            let conn = self.pair.frontend().dial(&self.endpoint.target()).await?;
            conns.push(echo(conn, Payload::new(seed, 1_000)).await?);
        }
        let through = self.path.wait_metric(&self.vanishing, "open_endpoint_connections", |_| true).await?;
        ensure!(through > 0.0 && through < 16.0, "{through} of 16 through one of two agents");
        Ok((conns, through))
    }
}

async fn ready(pair: &Pair, agents: f64) -> Result<()> {
    until("ready_backends", GIVEN_UP, || async {
        let ready = pair.server().metric("ready_backends", &[("proxy_strategy", "default")]).await;
        ready.is_ok_and(|ready| ready == agents).then_some(())
    })
    .await
}

/// One of two agents vanishes. Its connections end with a reason, dials go to the other agent, both ends notice in time, and
/// the agent reconnects.
async fn vanish(network: Option<&Network>) -> Result<()> {
    let rig = Rig::new(network).await?;
    let (conns, through) = rig.established().await?;
    rig.path.cut(true)?;
    let (began, both_noticed) = (Instant::now(), Cell::new(false));
    let noticed = async {
        ready(&rig.pair, 1.0).await?;
        let at_the_server = began.elapsed();
        // Its endpoints are closed as well.
        rig.path.wait_metric(&rig.vanishing, "open_server_connections", |count| count == 0.0).await?;
        rig.path.wait_metric(&rig.vanishing, "open_endpoint_connections", |count| count == 0.0).await?;
        both_noticed.set(true);
        anyhow::Ok((at_the_server, began.elapsed()))
    };
    let dials = async {
        let mut slowest = Duration::ZERO;
        while !both_noticed.get() && began.elapsed() < GIVEN_UP {
            let dialed = Instant::now();
            works(rig.pair.frontend(), &rig.endpoint.target()).await.context("a dial meanwhile")?;
            slowest = slowest.max(dialed.elapsed());
        }
        anyhow::Ok(slowest)
    };
    let (noticed, slowest) = tokio::join!(noticed, dials);
    let ((at_the_server, at_the_agent), slowest) = (noticed?, slowest?);
    let figures = format!(
        "noticed after {at_the_server:.1?} (server) and {at_the_agent:.1?} (agent); slowest dial {slowest:.1?}"
    );
    say("vanished agent", figures);
    ensure!(at_the_server <= GIVEN_UP, "the server noticed after {at_the_server:?}");
    ensure!(at_the_agent <= GIVEN_UP, "the agent noticed after {at_the_agent:?}");
    ensure!(slowest <= Duration::from_secs(6), "a dial took {slowest:?}");
    let resets = rig.pair.server().metric("connection_resets_total", &[("reason", "link_lost")]).await?;
    ensure!(resets == through, "{resets} connections were reset, {through} were lost");
    let mut ended = 0.0;
    for conn in conns {
        match tokio::time::timeout(Duration::from_secs(5), echo(conn, Payload::new(7, 100))).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => ended += 1.0,
            Err(_) => anyhow::bail!("a connection neither works nor ends"),
        }
    }
    ensure!(ended == through, "{ended} connections ended, {through} were lost");
    rig.path.cut(false)?;
    within_limit("the agent's return", Duration::from_secs(30), ready(&rig.pair, 2.0)).await??;
    works(rig.pair.frontend(), &rig.endpoint.target()).await
}

/// Runs a scenario on the near side of a private network, or without one.
fn on_a_network<'n, F: Future<Output = Result<()>>>(
    network: Option<&'n Network>,
    scenario: impl FnOnce(Option<&'n Network>) -> F + Send,
) -> Result<()> {
    match network {
        Some(network) => network.near.block_on(|| scenario(Some(network))),
        None => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(2).enable_all().build()?.block_on(scenario(None))
        }
    }
}

fn network() -> Result<Option<Network>> {
    if_possible("no namespaces here, a relay stands in", Network::new(2))
}

/// With dropped packets.
#[test]
fn an_agent_that_vanishes_is_noticed_at_both_ends_and_dials_go_elsewhere() -> Result<()> {
    let network = network()?;
    on_a_network(network.as_ref(), vanish)
}

/// With a relay that takes and acknowledges bytes but forwards none: TCP sees no fault.
#[test]
fn an_agent_behind_a_stuck_relay_is_noticed_at_both_ends_and_dials_go_elsewhere() -> Result<()> {
    on_a_network(None, vanish)
}

/// An agent without negotiated pings is found like any other: by the kernel, or by pings where TCP sees no fault.
#[test]
fn upstream_agent_that_vanishes_is_noticed() -> Result<()> {
    let network = network()?;
    on_a_network(network.as_ref(), upstream_agent)
}

async fn upstream_agent(network: Option<&Network>) -> Result<()> {
    let at = near(network);
    let setup = Setup::grpc().agents(0).server_arg(format!("--agent-bind-address={at}"));
    let pair = setup.server_arg("--unresponsive-timeout=30s").start().await?;
    let server = SocketAddr::from((at, pair.server().agent_port()));
    let (path, stream) = match network {
        Some(network) => {
            let stream = network.far[0].connect(server)?;
            (NetworkPath::Routed(network), stream)
        }
        None => {
            let relay = Balancer::start(vec![server]).await?;
            let stream = TcpStream::connect(relay.address()).await?;
            (NetworkPath::Relayed(relay), stream)
        }
    };
    let _agent = AdversarialAgent::over(stream, &pair.pki, &AgentMeta::new("upstream", "")).await??;
    ready(&pair, 1.0).await?;
    path.cut(true)?;
    let began = Instant::now();
    within_limit("the server's notice", GIVEN_UP, ready(&pair, 0.0)).await??;
    say("upstream agent", format!("noticed after {:.1?}", began.elapsed()));
    Ok(())
}

/// A server without negotiated pings, such as a Go server: the agent may ping it only every 35 s, so TCP keepalive must detect
/// it earlier.
#[test]
fn upstream_server_that_vanishes_is_noticed() -> Result<()> {
    let network = network()?;
    on_a_network(network.as_ref(), upstream_server)
}

async fn upstream_server(network: Option<&Network>) -> Result<()> {
    // Only the pair's certificates are used, and its agents' flags.
    let pair = Setup::grpc().agents(0).agent_arg("--unresponsive-timeout=30s").start().await?;
    let mut server = AdversarialServer::start_at(near(network), &pair.pki, "upstream", 1).await?;
    let (path, agent) = match network {
        Some(network) => {
            let agent = network.far[0].enter(|| pair.agent_at("far", server.address()))?;
            (NetworkPath::Routed(network), agent)
        }
        None => {
            let relay = Balancer::start(vec![server.address()]).await?;
            let agent = pair.agent_at("far", relay.address())?;
            (NetworkPath::Relayed(relay), agent)
        }
    };
    let _link = server.link().await?;
    path.wait_metric(&agent, "open_server_connections", |count| count == 1.0).await?;
    path.cut(true)?;
    let began = Instant::now();
    path.wait_metric(&agent, "open_server_connections", |count| count == 0.0).await?;
    let noticed = began.elapsed();
    say("upstream server", format!("noticed after {noticed:.1?}"));
    // Behind a relay that acknowledges every byte only the infrequent pings remain: every 35 s, and then 30 s.
    let limit = if network.is_some() { GIVEN_UP } else { GIVEN_UP * 2 };
    ensure!(noticed <= limit, "{noticed:?}");
    Ok(())
}
