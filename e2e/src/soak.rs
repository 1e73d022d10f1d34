//! Random load for as long as one likes: exchanges of all kinds, readers and endpoints that stop, connections broken off,
//! dials given up, an agent killed again and again. While nobody was killed, nothing may fail; at the end everything must
//! be back where it began.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::endpoints::Endpoint;
use crate::exchange::{echoed, upload};
use crate::frontend::Frontend;
use crate::pair::{Pair, Setup};
use crate::payload::Payload;
use crate::usage::Usage;
use crate::wait::{DEADLINE, until};

/// What an endpoint sends to those who come to read.
const DOWNLOAD: Payload = Payload::new(7, 1 << 20);

/// An allocator keeps for a while what it was asked for once. What is lost for good grows from phase to phase.
pub const PHASES: u32 = 4;

/// What the last phase may leave resident, in KiB, beyond an eighth more than any of the first half.
const SPARE_KIB: u64 = 6 << 10;

/// How much, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// How long the load lasts in all, in [`PHASES`] with a rest after each.
    pub time: Duration,
    /// Clients at once.
    pub clients: u64,
    /// Of the random choices.
    pub seed: u64,
    /// Between two kills of an agent.
    pub kill_every: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Exchanges that were to succeed, and did.
    pub whole: u64,
    /// Connections ended in the middle, by the client or the endpoint, and dials given up.
    pub broken: u64,
    /// Exchanges that failed while an agent was being killed.
    pub excused: u64,
    /// Times that an agent was killed.
    pub kills: u64,
    /// What failed otherwise.
    pub failures: Vec<String>,
    /// Memory, descriptors and threads at rest, after each phase, of the servers and an agent that was not killed.
    pub rest: Vec<Vec<Usage>>,
}

impl Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { whole, broken, excused, kills, failures, rest } = self;
        write!(
            f,
            "{whole} exchanges whole, {broken} broken off, {excused} failed around {kills} kills of an agent, "
        )?;
        write!(f, "{} failed otherwise;", failures.len())?;
        for usages in by_process(rest) {
            let row =
                |figure: fn(&Usage) -> String| usages.iter().map(figure).collect::<Vec<_>>().join(" -> ");
            write!(
                f,
                " {} KiB, {} descriptors,",
                row(|usage| usage.rss_kib.to_string()),
                row(|usage| usage.descriptors.to_string())
            )?;
            write!(f, " {} threads;", row(|usage| usage.threads.to_string()))?;
        }
        f.write_str(" gauges at zero")
    }
}

impl Figures {
    /// # Errors
    /// Something failed, or was not given back.
    pub fn check(&self) -> Result<()> {
        let first: Vec<_> = self.failures.iter().take(5).collect();
        ensure!(first.is_empty(), "{self}; the first failures: {first:?}");
        for usages in by_process(&self.rest) {
            let (Some(first), Some(last)) = (usages.first(), usages.last()) else { continue };
            let most =
                usages.iter().take(usages.len() / 2).map(|usage| usage.rss_kib).max().unwrap_or_default();
            ensure!(last.rss_kib < most + most / 8 + SPARE_KIB, "memory grew: {self}");
            // Two at most read files now and then, and stay for some seconds.
            ensure!(last.threads <= first.threads + 2, "threads are left: {self}");
        }
        Ok(())
    }
}

/// What was taken phase by phase, for each process.
fn by_process(rest: &[Vec<Usage>]) -> Vec<Vec<Usage>> {
    let processes = rest.first().map_or(0, Vec::len);
    (0..processes).map(|at| rest.iter().filter_map(|phase| phase.get(at).copied()).collect()).collect()
}

/// Where the clients of a soak go.
struct World {
    frontends: Vec<Frontend>,
    echo: Endpoint,
    source: Endpoint,
    sink: Endpoint,
    stalled: Endpoint,
    resetting: Endpoint,
    figures: Mutex<Figures>,
    /// Until when failures are excused.
    disturbed: Mutex<Instant>,
}

/// Runs it over two servers, a frontend of each kind, and two agents.
///
/// # Errors
/// The processes do not start, or what was used is not given back.
pub async fn soak(plan: Soak) -> Result<Figures> {
    use crate::frontend::Mode::{Grpc, HttpConnect};
    use crate::pair::Front::Unix;
    let mut pair = Setup::replicas(&[(Grpc, Unix), (HttpConnect, Unix)]).agents(2).start().await?;
    let world = Arc::new(World {
        frontends: pair.servers.iter().map(|server| server.frontend.clone()).collect(),
        echo: Endpoint::echo().await?,
        source: Endpoint::source(DOWNLOAD).await?,
        sink: Endpoint::sink().await?,
        stalled: Endpoint::stalled().await?,
        resetting: Endpoint::resetting().await?,
        figures: Mutex::default(),
        disturbed: Mutex::new(Instant::now()),
    });
    let mut rest: Vec<Vec<Usage>> = Vec::new();
    for phase in 0..PHASES {
        let part = Soak { time: plan.time / PHASES, seed: plan.seed + u64::from(phase), ..plan };
        load(&mut pair, &world, part).await?;
        rest.push(at_rest(&pair, &world, rest.first()).await?);
    }
    let mut figures = std::mem::take(&mut *world.figures.lock());
    figures.rest = rest;
    Ok(figures)
}

