//! Stalled connections, one or a thousand, on either side, with connection flow control or without it: other connections are
//! served, and queued bytes stay below their limit.

use std::fmt::{self, Display};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::endpoints::Endpoint;
use crate::exchange::echoed;
use crate::frontend::{Conn, Mode};
use crate::pair::{Front, Pair, Setup};
use crate::payload::Payload;
use crate::wait::{DEADLINE, until, within_limit};

/// Limit of an exchange that no stalled connection may delay: generous, because the machine is often busy.
pub const UNDELAYED: Duration = Duration::from_secs(10);

/// Makes a program behave like an upstream peer, which has no connection flow control.
const OFF: &str = "--connection-flow-control=false";

/// Limit of the bytes queued for the local sockets of one agent stream without flow control, and the bytes that one turn may
/// add.
const LINK_BUDGET: u64 = (256 << 20) + (8 << 20);

/// Limit of the bytes queued for connections with flow control, as on a path with a high RTT, which a busy machine has too: the
/// windows that they begin with, the windows above 1 MiB of all, and the queues of gRPC clients' streams (docs/limits.md).
fn windows(connections: u64) -> u64 {
    let first: u64 = (1..=connections).map(|open| ((64 << 20) / open).clamp(128 << 10, 1 << 20)).sum();
    first + (64 << 20) + connections * (256 << 10)
}

/// Additional memory of a gRPC client's connection in the server: the flow-control window of its stream, which is not counted
/// as queued while the agent stream has no room, 64 KiB of read-ahead, and HTTP/2's own buffers.
const GRPC_CLIENT: u64 = (256 << 10) + (64 << 10) + (64 << 10);

/// Memory of a program in addition to queued bytes: the allocator's reserve, and the connections themselves.
const BESIDE: u64 = 64 << 20;

/// Which of the two programs have connection flow control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControl {
    /// The server.
    pub server: bool,
    /// The agent.
    pub agent: bool,
}

impl FlowControl {
    /// Flow control is active only if both programs have it.
    pub const BOTH: Self = Self { server: true, agent: true };
    /// The cases in which at least one program does not have it.
    pub const NOT_BOTH: [Self; 3] = [
        Self { server: true, agent: false },
        Self { server: false, agent: true },
        Self { server: false, agent: false },
    ];

    /// A pair with these programs and one agent stream, whose limit [`LINK_BUDGET`] is.
    pub fn setup(self, mode: Mode) -> Setup {
        let mut setup = Setup::new(mode, Front::Unix).agent_arg("--lanes=1");
        if !self.server {
            setup = setup.server_arg(OFF);
        }
        if !self.agent {
            setup = setup.agent_arg(OFF);
        }
        setup
    }
}

/// Clients that request a large payload and read nothing.
pub async fn stalled_readers(pair: &Pair, count: usize) -> Result<(Endpoint, Vec<Conn>)> {
    let endpoint = Endpoint::asked(Payload::new(7, 64 << 20)).await?;
    let mut conns = dialed(pair, &endpoint, count).await?;
    ask(&mut conns).await?;
    Ok((endpoint, conns))
}

/// Clients that send a large payload to an endpoint that reads nothing. They send until dropped.
pub async fn stalled_endpoints(pair: &Pair, count: usize) -> Result<(Endpoint, JoinSet<()>)> {
    let endpoint = Endpoint::stalled().await?;
    let conns = dialed(pair, &endpoint, count).await?;
    Ok((endpoint, send(conns)))
}

async fn dialed(pair: &Pair, endpoint: &Endpoint, count: usize) -> Result<Vec<Conn>> {
    let mut conns = Vec::new();
    for _ in 0..count {
        conns.push(pair.frontend().dial(&endpoint.target()).await?);
    }
    Ok(conns)
}

/// Sends the request of an [`Endpoint::asked`] on each connection.
async fn ask(conns: &mut [Conn]) -> Result<()> {
    for conn in conns {
        conn.write_all(b"!").await?;
        conn.flush().await?;
    }
    Ok(())
}

fn send(conns: Vec<Conn>) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for mut conn in conns {
        clients.spawn(async move {
            let block = vec![0; 64 << 10];
            while conn.write_all(&block).await.is_ok() {}
        });
    }
    clients
}

/// Moves bytes in both directions on other connections, each within `limit`: 20 small ones in turn, then 4 MiB. Returns the
/// longest time.
pub async fn others_are_served(pair: &Pair, limit: Duration) -> Result<Duration> {
    let endpoint = Endpoint::echo().await?;
    let mut slowest = Duration::ZERO;
    for seed in 0..=20 {
        let length = if seed < 20 { 1_000 } else { 4 << 20 };
        let began = Instant::now();
        let target = endpoint.target();
        within_limit("an exchange", limit, echoed(pair.frontend(), &target, Payload::new(seed, length)))
            .await??;
        slowest = slowest.max(began.elapsed());
    }
    Ok(slowest)
}

/// Queued bytes and resident memory of the server and the agent, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    queued: [u64; 2],
    resident: [u64; 2],
}

impl Held {
    async fn of(pair: &Pair) -> Result<Self> {
        let (server, agent) = (pair.server(), pair.agent());
        let queued = [server.metric("queued_bytes", &[]).await?, agent.metric("queued_bytes", &[]).await?];
        let resident = [server.process.usage()?.rss_kib << 10, agent.process.usage()?.rss_kib << 10];
        Ok(Self { queued: queued.map(|bytes| bytes as u64), resident })
    }

