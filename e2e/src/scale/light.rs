//! Light agents.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use h2::{Ping, RecvStream, SendStream, client};
use http::Request;
use prost::Message;
use proto::Packet;
use proto::packet::Payload;
use rand::RngExt;
use rustls::ClientConfig;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, sleep, timeout};

use crate::adversarial::frames::{framed, message};
use crate::adversarial::{close_rsp, dial_rsp};
use crate::frontend::tls_over;
use crate::pki::{Pki, client_without_certificate};
use crate::wait::until;

/// The pause before the first attempt after a loss is random below this value; it doubles up to the longest pause. These are the
/// agents' defaults of `--sync-interval` and `--sync-interval-cap`.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Idle time after which a native agent pings a native server.
const PING_EVERY: Duration = Duration::from_secs(2);

/// Time limit of an attempt.
const ATTEMPT: Duration = Duration::from_secs(20);

/// How light agents authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// By a client certificate, which they share.
    Certificate,
    /// By a token each, which is [`Plan::token`].
    Token,
}

impl Auth {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Token => "token",
        }
    }

    /// The reverse of [`Auth::name`].
    pub fn named(name: &str) -> Option<Self> {
        [Self::Certificate, Self::Token].into_iter().find(|auth| auth.name() == name)
    }
}

/// Light agents of one process.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server's agent port.
    pub server: SocketAddr,
    /// The number of the first agent. Numbers are unique over all processes.
    pub first: usize,
    /// How many agents.
    pub count: usize,
    /// How they authenticate.
    pub auth: Auth,
}

impl Plan {
    /// The token of an agent.
    pub fn token(number: usize) -> String {
        format!("token-of-agent-{number}")
    }
}

/// Running light agents. Dropping it ends them.
#[derive(Debug)]
pub struct Fleet {
    connected: Arc<AtomicUsize>,
    _agents: JoinSet<()>,
}

impl Fleet {
    /// Starts all agents at once, with the certificates of this folder.
    pub fn start(plan: &Plan, pki: &Path) -> Result<Self> {
        let pki = Pki::open(pki);
        let tls = match plan.auth {
            Auth::Certificate => pki.agent_client()?,
            Auth::Token => client_without_certificate(&pki.cluster_ca, &["h2"])?,
        };
        let connected = Arc::<AtomicUsize>::default();
        let mut agents = JoinSet::new();
        for number in plan.first..plan.first + plan.count {
            let agent = Agent { number, server: plan.server, tls: Arc::clone(&tls), auth: plan.auth };
            agents.spawn(agent.run(Arc::clone(&connected)));
        }
        Ok(Self { connected, _agents: agents })
    }

    /// How many agents are connected.
    pub fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    /// Waits until this number of agents are connected.
    pub async fn wait(&self, count: usize, limit: Duration) -> Result<()> {
        until("connected agents", limit, || async { (self.connected() >= count).then_some(()) })
            .await
            .with_context(|| format!("{} of {count}", self.connected()))
    }
}

struct Agent {
    number: usize,
    server: SocketAddr,
    tls: Arc<ClientConfig>,
    auth: Auth,
}

impl Agent {
    async fn run(self, connected: Arc<AtomicUsize>) {
        let mut longest = FIRST_PAUSE;
        loop {
            if let Ok(Ok(stream)) = timeout(ATTEMPT, self.connect()).await {
                longest = FIRST_PAUSE;
                connected.fetch_add(1, Ordering::Relaxed);
                // Any end is followed by another attempt.
                let _ = stream.serve().await;
                connected.fetch_sub(1, Ordering::Relaxed);
            }
            let pause = rand::rng().random_range(Duration::ZERO..longest);
            sleep(pause).await;
            longest = (longest * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect(&self) -> Result<Stream> {
        let socket = TcpSocket::new_v4()?;
        // Each agent has its own address, as in a cluster.
        let [.., high, low] = (self.number as u32 + 1).to_be_bytes();
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 1, high, low), 0)))?;
        let socket = tls_over(socket.connect(self.server).await?, Arc::clone(&self.tls)).await?;
        let (requests, mut connection) =
            client::Builder::new().initial_window_size(64 << 10).handshake::<_, Bytes>(socket).await?;
        let pings = connection.ping_pong().context("pings")?;
        let mut request = Request::post("https://localhost/AgentService/Connect")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("agentid", format!("light-{}", self.number))
            .header("konnectivity-capabilities", "pings");
        if self.auth == Auth::Token {
            request = request.header("authorization", format!("Bearer {}", Plan::token(self.number)));
        }
        let mut requests = tokio::select! {
            ready = requests.ready() => ready?,
            ended = &mut connection => return Err(ended.err().map_or_else(|| anyhow::anyhow!("ended"), Into::into)),
        };
        let (response, out) = requests.send_request(request.body(())?, false)?;
        let response = tokio::select! {
            response = response => response?,
            ended = &mut connection => return Err(ended.err().map_or_else(|| anyhow::anyhow!("ended"), Into::into)),
        };
        anyhow::ensure!(!response.headers().contains_key("grpc-status"), "refused");
        Ok(Stream {
            out,
            inbound: response.into_body(),
            connection: Box::pin(connection),
            pings,
            _requests: requests,
        })
    }
}

type Connection = client::Connection<tokio_rustls::client::TlsStream<tokio::net::TcpStream>, Bytes>;

/// An accepted stream with its connection.
struct Stream {
    out: SendStream<Bytes>,
    inbound: RecvStream,
    connection: std::pin::Pin<Box<Connection>>,
    pings: h2::PingPong,
    _requests: client::SendRequest<Bytes>,
}

impl Stream {
    /// Answers dials and closes until the stream ends.
    async fn serve(mut self) -> Result<()> {
        let first = rand::rng().random_range(Duration::ZERO..PING_EVERY);
        let mut ticks = interval_at(Instant::now() + first, PING_EVERY);
        let (mut arrived, mut next_id, mut pinging) = (BytesMut::new(), 1, false);
        loop {
            tokio::select! {
                ended = &mut self.connection => return Ok(ended?),
                bytes = self.inbound.data() => {
                    let bytes = bytes.context("the end of the stream")??;
                    self.inbound.flow_control().release_capacity(bytes.len())?;
                    arrived.extend_from_slice(&bytes);
                    while let Some(message) = message(&mut arrived) {
                        self.answer(Packet::decode(message)?, &mut next_id)?;
                    }
                }
                _ = ticks.tick(), if !pinging => {
                    self.pings.send_ping(Ping::opaque())?;
                    pinging = true;
                }
                pong = std::future::poll_fn(|cx| self.pings.poll_pong(cx)), if pinging => {
                    pong?;
                    pinging = false;
                }
            }
        }
    }

    fn answer(&mut self, packet: Packet, next_id: &mut i64) -> Result<()> {
        let answer = match packet.payload {
            Some(Payload::DialRequest(request)) => {
                *next_id += 1;
                dial_rsp(request.random, *next_id, "")
            }
            Some(Payload::CloseRequest(close)) => close_rsp(close.connect_id, ""),
            _ => return Ok(()),
        };
        Ok(self.out.send_data(framed(&answer.encode_to_vec()), false)?)
    }
}
