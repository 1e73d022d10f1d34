//! Adversarial peers that send many small frames or messages. Measures the growth of the server's memory, and the latency of
//! another client meanwhile.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use prost::Message;
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, interval_at, sleep};

use crate::adversarial::frames::framed;
use crate::adversarial::unauthenticated::client_hello;
use crate::adversarial::{Sent, SmallFrames, data, dial_req, dial_rsp, endless};
use crate::endpoints::Endpoint;
use crate::exchange::works;
use crate::figures::percentile;
use crate::frontend::{Conn, Frontend, tls_socket};
use crate::metrics::{SERVER, Scrape};
use crate::pair::{Pair, Server, Setup};
use crate::wait::within_limit;

/// The pause between two samples of the bystander's latency and the server's memory.
const PAUSE: Duration = Duration::from_millis(5);
/// Dials beside a flood, at least.
const DIALS: usize = 20;
/// Linux's lowest priority.
const NICEST: i32 = 19;
/// The additional memory that the server's allocator and log may use, in MiB.
pub const SPARE: u64 = 24;
/// The time limit of the server's return to its memory before a flood.
const RECOVERY: Duration = Duration::from_secs(60);
/// The time limit of a flood.
const LIMIT: Duration = Duration::from_secs(300);

/// The behavior of a flood's peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Agents answer dials that the server did not request, and read nothing: the server stops reading their streams.
    AgentsThatReadNothing,
    /// Agents send data for connections that do not exist, and read no answer: the server reads all of it.
    AgentsWithStrayData,
    /// The same, 64 KiB in each message.
    AgentsWithLargeStrayData,
    /// Agents send data for connections that do not exist, in frames of one byte.
    AgentsWithFragments,
    /// Clients send small messages to an endpoint that reads nothing, each in another of the server's receive buffers.
    ClientsOfAStalledEndpoint,
    /// Clients send a message that stays incomplete, in frames of one byte.
    ClientsWithoutADial,
    /// Each peer sends 50 ClientHellos a second to the agent port, each on a new connection, and nothing else.
    ClientHellos,
    /// One peer sends nothing, and uses a CPU as the others do: for a millisecond for each piece.
    OnlyCpu,
}

/// A flood.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// The behavior of its peers.
    pub kind: Kind,
    /// The number of peers.
    pub peers: usize,
    /// The number of messages that each peer sends, of bytes in frames of one byte, or of ClientHellos.
    pub pieces: usize,
    /// The peers get only CPU time that the others leave, as if they were on another host.
    pub elsewhere: bool,
}

/// Durations of exchanges.
#[derive(Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// The percentile of the durations; zero without any.
    pub fn percentile(&self, percent: usize) -> Duration {
        percentile(&mut self.0.clone(), percent).unwrap_or_default()
    }
}

/// The bystander's latency and the server's memory.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Pings before and during the flood.
    pub pings: [Times; 2],
    /// Dials with an echo, before and during the flood.
    pub dials: [Times; 2],
    /// The server's resident memory before the flood, its maximum, and after the flood, in MiB.
    pub memory: [u64; 3],
    /// The time in which the peers sent.
    pub lasted: Duration,
    /// How many streams the server has ended meanwhile.
    pub ended: usize,
}

impl Outcome {
    /// The largest growth of the server's memory, in MiB.
    pub fn grown(&self) -> u64 {
        self.memory[1].saturating_sub(self.memory[0])
    }

    /// The growth that remains after the flood, in MiB.
    pub fn kept(&self) -> u64 {
        self.memory[2].saturating_sub(self.memory[0])
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, times: &[Times; 2]| {
            let of = |times: &Times| {
                let [p50, p99] = [50, 99].map(|percent| times.percentile(percent).as_secs_f64() * 1e3);
                format!("{p50:.2}, {p99:.2}")
            };
            write!(f, "{name} p50, p99: {} -> {} ms; ", of(&times[0]), of(&times[1]))
        };
        row("ping", &self.pings)?;
        row("dial", &self.dials)?;
        let [before, most, after] = self.memory;
        write!(f, "server {before} -> {most} -> {after} MiB; lasted {:.1?}", self.lasted)
    }
}