    fn most(self, other: Self) -> Self {
        let both = |a: [u64; 2], b: [u64; 2]| [a[0].max(b[0]), a[1].max(b[1])];
        Self { queued: both(self.queued, other.queued), resident: both(self.resident, other.resident) }
    }
}

/// The result of a test with stalls.
#[derive(Clone, Debug)]
pub struct Figures {
    flow_control: FlowControl,
    before: Held,
    most: Held,
    /// Limit of the queued bytes of each program.
    bound: u64,
    /// Limit of the server's memory for its clients' connections, in bytes.
    clients: u64,
    /// The slowest exchange on other connections.
    pub slowest: Duration,
    /// Connections that were reset because they stalled, by the server and by the agent.
    pub reset: [f64; 2],
}

impl Figures {
    /// Checks that neither program exceeded its limit of queued bytes, nor grew by more memory than these bytes need.
    pub fn check(&self) -> Result<()> {
        for half in 0..2 {
            let grown = self.most.resident[half].saturating_sub(self.before.resident[half]);
            ensure!(self.most.queued[half] <= self.bound, "more waits than {}: {self}", self.bound);
            let allowed = self.bound / 4 * 5 + BESIDE + if half == 0 { self.clients } else { 0 };
            ensure!(grown <= allowed, "{grown} bytes more resident, not {allowed}: {self}");
        }
        Ok(())
    }
}

impl Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [server, agent] = self.most.queued.map(|bytes| bytes >> 20);
        let [of_server, of_agent] = self.most.resident.map(|bytes| bytes >> 20);
        let FlowControl { server: knows, agent: too } = self.flow_control;
        write!(
            f,
            "flow control of server {knows}, of agent {too}: others took {:.1?} at most; ",
            self.slowest
        )?;
        write!(f, "{server} MiB waited in the server, {agent} MiB in the agent, ")?;
        write!(
            f,
            "which took {of_server} and {of_agent} MiB; they reset {} and {}",
            self.reset[0], self.reset[1]
        )
    }
}

/// Puts `count` stalled readers and `count` stalled endpoints on a pair. If both programs have flow control no connection is
/// reset; otherwise all stalled ones are reset in the end.
pub async fn beside_stalls(setup: Setup, flow_control: FlowControl, count: usize) -> Result<Figures> {
    let both = flow_control == FlowControl::BOTH;
    let pair = setup.start().await?;
    let before = Held::of(&pair).await?;
    let mut most = before;
    let work = async {
        // All dials come first: without flow control each stalled connection blocks the link, and with it the next dial, for
        // the two seconds until it is reset.
        let (source, sink) = (Endpoint::asked(Payload::new(7, 64 << 20)).await?, Endpoint::stalled().await?);
        let mut readers = dialed(&pair, &source, count).await.context("clients that will not read")?;
        let writers = dialed(&pair, &sink, count).await.context("clients of endpoints that will not read")?;
        let writers = send(writers);
        ask(&mut readers).await?;
        let limit = if both { UNDELAYED } else { DEADLINE };
        let mut slowest = others_are_served(&pair, limit).await?;
        let reset = if both {
            no_connection_was_reset(&pair).await?;
            [0.0; 2]
        } else {
            let reset = all_are_reset(&pair, count).await?;
            slowest = slowest.max(others_are_served(&pair, limit).await?);
            reset
        };
        drop((readers, writers));
        anyhow::Ok((slowest, reset))
    };
    let watch = async {
        loop {
            // A scrape that is late on a busy machine is no error.
            most = most.most(Held::of(&pair).await.unwrap_or_default());
            sleep(Duration::from_millis(50)).await;
        }
    };
    let (slowest, reset) = tokio::select! {
        done = work => done?,
        never = watch => never,
    };
    most = most.most(Held::of(&pair).await?);
    let connections = 2 * count as u64;
    let bound = if both { windows(connections) } else { LINK_BUDGET };
    let clients = if pair.frontend().mode == Mode::Grpc { connections * GRPC_CLIENT } else { 0 };
    Ok(Figures { flow_control, before, most, bound, clients, slowest, reset })
}

/// Checks that neither program has reset a connection for any reason.
pub async fn no_connection_was_reset(pair: &Pair) -> Result<()> {
    let by_server = pair.server().metric("connection_resets_total", &[]).await?;
    let by_agent = pair.agent().metric("connection_resets_total", &[]).await?;
    ensure!(
        by_server + by_agent == 0.0,
        "the server has reset {by_server} connections, the agent {by_agent}"
    );
    Ok(())
}

/// Waits until the programs have reset this number of connections because they stalled.
async fn all_are_reset(pair: &Pair, count: usize) -> Result<[f64; 2]> {
    let stalled = [("reason", "stalled")];
    let seen = async || {
        let of_readers = pair.server().metric("connection_resets_total", &stalled).await.ok()?;
        let of_endpoints = pair.agent().metric("connection_resets_total", &stalled).await.ok()?;
        Some([of_readers, of_endpoints])
    };
    until("the resets of all that stall", DEADLINE * 6, || async {
        seen().await.filter(|seen| seen.iter().all(|&half| half >= count as f64))
    })
    .await
    .with_context(|| format!("{count} stall on either side"))
}
