//! Peers that never authenticate: silent connections, abandoned handshakes, idle HTTP/2 connections, and streams that are
//! refused.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_rustls::client::TlsStream;

use super::frames::{END_HEADERS, END_STREAM, HEADERS, block, frame, hello, read_frame};
use crate::frontend::tls_socket;
use crate::wait::{DEADLINE, until, within};

/// The ClientHello of a client, to be sent repeatedly.
pub fn client_hello(config: Arc<ClientConfig>) -> Result<Vec<u8>> {
    let name = ServerName::try_from("127.0.0.1")?;
    let mut bytes = Vec::new();
    ClientConnection::new(config, name)?.write_tls(&mut bytes)?;
    Ok(bytes)
}

/// The parameters of a flood.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The target address.
    pub address: SocketAddr,
    /// Connections at the start.
    pub burst: usize,
    /// Connections per second after that.
    pub rate: u32,
    /// Total number of connections; the flood ends with them.
    pub most: usize,
    /// The only bytes that each connection sends.
    pub sends: Vec<u8>,
    /// Largest number of open connections; above that the oldest is closed.
    pub keeps: usize,
}

/// A flood of connections on a separate thread, until this is dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Starts a flood.
    pub fn start(plan: Plan) -> Result<Self> {
        crate::process::raise_descriptor_limit();
        let (stop, made) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&made));
        let thread = std::thread::Builder::new()
            .name("flood".into())
            .spawn(move || runtime.block_on(flood(&plan, &stopped, &counted)))?;
        Ok(Self { stop, made, thread: Some(thread) })
    }

    /// Waits until this number of connections was made.
    pub async fn wait_made(&self, count: usize) -> Result<()> {
        let made = || async { (self.made() >= count).then_some(()) };
        until("the connections of a flood", DEADLINE, made).await
    }

    /// The number of connections made so far.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn flood(plan: &Plan, stop: &AtomicBool, made: &AtomicUsize) {
    let mut held = VecDeque::new();
    let mut left = plan.burst;
    while left > 0 && !stop.load(Ordering::Relaxed) {
        one(plan, &mut held, made).await;
        left -= 1;
    }
    // Ten connections per tick at most, so that a late tick does not become a burst.
    let each = Duration::from_secs(1) / plan.rate.div_ceil(10).max(1);
    let mut ticks = interval(each);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let left = plan.most.saturating_sub(made.load(Ordering::Relaxed));
        for _ in 0..left.min(plan.rate.min(10) as usize) {
            one(plan, &mut held, made).await;
        }
    }
}

async fn one(plan: &Plan, held: &mut VecDeque<TcpStream>, made: &AtomicUsize) {
    let Ok(mut stream) = TcpStream::connect(plan.address).await else { return };
    if stream.write_all(&plan.sends).await.is_ok() {
        held.push_back(stream);
    }
    if held.len() > plan.keeps {
        held.pop_front();
    }
    made.fetch_add(1, Ordering::Relaxed);
}

/// An HTTP/2 connection over TLS on which no stream is ever accepted.
pub struct Refused {
    stream: TlsStream<TcpStream>,
    next: u32,
    since: Instant,
}

impl Refused {
    /// Connects, and sends HTTP/2's preface.
    pub async fn connect(address: SocketAddr, config: Arc<ClientConfig>) -> Result<Self> {
        let mut stream = tls_socket(address, config).await?;
        stream.write_all(&hello()).await?;
        stream.flush().await?;
        Ok(Self { stream, next: 1, since: Instant::now() })
    }

    /// Waits for the server's first frame.
    pub async fn answered(&mut self) -> Result<()> {
        within("the server's SETTINGS", read_frame(&mut self.stream)).await?.map(drop)
    }

    /// Opens a stream for an unknown path.
    pub async fn open_stream(&mut self) -> Result<()> {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, self.next, &block("/"));
        self.next += 2;
        self.stream.write_all(&request).await.context("the connection is closed")?;
        self.stream.flush().await.context("the connection is closed")
    }

    /// Opens a stream every `pause` until the server closes the connection; returns the connection's lifetime.
    pub async fn until_closed(mut self, pause: Duration) -> Duration {
        let mut ticks = interval(pause);
        let mut bytes = vec![0; 4096];
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    if self.open_stream().await.is_err() {
                        return self.since.elapsed();
                    }
                }
                read = self.stream.read(&mut bytes) => {
                    if !matches!(read, Ok(1..)) {
                        return self.since.elapsed();
                    }
                }
            }
        }
    }
}
