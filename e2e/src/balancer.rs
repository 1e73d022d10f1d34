//! A small TCP load balancer in front of the server replicas' agent ports, with the faults of real ones.
//!
//! It copies bytes and knows no protocol. It can always choose the same replica, stop copying (a half-open network), add a
//! delay, and reset its connections, at both ends or at one.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

/// Bytes copied at once.
const PIECE: usize = 64 * 1024;

/// Largest number of delayed reads in transit; beyond that the path applies back-pressure.
const UNDER_WAY: usize = 4096;

/// The backend of the next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each replica in turn.
    RoundRobin,
    /// Always the same replica.
    Stick(usize),
}

/// One end of a connection through the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The agent's.
    Agent,
    /// The server's.
    Server,
}

/// The load balancer; dropping the handle ends it and its connections.
#[derive(Debug)]
pub struct Balancer {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    backends: Vec<SocketAddr>,
    policy: Mutex<Policy>,
    next: AtomicUsize,
    accepted: AtomicUsize,
    /// One-way delay.
    delay: Duration,
    /// Bytes of each read and write without a delay.
    piece: usize,
    paused: watch::Sender<bool>,
    /// The end that is reset.
    resets: broadcast::Sender<End>,
    carried: Mutex<Vec<AbortOnDropHandle<()>>>,
}

impl Balancer {
    /// Listens on a free port of the loopback interface.
    pub async fn start(backends: Vec<SocketAddr>) -> Result<Self> {
        Self::with_delay(backends, Duration::ZERO).await
    }

    /// Delays all bytes by `delay` in each direction.
    pub async fn with_delay(backends: Vec<SocketAddr>, delay: Duration) -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot bind the balancer")?;
        Self::delayed_on(listener, backends, delay, PIECE)
    }

    /// Serves on a bound listener.
    pub fn start_on(listener: TcpListener, backends: Vec<SocketAddr>) -> Result<Self> {
        Self::delayed_on(listener, backends, Duration::ZERO, PIECE)
    }

    /// Carries all bytes in segments of one byte.
    pub async fn with_single_bytes(backends: Vec<SocketAddr>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Self::delayed_on(listener, backends, Duration::ZERO, 1)
    }

    fn delayed_on(
        listener: TcpListener,
        backends: Vec<SocketAddr>,
        delay: Duration,
        piece: usize,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            backends,
            policy: Mutex::new(Policy::RoundRobin),
            next: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            delay,
            piece,
            paused: watch::Sender::new(false),
            resets: broadcast::Sender::new(1),
            carried: Mutex::default(),
        });
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(accept(listener, shared.clone())).abort_handle();
        Ok(Self { address, shared, accepting })
    }

    /// The address for agents.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Changes the policy for new connections.
    pub fn set_policy(&self, policy: Policy) {
        *self.shared.policy.lock() = policy;
    }

    /// Stops copying bytes without closing anything, or resumes. Not for a balancer with a delay.
    pub fn pause(&self, paused: bool) {
        assert!(self.shared.delay.is_zero(), "a delayed balancer does not stop");
        self.shared.paused.send_replace(paused);
    }

    /// Resets one end of all connections. The other end stays open: its bytes are acknowledged and go nowhere. New connections
    /// are carried.
    pub fn reset(&self, end: End) {
        let _ = self.shared.resets.send(end);
    }

    /// Resets all connections. New ones are still accepted.
    pub fn cut(&self) {
        self.shared.carried.lock().clear();
    }

    /// Resets one of at least `least` connections, and returns when that is done. Returns false if there are fewer.
    pub async fn cut_one(&self, number: usize, least: usize) -> bool {
        let cut = {
            let mut carried = self.shared.carried.lock();
            carried.retain(|connection| !connection.is_finished());
            if carried.len() < least.max(1) {
                return false;
            }
            let place = number % carried.len();
            carried.swap_remove(place)
        };
        cut.abort();
        let _ = cut.await;
        true
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((agent, _)) = listener.accept().await {
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let index = match *shared.policy.lock() {
            Policy::Stick(index) => index,
            Policy::RoundRobin => shared.next.fetch_add(1, Ordering::Relaxed) % shared.backends.len().max(1),
        };
        let Some(backend) = shared.backends.get(index).copied() else { continue };
        let (paused, resets) = (shared.paused.subscribe(), shared.resets.subscribe());
        let mut carried = shared.carried.lock();
        carried.retain(|connection| !connection.is_finished());
        let connection = tokio::spawn(carry(agent, backend, (shared.delay, shared.piece), paused, resets));
        carried.push(AbortOnDropHandle::new(connection));
    }
}

async fn carry(
    agent: TcpStream,
    backend: SocketAddr,
    (delay, piece): (Duration, usize),
    paused: watch::Receiver<bool>,
    mut resets: broadcast::Receiver<End>,
) {
    let Ok(server) = TcpStream::connect(backend).await else { return };
    for stream in [&agent, &server] {
        // With a zero linger an aborted task resets both sides, as when the balancer's host dies; before an orderly end the
        // shutdowns below send a FIN.
        let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        let _ = stream.set_nodelay(true);
    }
    let (mut agent_in, mut agent_out) = agent.into_split();
    let (mut server_in, mut server_out) = server.into_split();
    let copy = async {
        if delay.is_zero() {
            let up = pass(&mut agent_in, &mut server_out, piece, paused.clone());
            let down = pass(&mut server_in, &mut agent_out, piece, paused);
            tokio::join!(up, down);
        } else {
            let up = pass_late(&mut agent_in, &mut server_out, delay);
            let down = pass_late(&mut server_in, &mut agent_out, delay);
            tokio::join!(up, down);
        }
    };
    let end = tokio::select! {
        () = copy => return,
        Ok(end) = resets.recv() => end,
    };
    let mut open = match end {
        End::Agent => {
            drop((agent_in, agent_out));
            (server_in, server_out)
        }
        End::Server => {
            drop((server_in, server_out));
            (agent_in, agent_out)
        }
    };
    let _ = tokio::io::copy(&mut open.0, &mut tokio::io::sink()).await;
}

/// Copies with this delay.
async fn pass_late(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin), delay: Duration) {
    let (sender, mut under_way) = mpsc::channel(UNDER_WAY);
    let leave = async move {
        let mut piece = vec![0; PIECE * 4];
        loop {
            let count = from.read(&mut piece).await.unwrap_or(0);
            let bytes = piece.get(..count).unwrap_or_default().to_vec();
            if sender.send((Instant::now() + delay, bytes)).await.is_err() || count == 0 {
                return;
            }
        }
    };
    // A sender notices when the other end has gone.
    let arrive = async move {
        while let Some((due, bytes)) = under_way.recv().await {
            sleep_until(due).await;
            if bytes.is_empty() || to.write_all(&bytes).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(leave, arrive);
}

async fn pass(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    piece: usize,
    mut paused: watch::Receiver<bool>,
) {
    let mut piece = vec![0; piece];
    loop {
        let count = from.read(&mut piece).await.unwrap_or(0);
        if paused.wait_for(|paused| !paused).await.is_err() {
            return;
        }
        let Some(bytes) = piece.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
