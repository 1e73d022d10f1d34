//! The cost of a mix at rest: flows that the agents open although they have every server, and the time that the tunnel adds to
//! a call.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::load::call;
use super::report::{Curve, Figure, Outcome, Panel, Value};
use super::run::{Timing, in_network};
use super::world::{Mix, Sizes, World};
use crate::figures::percentile;
use crate::netns::Network;

/// How agents learn the number of servers: a figure's name, the wanted number, and flags of servers and agents.
type Way = (&'static str, Option<f64>, &'static [&'static str], &'static [&'static str]);

const WAYS: [Way; 3] = [
    ("new flows/min, --sync-forever, no count", None, &["--server-count=1"], &["--sync-forever"]),
    ("new flows/min, --sync-forever, --server-count", Some(0.0), &[], &["--sync-forever"]),
    ("new flows/min, --server-count alone", Some(0.0), &[], &[]),
];

/// The agents' `--sync-interval`, as upstream measured.
const INTERVAL: Duration = Duration::from_secs(5);

/// Calls that are measured.
const CALLS: u32 = 300;

/// Time between two calls.
const PAUSE: Duration = Duration::from_millis(5);

pub(super) fn run(mix: &Mix, sizes: Sizes, timing: Timing) -> Result<Outcome> {
    let sizes = Sizes { interval: INTERVAL, ..sizes };
    // Programs at rest need no CPU, so they are observed at the same time.
    let opened = thread::scope(|scope| {
        let observed = WAYS.map(|way| {
            let rest = async move |network: &Network| flows(network, mix, sizes, way, timing.after).await;
            scope.spawn(move || in_network(sizes.agents, rest))
        });
        let ended = observed.map(|thread| thread.join().map_err(|_| anyhow!("a panic"))?);
        ended.into_iter().collect::<Result<Vec<Vec<f64>>>>()
    })?;
    let minutes = timing.after.as_secs_f64() / 60.0;
    let flows = WAYS.iter().zip(&opened).map(|((name, wanted, ..), opened)| {
        Figure::new(name, *wanted, Value::is((opened.len() as f64 / minutes).round()))
    });
    let mut figures: Vec<Figure> = flows.collect();
    let one = Sizes { servers: 1, agents: 1, ..sizes };
    let cost = in_network(1, async |network| cost(network, mix, one).await)?;
    figures.push(Figure::new("a call through the tunnel takes longer by, ms", 0.4, Value::is(cost)));
    let curves = opened.iter().map(|opened| cumulative(opened, minutes * 60.0)).collect();
    Ok(Outcome { figures, panels: vec![Panel { title: "flows opened so far", curves }], stalled: false })
}

/// The times in seconds at which agents opened flows, once every server had every agent.
async fn flows(network: &Network, mix: &Mix, sizes: Sizes, way: Way, observed: Duration) -> Result<Vec<f64>> {
    let (_, _, server_args, agent_args) = way;
    let world = World::start(network, mix, sizes, server_args, agent_args).await?;
    // The agents have just dialed: a period that begins between two dials has its exact share of them.
    sleep(sizes.interval / 2).await;
    let rest = Instant::now();
    sleep(observed).await;
    let opened = world.balancer.flows().into_iter().map(|flow| flow.opened);
    Ok(opened.filter(|at| *at > rest).map(|at| (at - rest).as_secs_f64()).collect())
}

fn cumulative(opened: &[f64], seconds: f64) -> Curve {
    let before = |time: f64| opened.iter().filter(|at| **at <= time).count() as f64;
    (0..=seconds as u32).map(|second| (f64::from(second), before(f64::from(second)))).collect()
}

/// The median time of a call through the tunnel minus that of a direct one, in ms. Calls take turns.
async fn cost(network: &Network, mix: &Mix, sizes: Sizes) -> Result<f64> {
    let world = World::start(network, mix, sizes, &[], &[]).await?;
    let to: SocketAddr = world.endpoint.echo.address();
    let mut tunnel = world.pair.frontend().dial(&to.to_string()).await?;
    let mut direct = TcpStream::connect(to).await?;
    direct.set_nodelay(true)?;
    let (mut through, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        sleep(PAUSE).await;
        let began = Instant::now();
        call(&mut tunnel).await?;
        through.push(began.elapsed());
        sleep(PAUSE).await;
        let began = Instant::now();
        call(&mut direct).await?;
        beside.push(began.elapsed());
    }
    let median = |times: &mut Vec<Duration>| {
        percentile(times, 50).map(|time| time.as_secs_f64() * 1e3).context("no call")
    };
    Ok(median(&mut through)? - median(&mut beside)?)
}