impl Flood {
    /// Runs the flood while another client pings and dials.
    ///
    /// # Errors
    /// The server did not serve that client, or its memory could not be read.
    pub async fn run(self, limit: &str) -> Result<Outcome> {
        let pair = Setup::grpc()
            .agents(0)
            .agent("agent-0", "default-route=true")
            .server_arg("--proxy-strategies=defaultRoute")
            .server_arg(format!("--memory-limit={limit}"))
            .start()
            .await?;
        let echo = Endpoint::echo().await?;
        let mut bystander = Bystander::new(&pair, &echo).await?;
        let mut outcome = Outcome::default();
        for _ in 0..300 {
            bystander.look(&mut outcome, 0).await?;
        }
        outcome.memory[0] = bystander.memory()?;
        let peers = Peers::start(self, &pair).await?;
        let began = Instant::now();
        while !peers.have_sent() || outcome.dials[1].0.len() < DIALS {
            bystander.look(&mut outcome, 1).await?;
            outcome.memory[1] = outcome.memory[1].max(bystander.memory()?);
            ensure!(began.elapsed() < LIMIT, "the flood did not end within {LIMIT:?}");
        }
        outcome.lasted = began.elapsed();
        outcome.ended = peers.ended.load(Ordering::Relaxed);
        self.takes_effect(pair.server()).await?;
        outcome.memory[1] = outcome.memory[1].max(bystander.memory()?);
        peers.leave()?;
        // The server may still handle queued bytes, and its allocator returns memory after 10 s.
        let (mut behind, left) = (Outcome::default(), Instant::now());
        loop {
            bystander.look(&mut behind, 1).await?;
            outcome.memory[2] = bystander.memory()?;
            outcome.memory[1] = outcome.memory[1].max(outcome.memory[2]);
            let given_back = outcome.kept() <= SPARE && behind.pings[1].0.len() >= 200;
            if given_back || left.elapsed() > RECOVERY {
                break;
            }
        }
        Ok(outcome)
    }

    /// Waits until the server has stopped reading, or has read all data of agents that read no answers.
    async fn takes_effect(self, server: &Server) -> Result<()> {
        let peers = self.peers as f64;
        match self.kind {
            Kind::AgentsThatReadNothing => {
                server.wait_metric("full_receive_channels", &[("service_method", "Connect")], peers).await?;
            }
            Kind::AgentsWithStrayData => {
                let all = peers * self.pieces as f64;
                let name = format!("{SERVER}dropped_packets_total");
                let labels = [("reason", "unknown_connection")];
                let read = |metrics: &Scrape| metrics.value(&name, &labels) >= all;
                server.wait_metrics("stray data is read", read).await?;
            }
            _ => {}
        }
        Ok(())
    }
}

struct Bystander<'a> {
    pair: &'a Pair,
    target: String,
    conn: Conn,
    looks: usize,
}

impl<'a> Bystander<'a> {
    async fn new(pair: &'a Pair, echo: &Endpoint) -> Result<Self> {
        let target = echo.target();
        Ok(Self { pair, conn: pair.frontend().dial(&target).await?, target, looks: 0 })
    }

    fn memory(&self) -> Result<u64> {
        Ok(self.pair.server().process.usage()?.rss_mib())
    }

    /// Measures a ping, and a dial after every fifth ping.
    async fn look(&mut self, outcome: &mut Outcome, when: usize) -> Result<()> {
        let began = Instant::now();
        let ping = async {
            self.conn.write_all(&[7; 64]).await?;
            self.conn.flush().await?;
            self.conn.read_exact(&mut [0; 64]).await
        };
        within_limit("a ping", LIMIT, ping).await??;
        outcome.pings[when].0.push(began.elapsed());
        self.looks += 1;
        if self.looks.is_multiple_of(5) {
            let began = Instant::now();
            works(self.pair.frontend(), &self.target).await?;
            outcome.dials[when].0.push(began.elapsed());
        }
        sleep(PAUSE).await;
        Ok(())
    }
}

/// The peers of a flood, on a separate thread.
struct Peers {
    sent: Arc<AtomicBool>,
    /// The number of streams that the server has ended.
    ended: Arc<AtomicUsize>,
    leave: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<Result<()>>,
}

