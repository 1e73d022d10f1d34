//! The load: for each server a client that dials often, and a client that calls over a connection that it keeps. The endpoint
//! of all of them counts connections by agent.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use parking_lot::Mutex;
use rand::RngExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

use crate::endpoints;
use crate::frontend::Frontend;
use crate::netns::{Network, VIRTUAL};

/// Pauses between the dials of one server, in milliseconds.
const PAUSE: std::ops::Range<u64> = 100..700;

/// Time between the calls over a connection that is kept.
const CALL_EVERY: Duration = Duration::from_millis(100);

/// When a client gives up a call, as with `timeoutSeconds: 10` of a webhook.
const LIMIT: Duration = Duration::from_secs(10);

/// A request and its answer.
const REQUEST: [u8; 512] = [7; 512];

/// One dial or call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    pub(super) began: Instant,
    /// The time until its success or failure.
    took: Option<Duration>,
    failed: bool,
}

impl Exchange {
    /// The time that it took, or has taken so far; [`LIMIT`] at most, because a late timer is no fault of the programs.
    pub(super) fn took(&self) -> Duration {
        self.took.unwrap_or(self.began.elapsed()).min(LIMIT)
    }

    /// Whether it failed; one that has had no answer for a second counts as failed.
    pub(super) fn failed(&self) -> bool {
        self.failed || (self.took.is_none() && self.began.elapsed() > Duration::from_secs(1))
    }

    /// Whether it ended after this moment, or has not ended.
    pub(super) fn ended_after(&self, moment: Instant) -> bool {
        self.took.is_none_or(|took| self.began + took >= moment)
    }
}

/// All dials, or all calls.
#[derive(Debug, Default)]
pub(super) struct Exchanges(Mutex<Vec<Exchange>>);

impl Exchanges {
    /// Runs one exchange within [`LIMIT`], and returns its value unless it failed.
    async fn run<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Option<T> {
        let number = {
            let mut all = self.0.lock();
            all.push(Exchange { began: Instant::now(), took: None, failed: false });
            all.len() - 1
        };
        let value = timeout(LIMIT, work).await.ok().and_then(Result::ok);
        if let Some(exchange) = self.0.lock().get_mut(number) {
            exchange.took = Some(exchange.began.elapsed());
            exchange.failed = value.is_none();
        }
        value
    }

    pub(super) fn all(&self) -> Vec<Exchange> {
        self.0.lock().clone()
    }
}

/// The running clients. Dropping it ends them.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) dials: Arc<Exchanges>,
    pub(super) calls: Arc<Exchanges>,
    /// The longest time for which this program did not run although it was due.
    pub(super) stall: Arc<Mutex<Duration>>,
    clients: JoinSet<()>,
}

impl Load {
    pub(super) fn start(frontends: &[Frontend], to: SocketAddr) -> Self {
        let mut load = Self::default();
        load.clients.spawn(watch_for_stalls(Arc::clone(&load.stall)));
        for frontend in frontends {
            let (dials, calls) = (Arc::clone(&load.dials), Arc::clone(&load.calls));
            load.clients.spawn(dial_often(frontend.clone(), to.to_string(), dials, Arc::clone(&calls)));
            load.clients.spawn(call_often(frontend.clone(), to.to_string(), calls));
        }
        load
    }
}

async fn watch_for_stalls(longest: Arc<Mutex<Duration>>) {
    loop {
        let due = Instant::now() + Duration::from_millis(50);
        sleep_until(due).await;
        let mut longest = longest.lock();
        *longest = due.elapsed().max(*longest);
    }
}

/// Dials for each call, whether earlier dials have been answered or not.
async fn dial_often(frontend: Frontend, to: String, dials: Arc<Exchanges>, calls: Arc<Exchanges>) {
    let mut under_way = JoinSet::new();
    loop {
        let pause = rand::rng().random_range(PAUSE);
        sleep(Duration::from_millis(pause)).await;
        while under_way.try_join_next().is_some() {}
        let (frontend, to) = (frontend.clone(), to.clone());
        let (dials, calls) = (Arc::clone(&dials), Arc::clone(&calls));
        under_way.spawn(async move {
            let dial_and_call = async {
                let mut conn = dials.run(Box::pin(frontend.dial(&to))).await.ok_or(())?;
                call(&mut conn).await.map_err(drop)
            };
            calls.run(dial_and_call).await;
        });
    }
}

/// Calls over one connection, one call after the other. After a failure the next call dials.
async fn call_often(frontend: Frontend, to: String, calls: Arc<Exchanges>) {
    let (mut kept, mut ticks) = (None, interval(CALL_EVERY));
    loop {
        ticks.tick().await;
        let conn = kept.take();
        let call = async {
            let mut conn = match conn {
                Some(conn) => conn,
                None => frontend.dial(&to).await?,
            };
            call(&mut conn).await?;
            anyhow::Ok(conn)
        };
        kept = calls.run(call).await;
    }
}

/// One request and its answer.
pub(super) async fn call(conn: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<()> {
    let mut answer = [0; REQUEST.len()];
    conn.write_all(&REQUEST).await?;
    conn.flush().await?;
    conn.read_exact(&mut answer).await?;
    ensure!(answer == REQUEST, "another answer");
    Ok(())
}

/// An endpoint that echoes, behind the balancer's router.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) echo: endpoints::Endpoint,
    /// The agent and the moment of each connection.
    accepted: Arc<Mutex<Vec<(IpAddr, Instant)>>>,
}

impl Endpoint {
    pub(super) fn start(network: &Network) -> Result<Self> {
        let accepted = Arc::<Mutex<Vec<_>>>::default();
        let seen = Arc::clone(&accepted);
        let listener = network.router.listen((VIRTUAL, 0).into())?;
        let note = move |peer: SocketAddr| seen.lock().push((peer.ip(), Instant::now()));
        Ok(Self { echo: endpoints::Endpoint::echo_on(listener, note)?, accepted })
    }

    /// The moments of the connections that an agent made.
    pub(super) fn accepted(&self, agent: IpAddr) -> Vec<Instant> {
        let accepted = self.accepted.lock();
        accepted.iter().filter(|(by, _)| *by == agent).map(|(_, at)| *at).collect()
    }
}
