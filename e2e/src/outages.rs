//! Outages while connections are in use: a stopped program, or a network that forwards no packets. After an outage every
//! connection is still open, and every byte has arrived.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt, WriteHalf};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

use crate::endpoints::Endpoint;
use crate::exchange::{echo_within, works};
use crate::frontend::{Conn, Mode};
use crate::netns::{NEAR, Network};
use crate::pair::{Agent, Front, Pair, Setup};
use crate::payload::Payload;
use crate::process::Signal;
use crate::wait::within_limit;

/// Time between the ticks of a connection.
const TICK: Duration = Duration::from_millis(100);

/// Payload of the bulk transfer, in bytes: more than the kernels and both programs buffer, so that the sender exhausts its
/// window.
const BULK: u64 = 64 << 20;

/// Time limit for the recovery: TCP doubles its retransmission time-out after each attempt.
const RECOVERY: Duration = Duration::from_secs(60);

/// The cause of an outage.
#[derive(Clone, Copy, Debug)]
pub enum Fault<'a> {
    /// The agent's process is stopped; its kernel still acknowledges.
    StoppedAgent,
    /// The server's process is stopped; its kernel still acknowledges.
    StoppedServer,
    /// A relay acknowledges bytes and forwards none.
    StuckRelay,
    /// No packet arrives. The test itself runs on the near side.
    Blackhole(&'a Network),
}

/// One outage.
#[derive(Clone, Copy, Debug)]
pub struct Outage<'a> {
    /// The frontend.
    pub mode: Mode,
    /// The cause.
    pub fault: Fault<'a>,
    /// The duration.
    pub length: Duration,
    /// Whether clients dial during the outage; these dials must succeed after it.
    pub dials: bool,
}

/// One server, one agent, and the endpoint of the connections.
struct Rig {
    pair: Pair,
    endpoint: Endpoint,
    _far: Option<Agent>,
}

impl Outage<'_> {
    /// Runs the outage. Returns the time from its end until every connection and a new dial have worked again.
    ///
    /// # Errors
    /// A connection ended, a byte was lost, or a waiting dial failed.
    pub async fn survive(self) -> Result<Duration> {
        let rig = self.rig().await?;
        let target = rig.endpoint.target();
        let ticking = Ticking::start(rig.pair.frontend().dial(&target).await?);
        let bulk = rig.pair.frontend().dial(&target).await?;
        ticking.wait(10).await?;
        self.switch(&rig, true)?;
        let bulk = tokio::spawn(echo_within(bulk, Payload::new(1, BULK), self.length + RECOVERY));
        let mut dials = JoinSet::new();
        if self.dials {
            let (frontend, target) = (rig.pair.frontend().clone(), target.clone());
            dials.spawn(async move { works(&frontend, &target).await });
        }
        sleep(self.length).await;
        ensure!(!bulk.is_finished(), "the transfer ended although nothing passed");
        self.switch(&rig, false)?;
        let ended = Instant::now();
        let recovered = async {
            while let Some(dialed) = dials.join_next().await {
                dialed?.context("a dial that waited")?;
            }
            bulk.await?.context("a transfer")?;
            ticking.finish().await.context("a connection that ticks")?;
            works(rig.pair.frontend(), &target).await
        };
        within_limit("the end of an outage", RECOVERY, recovered)
            .await?
            .with_context(|| format!("{self:?}"))?;
        Ok(ended.elapsed())
    }

    async fn rig(&self) -> Result<Rig> {
        let setup = Setup::new(self.mode, Front::Unix);
        let Fault::Blackhole(network) = self.fault else {
            let pair = setup.balanced().start().await?;
            return Ok(Rig { pair, endpoint: Endpoint::echo().await?, _far: None });
        };
        let setup = setup.agents(0).server_arg(format!("--agent-bind-address={NEAR}"));
        let mut pair = setup.start().await?;
        let server = SocketAddr::from((NEAR, pair.server().agent_port()));
        let far = network.far[0].enter(|| pair.agent_at("far", server))?;
        pair.server_mut().wait_ready().await?;
        Ok(Rig { pair, endpoint: Endpoint::echo_at(NEAR.into()).await?, _far: Some(far) })
    }

    fn switch(&self, rig: &Rig, on: bool) -> Result<()> {
        let signal = if on { Signal::STOP } else { Signal::CONT };
        match self.fault {
            Fault::StoppedAgent => rig.pair.agent().process.signal(signal),
            Fault::StoppedServer => rig.pair.server().process.signal(signal),
            Fault::StuckRelay => {
                rig.pair.balancer.as_ref().context("a balancer")?.pause(on);
                Ok(())
            }
            Fault::Blackhole(network) if on => network.swallow(&network.far[0]),
            Fault::Blackhole(network) => network.heal(&network.far[0]),
        }
    }
}

/// A connection to an echo that carries a number every [`TICK`].
struct Ticking {
    stop: watch::Sender<bool>,
    seen: watch::Receiver<u64>,
    writer: tokio::task::JoinHandle<std::io::Result<(u64, WriteHalf<Conn>)>>,
    reader: tokio::task::JoinHandle<Result<u64>>,
}

impl Ticking {
    fn start(conn: Conn) -> Self {
        let (mut input, mut output) = tokio::io::split(conn);
        let (stop, stopped) = watch::channel(false);
        let (see, seen) = watch::channel(0);
        let writer = tokio::spawn(async move {
            let mut ticks = interval(TICK);
            let mut next = 0_u64;
            while !*stopped.borrow() {
                ticks.tick().await;
                output.write_u64(next).await?;
                output.flush().await?;
                next += 1;
            }
            Ok((next, output))
        });
        let reader = tokio::spawn(async move {
            let mut next = 0;
            loop {
                match input.read_u64().await {
                    Ok(number) => ensure!(number == next, "{number} came instead of {next}"),
                    Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(next),
                    Err(error) => return Err(error).context("reading"),
                }
                next += 1;
                see.send_replace(next);
            }
        });
        Self { stop, seen, writer, reader }
    }

    /// Waits until the echo has returned `count` ticks.
    async fn wait(&self, count: u64) -> Result<()> {
        let mut seen = self.seen.clone();
        within_limit("ticks", RECOVERY, seen.wait_for(|seen| *seen >= count)).await?.context("no tick")?;
        Ok(())
    }

    /// Closes the connection once the echo has returned every tick, because a gRPC client's close ends both directions.
    async fn finish(mut self) -> Result<()> {
        self.stop.send_replace(true);
        let (sent, mut output) = (&mut self.writer).await?.context("writing")?;
        self.wait(sent).await?;
        output.shutdown().await?;
        let received = self.reader.await??;
        ensure!(sent == received, "{received} of {sent} ticks came back");
        Ok(())
    }
}