impl Peers {
    async fn start(flood: Flood, pair: &Pair) -> Result<Self> {
        let (address, tls) = (pair.server().agent_address(), pair.pki.agent_client()?);
        let frontend = pair.frontend().clone();
        let stalled = Endpoint::stalled().await?;
        let (sent, ended) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (leave, left) = tokio::sync::oneshot::channel();
        let (has_sent, have_ended) = (Arc::clone(&sent), Arc::clone(&ended));
        let run = async move {
            let mut sending = JoinSet::new();
            for number in 0..flood.peers {
                let (tls, frontend, target) = (Arc::clone(&tls), frontend.clone(), stalled.target());
                let have_ended = Arc::clone(&have_ended);
                sending.spawn(async move {
                    match flood.kind {
                        Kind::AgentsThatReadNothing
                        | Kind::AgentsWithStrayData
                        | Kind::AgentsWithLargeStrayData
                        | Kind::AgentsWithFragments => {
                            let socket = Box::new(tls_socket(address, tls).await?);
                            let mut meta = HeaderMap::new();
                            meta.insert("agentid", HeaderValue::try_from(format!("peer-{number}"))?);
                            meta.insert("agentidentifiers", HeaderValue::from_static("host=peer"));
                            let peer =
                                SmallFrames::open(socket, "/AgentService/Connect", &meta, 1, 0).await?;
                            let mut peer = peer.admitted().await?.patient();
                            let message = message(flood.kind);
                            let (bytes, frame, times) = match flood.kind {
                                Kind::AgentsWithFragments => {
                                    (message.repeat(flood.pieces / message.len()), 1, 1)
                                }
                                Kind::AgentsWithLargeStrayData => {
                                    (message.repeat(64), message.len(), flood.pieces / 64)
                                }
                                _ => (message.repeat(flood.pieces), message.len(), 1),
                            };
                            let (bytes, mut ended) = (bytes.into(), 0);
                            for _ in 0..times {
                                ended = peer.send(&bytes, frame).await;
                            }
                            have_ended.fetch_add(ended, Ordering::Relaxed);
                            anyhow::Ok(Peer::Frames(peer))
                        }
                        Kind::ClientsOfAStalledEndpoint => messages(&frontend, &target, flood.pieces).await,
                        Kind::ClientsWithoutADial => {
                            let socket = frontend.socket().await?;
                            let none = HeaderMap::new();
                            let mut peer =
                                SmallFrames::open(socket, "/ProxyService/Proxy", &none, 1, 0).await?;
                            let ended = peer.send(&endless(flood.pieces), 1).await;
                            have_ended.fetch_add(ended, Ordering::Relaxed);
                            Ok(Peer::Frames(peer))
                        }
                        Kind::ClientHellos => hellos(address, tls, number, flood.pieces).await,
                        Kind::OnlyCpu => {
                            let (began, length) =
                                (Instant::now(), Duration::from_millis(flood.pieces as u64));
                            while began.elapsed() < length {
                                std::hint::spin_loop();
                            }
                            Ok(Peer::HalfOpen(VecDeque::new()))
                        }
                    }
                });
            }
            let mut peers = Vec::new();
            while let Some(peer) = sending.join_next().await {
                peers.push(peer??);
            }
            has_sent.store(true, Ordering::Relaxed);
            let _ = left.await;
            Ok(())
        };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let flooding = move || {
            if flood.elsewhere {
                setpriority_process(Some(gettid()), NICEST)?;
            }
            runtime.block_on(run)
        };
        let thread = std::thread::Builder::new().name("flood".into()).spawn(flooding)?;
        Ok(Self { sent, ended, leave, thread })
    }

    /// Whether all peers have sent as much as they can, or have failed: [`Peers::leave`] returns the error.
    fn have_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed) || self.thread.is_finished()
    }

    /// Closes the connections of all peers.
    ///
    /// # Errors
    /// A peer failed.
    fn leave(self) -> Result<()> {
        let _ = self.leave.send(());
        self.thread.join().ok().context("the flood panicked")?
    }
}

/// A connected peer. Dropping it closes the connection.
enum Peer {
    Frames(#[expect(dead_code, reason = "held")] SmallFrames),
    HalfOpen(#[expect(dead_code, reason = "held")] VecDeque<TcpStream>),
}

/// A message of agents.
fn message(kind: Kind) -> Bytes {
    let packet = match kind {
        Kind::AgentsThatReadNothing => dial_rsp(1 << 40, 1 << 40, ""),
        Kind::AgentsWithLargeStrayData => data(1 << 40, Bytes::from_static(&[7; 64 << 10])),
        _ => data(1 << 40, Bytes::from_static(b"!")),
    };
    framed(&packet.encode_to_vec())
}

async fn hellos(address: SocketAddr, tls: Arc<ClientConfig>, number: usize, count: usize) -> Result<Peer> {
    let hello = client_hello(tls)?;
    let mut open = VecDeque::new();
    // The peers take turns.
    let first = Instant::now() + Duration::from_millis(number as u64 % 20);
    let mut ticks = interval_at(first, Duration::from_millis(20));
    for _ in 0..count {
        ticks.tick().await;
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(&hello).await?;
        open.push_back(stream);
        if open.len() > 25 {
            open.pop_front();
        }
    }
    Ok(Peer::HalfOpen(open))
}

/// Dials an endpoint that reads nothing, and sends `count` small messages. After each of them another stream of the connection
/// sends bytes that the server drops, so that each message arrives in another receive buffer.
async fn messages(frontend: &Frontend, target: &str, count: usize) -> Result<Peer> {
    let socket = frontend.socket().await?;
    let peer = SmallFrames::open(socket, "/ProxyService/Proxy", &HeaderMap::new(), 2, 1 << 10).await?;
    let mut peer = peer.admitted().await?;
    peer.send(&framed(&dial_req(1, target).encode_to_vec()), usize::MAX).await;
    peer.answered().await?;
    let packet = |id, length| framed(&data(id, vec![7; length]).encode_to_vec());
    // The first window of the connection, and messages that find it full.
    let large = std::iter::repeat_n(packet(1, 64 << 10), 2);
    let small = std::iter::repeat_n(packet(1, 512), count);
    let dropped = packet(0, 16 << 10);
    for message in large.chain(small) {
        match peer.send_on(0, &message, message.len()).await {
            Sent::All => {}
            Sent::NoWindow => break,
            Sent::Ended => bail!("the server has ended the stream of a client"),
        }
        peer.send_on(1, &dropped, dropped.len()).await;
        // Otherwise HTTP/2 gathers messages, and sends several of them side by side.
        yield_now().await;
    }
    Ok(Peer::Frames(peer))
}
