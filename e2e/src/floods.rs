//! Peers that send much in small pieces: what the server's memory grows by, and how others are served meanwhile.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use prost::Message;
use proto::Packet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::endpoints::Endpoint;
use crate::exchange::works;
use crate::figures::percentile;
use crate::frontend::{Conn, Frontend, tls_socket};
use crate::pair::{Pair, Setup};
use crate::wait::{DEADLINE, until, within_limit};
use crate::wild::{PacketStream, SmallFrames, data, dial_req, dial_rsp, endless};

/// A client that could send nothing for so long has used up its window.
const STALLED: Duration = Duration::from_millis(500);
/// Between two looks at the bystander and the server's memory.
const PAUSE: Duration = Duration::from_millis(5);
/// A flood may take so long.
const LIMIT: Duration = Duration::from_secs(300);

/// What the peers of a flood do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Agents answer dials that nobody made, in frames of one byte, and read nothing: their streams stand still.
    AgentsThatReadNothing,
    /// Agents send data of connections that do not exist, in frames of one byte.
    AgentsWithStrayData,
    /// Clients send messages of 16 bytes to an endpoint that reads nothing.
    ClientsOfAStalledEndpoint,
    /// Clients send a message that does not end, in frames of one byte.
    ClientsWithoutADial,
}

/// A flood of that kind.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// What its peers do.
    pub kind: Kind,
    /// How many they are.
    pub peers: usize,
    /// What each sends: frames, or messages.
    pub pieces: usize,
}

/// Times of exchanges, in order of their length.
#[derive(Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// So many percent are shorter.
    pub fn percentile(&mut self, percent: usize) -> Duration {
        percentile(&mut self.0, percent).unwrap_or_default()
    }
}

/// What the bystander and the server's memory showed.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Pings before the flood, and beside it.
    pub pings: [Times; 2],
    /// Dials with an echo, the same.
    pub dials: [Times; 2],
    /// Resident memory of the server before the flood, at most, and behind it, in MiB.
    pub memory: [u64; 3],
    /// How long the peers sent.
    pub lasted: Duration,
}

impl Outcome {
    /// MiB by which the server has grown at most.
    pub fn grown(&self) -> u64 {
        self.memory[1].saturating_sub(self.memory[0])
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, times: &[Times; 2]| {
            let of = |times: &Times| {
                let mut sorted = Times(times.0.clone());
                let millis = |time: Duration| time.as_secs_f64() * 1e3;
                let [p50, p99] = [50, 99].map(|percent| millis(sorted.percentile(percent)));
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
    /// Runs it beside a client that pings and dials.
    ///
    /// # Errors
    /// When the client was not served, or the server's memory could not be read.
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
        while !peers.have_sent() {
            bystander.look(&mut outcome, 1).await?;
            outcome.memory[1] = outcome.memory[1].max(bystander.memory()?);
            ensure!(began.elapsed() < LIMIT, "the flood did not end within {LIMIT:?}");
        }
        outcome.lasted = began.elapsed();
        peers.leave()?;
        let calm = async || bystander.memory().is_ok_and(|now| now <= outcome.memory[1]).then_some(());
        until("memory that grows no more", DEADLINE, calm).await?;
        works(pair.frontend(), &echo.target()).await?;
        outcome.memory[2] = bystander.memory()?;
        Ok(outcome)
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
        Ok(self.pair.server().process.usage()?.rss_kib >> 10)
    }

    /// A ping, and with every fifth a dial.
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
        if self.looks % 5 == 0 {
            let began = Instant::now();
            works(self.pair.frontend(), &self.target).await?;
            outcome.dials[when].0.push(began.elapsed());
        }
        sleep(PAUSE).await;
        Ok(())
    }
}

/// The peers of a flood, on a thread of their own.
struct Peers {
    sent: Arc<AtomicBool>,
    leave: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<Result<()>>,
}

impl Peers {
    async fn start(flood: Flood, pair: &Pair) -> Result<Self> {
        let (address, tls) = (pair.server().agent_address(), pair.pki.agent_client()?);
        let frontend = pair.frontend().clone();
        let stalled = Endpoint::stalled().await?;
        let sent = Arc::<AtomicBool>::default();
        let (leave, left) = tokio::sync::oneshot::channel();
        let has_sent = Arc::clone(&sent);
        let run = async move {
            let mut sending = JoinSet::new();
            for number in 0..flood.peers {
                let (tls, frontend, target) = (Arc::clone(&tls), frontend.clone(), stalled.target());
                sending.spawn(async move {
                    match flood.kind {
                        Kind::AgentsThatReadNothing | Kind::AgentsWithStrayData => {
                            let socket = Box::new(tls_socket(address, tls).await?);
                            let mut meta = HeaderMap::new();
                            meta.insert("agentid", HeaderValue::try_from(format!("peer-{number}"))?);
                            meta.insert("agentidentifiers", HeaderValue::from_static("host=peer"));
                            let mut peer =
                                SmallFrames::open(socket, "/AgentService/Connect", &meta, 1, 0).await?;
                            peer.send(&packets(flood.kind, flood.pieces), 1).await;
                            anyhow::Ok(Peer::Frames(peer))
                        }
                        Kind::ClientsOfAStalledEndpoint => messages(&frontend, &target, flood.pieces).await,
                        Kind::ClientsWithoutADial => {
                            let socket = frontend.socket().await?;
                            let none = HeaderMap::new();
                            let mut peer =
                                SmallFrames::open(socket, "/ProxyService/Proxy", &none, 1, 0).await?;
                            peer.send(&endless(flood.pieces), 1).await;
                            Ok(Peer::Frames(peer))
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
        let thread = std::thread::Builder::new().name("flood".into()).spawn(move || runtime.block_on(run))?;
        Ok(Self { sent, leave, thread })
    }

    /// Whether all have sent what they can. Also once they have failed: [`Peers::leave`] tells.
    fn have_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed) || self.thread.is_finished()
    }

    /// They close their connections.
    fn leave(self) -> Result<()> {
        let _ = self.leave.send(());
        self.thread.join().ok().context("the flood panicked")?
    }
}

/// What keeps a connection open.
enum Peer {
    Frames(#[expect(dead_code, reason = "held")] SmallFrames),
    Messages(#[expect(dead_code, reason = "held")] Box<PacketStream>),
}

/// So many bytes of packets one behind the other, as gRPC messages.
fn packets(kind: Kind, length: usize) -> Bytes {
    let mut all = BytesMut::new();
    for id in 1.. {
        let packet: Packet = match kind {
            Kind::AgentsThatReadNothing => dial_rsp(id, id, ""),
            _ => data(1 << 40, Bytes::from_static(b"!")),
        };
        all.put_u8(0);
        all.put_u32(packet.encoded_len() as u32);
        all.extend_from_slice(&packet.encode_to_vec());
        if all.len() >= length {
            break;
        }
    }
    all.freeze()
}

async fn messages(frontend: &Frontend, target: &str, count: usize) -> Result<Peer> {
    let mut stream = frontend.packets().await?;
    stream.send(dial_req(1, target)).await?;
    stream.expect("the answer to a dial").await?;
    for _ in 0..count {
        match timeout(STALLED, stream.send(data(1, Bytes::from_static(&[7; 16])))).await {
            Ok(sent) => sent?,
            Err(_) => break,
        }
    }
    Ok(Peer::Messages(Box::new(stream)))
}