/// The load itself, and the killer beside it.
async fn load(pair: &mut Pair, world: &Arc<World>, plan: Soak) -> Result<()> {
    let end = Instant::now() + plan.time;
    let mut clients = JoinSet::new();
    for number in 0..plan.clients {
        let (world, mut random) = (Arc::clone(world), StdRng::seed_from_u64(plan.seed * 1_000 + number));
        clients.spawn(async move {
            while Instant::now() < end {
                world.act(&mut random).await;
            }
        });
    }
    while Instant::now() + plan.kill_every < end {
        sleep(plan.kill_every).await;
        kill_an_agent(pair, world).await?;
    }
    while let Some(ended) = clients.join_next().await {
        ended.context("a client of the soak")?;
    }
    Ok(())
}

/// Always the last one: the others are measured.
async fn kill_an_agent(pair: &mut Pair, world: &World) -> Result<()> {
    *world.disturbed.lock() = Instant::now() + DEADLINE * 10;
    world.figures.lock().kills += 1;
    pair.agents.last_mut().context("an agent")?.process.restart()?;
    pair.wait_connected().await?;
    *world.disturbed.lock() = Instant::now();
    Ok(())
}

impl World {
    async fn act(&self, random: &mut StdRng) {
        let frontend = &self.frontends[random.random_range(0..self.frontends.len())];
        // As many small ones as large ones.
        let most = 1_u64 << random.random_range(4..=20);
        let payload = Payload::new(random.random(), random.random_range(1..=most));
        let began = Instant::now();
        let done = match random.random_range(0..8) {
            0 | 1 => echoed(frontend, &self.echo.target(), payload).await,
            2 => upload(frontend, &self.sink.target(), payload).await,
            3 => self.download(frontend).await,
            _ => {
                self.break_off(frontend, random).await;
                self.figures.lock().broken += 1;
                return;
            }
        };
        let mut figures = self.figures.lock();
        match done {
            Ok(()) => figures.whole += 1,
            Err(_) if *self.disturbed.lock() >= began => figures.excused += 1,
            Err(error) => figures.failures.push(format!("{error:#}")),
        }
    }

    async fn download(&self, frontend: &Frontend) -> Result<()> {
        let mut conn = frontend.dial(&self.source.target()).await?;
        timeout(DEADLINE, DOWNLOAD.receive_all(&mut conn)).await.context("a download")?
    }

    /// One that does not go well, and is not meant to.
    async fn break_off(&self, frontend: &Frontend, random: &mut StdRng) {
        let pause = Duration::from_millis(random.random_range(0..2_000));
        let (target, reads) = match random.random_range(0..4) {
            0 => (self.source.target(), true),
            1 => (self.stalled.target(), false),
            2 => (self.resetting.target(), false),
            _ => {
                // Nobody waits for the answer.
                let _ = timeout(pause / 1_000, frontend.dial(&self.echo.target())).await;
                return;
            }
        };
        let Ok(Ok(mut conn)) = timeout(DEADLINE, frontend.dial(&target)).await else { return };
        if reads {
            let _ = timeout(pause, conn.read_u8()).await;
        } else {
            // More than fits on the way to an endpoint that takes nothing.
            let _ = timeout(pause, Payload::new(1, 512 << 10).send(&mut conn)).await;
        }
        sleep(pause).await;
    }
}

/// Waits until nothing is under way in those who were not killed, and says what they hold.
async fn at_rest(pair: &Pair, world: &World, before: Option<&Vec<Usage>>) -> Result<Vec<Usage>> {
    let (limit, busy) = (Duration::from_secs(180), Mutex::new(Vec::new()));
    let rested = until("gauges and descriptors at rest", limit, || async {
        // The library of gRPC clients goes on with an upload whose connection was dropped: it has not gone before its
        // endpoint has taken it.
        world.stalled.release();
        let (mut held, mut now) = (Vec::new(), Vec::new());
        for server in &pair.servers {
            now.extend(server.metrics().await.ok()?.busy());
            held.push(server.process.usage().ok()?);
        }
        now.extend(pair.agent().metrics().await.ok()?.busy());
        held.push(pair.agent().process.usage().ok()?);
        // A scrape of our own may be in flight.
        let back = |(now, then): (&Usage, &Usage)| now.descriptors <= then.descriptors + 3;
        let rest = now.is_empty() && before.is_none_or(|before| held.iter().zip(before).all(back));
        *busy.lock() = now;
        rest.then_some(held)
    });
    rested.await.with_context(|| format!("busy still: {:?}", busy.lock()))
}
