//! Random load for a given time: exchanges of all kinds, stalled readers and endpoints, broken connections, canceled dials, an
//! agent and lanes that are killed repeatedly, each agent with new certificates for all programs. Except around a kill nothing may
//! fail, and at the end all resources must be released.

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
use crate::payload::{Corrupt, Payload};
use crate::usage::Usage;
use crate::wait::{DEADLINE, until};

/// The payload that an endpoint sends to readers.
const DOWNLOAD: Payload = Payload::new(7, 1 << 20);

/// The least number of phases. An allocator keeps some released memory, but a leak grows from phase to phase.
pub const PHASES: u32 = 4;

/// Length of a phase of long runs, which have more phases.
const PHASE: Duration = Duration::from_secs(300);

/// A process leaks if its memory at rest grows by more than this in an hour, with 95 % confidence. KiB.
const LEAK_KIB: f64 = 1024.0;

/// Allowed growth of resident memory in the last phase in KiB, in addition to an eighth of the maximum of the first half.
const SPARE_KIB: u64 = 6 << 10;

/// The amount and duration of the load.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// Duration of the load, divided into phases of at most 5 minutes, at least [`PHASES`], with a rest after each.
    pub time: Duration,
    /// Concurrent clients.
    pub clients: u64,
    /// Seed of the random choices.
    pub seed: u64,
    /// Time between two kills of an agent.
    pub kill_every: Duration,
    /// Time between two kills of a lane, chosen at random.
    pub cut_every: Duration,
}

/// The result of a soak.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Exchanges that had to succeed, and did.
    pub whole: u64,
    /// Connections that the client or the endpoint broke, and canceled dials.
    pub broken: u64,
    /// Exchanges that failed while an agent or a lane was being killed.
    pub excused: u64,
    /// Kills of an agent.
    pub kills: u64,
    /// Kills of a lane.
    pub cuts: u64,
    /// Other failures.
    pub failures: Vec<String>,
    /// Memory, descriptors and threads while idle, after each phase, of the servers and of an agent that was not killed.
    pub rest: Vec<Vec<Usage>>,
    /// Hours since the start at each of these rests.
    pub hours: Vec<f64>,
}

impl Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { whole, broken, excused, kills, cuts, failures, rest, hours } = self;
        write!(
            f,
            "{whole} exchanges whole, {broken} broken off, {excused} failed around {kills} kills of an agent and {cuts} of a lane, "
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
            if let Some(slope) = Slope::of(hours, &usages) {
                write!(f, " memory {slope};")?;
            }
        }
        f.write_str(" gauges at zero")
    }
}

impl Figures {
    /// # Errors
    /// An exchange failed, or resources were not released.
    pub fn check(&self) -> Result<()> {
        let first: Vec<_> = self.failures.iter().take(5).collect();
        ensure!(first.is_empty(), "{self}; the first failures: {first:?}");
        for usages in by_process(&self.rest) {
            let (Some(first), Some(last)) = (usages.first(), usages.last()) else { continue };
            let most =
                usages.iter().take(usages.len() / 2).map(|usage| usage.rss_kib).max().unwrap_or_default();
            ensure!(last.rss_kib < most + most / 8 + SPARE_KIB, "memory grew: {self}");
            let leaks = Slope::of(&self.hours, &usages).is_some_and(Slope::is_leak);
            ensure!(!leaks, "memory leaks: {self}");
            // Up to two threads read files now and then, and stay for some seconds.
            ensure!(last.threads <= first.threads + 2, "threads are left: {self}");
        }
        Ok(())
    }
}

/// The growth of a process's memory at rest: the least squares line through the second half of a run.
#[derive(Clone, Copy, Debug)]
struct Slope {
    /// KiB in an hour.
    growth: f64,
    /// Half of the 95 % confidence interval.
    margin: f64,
}

impl Slope {
    /// `None` with fewer than six rests in the second half: too few to tell a leak from an allocator's steps.
    fn of(hours: &[f64], usages: &[Usage]) -> Option<Self> {
        let all: Vec<(f64, f64)> =
            hours.iter().copied().zip(usages.iter().map(|usage| usage.rss_kib as f64)).collect();
        let points = all.get(all.len() / 2..).filter(|points| points.len() >= 6)?;
        let count = points.len() as f64;
        let (x, y) =
            points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
        let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        let growth = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
        let squares: f64 = points.iter().map(|point| (point.1 - y - growth * (point.0 - x)).powi(2)).sum();
        // Student's t for 4 degrees of freedom, the least number; more of them make it smaller.
        let margin = 2.78 * (squares / (count - 2.0) / spread).sqrt();
        Some(Self { growth, margin })
    }

    /// Whether even the lower end of the interval is a leak.
    fn is_leak(self) -> bool {
        self.growth - self.margin > LEAK_KIB
    }
}

impl Display for Slope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self {
            slope if slope.is_leak() => "a leak",
            // A leak of that size would not have been seen.
            slope if slope.growth + slope.margin > LEAK_KIB => "no leak shown, and none excluded",
            _ => "no leak",
        };
        write!(f, "{:+.0} KiB/h +- {:.0} (95 %): {verdict}", self.growth, self.margin)
    }
}

/// The usage after each phase, grouped by process.
fn by_process(rest: &[Vec<Usage>]) -> Vec<Vec<Usage>> {
    let processes = rest.first().map_or(0, Vec::len);
    (0..processes).map(|at| rest.iter().filter_map(|phase| phase.get(at).copied()).collect()).collect()
}

/// The targets of a soak's clients.
struct World {
    frontends: Vec<Frontend>,
    echo: Endpoint,
    source: Endpoint,
    sink: Endpoint,
    stalled: Endpoint,
    resetting: Endpoint,
    figures: Mutex<Figures>,
    /// Failures before this time are excused.
    disturbed: Mutex<Instant>,
}

/// Runs the load over two servers, one with each kind of frontend, and two agents.
///
/// # Errors
/// The processes do not start, or resources are not released.
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
    let (mut rest, mut hours, began): (Vec<Vec<Usage>>, _, _) = (Vec::new(), Vec::new(), Instant::now());
    let phases = u32::try_from(plan.time.as_secs() / PHASE.as_secs())?.max(PHASES);
    for phase in 0..phases {
        let part = Soak { time: plan.time / phases, seed: plan.seed + u64::from(phase), ..plan };
        load(&mut pair, &world, part).await?;
        rest.push(at_rest(&pair, &world, rest.first()).await?);
        hours.push(began.elapsed().as_secs_f64() / 3600.0);
    }
    let mut figures = std::mem::take(&mut *world.figures.lock());
    (figures.rest, figures.hours) = (rest, hours);
    Ok(figures)
}

/// Runs the clients, and kills an agent and lanes repeatedly.
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
    let mut random = StdRng::seed_from_u64(plan.seed);
    let mut next_kill = Instant::now() + plan.kill_every;
    while Instant::now() + plan.cut_every < end {
        sleep(plan.cut_every).await;
        kill_a_lane(pair, world, &mut random).await?;
        if next_kill <= Instant::now() && next_kill < end {
            kill_an_agent(pair, world).await?;
            next_kill += plan.kill_every;
        }
    }
    while let Some(ended) = clients.join_next().await {
        ended.context("a client of the soak")?;
    }
    Ok(())
}

/// Always kills the last agent, because the others are measured.
async fn kill_an_agent(pair: &mut Pair, world: &World) -> Result<()> {
    *world.disturbed.lock() = Instant::now() + DEADLINE * 10;
    world.figures.lock().kills += 1;
    pair.pki.rotate()?;
    pair.agents.last_mut().context("an agent")?.process.restart()?;
    pair.wait_connected().await?;
    *world.disturbed.lock() = Instant::now();
    Ok(())
}

/// Kills one lane while every agent has another one to its server, so that nothing fails that begins later.
async fn kill_a_lane(pair: &Pair, world: &World, random: &mut StdRng) -> Result<()> {
    let (balancer, all) =
        (pair.balancer.as_ref().context("a balancer")?, 2 * pair.agents.len() * pair.servers.len());
    // A client may notice the loss before the balancer's task has ended.
    let before = std::mem::replace(&mut *world.disturbed.lock(), Instant::now() + DEADLINE * 10);
    let cut = balancer.cut_one(random.random_range(0..all), all).await;
    *world.disturbed.lock() = if cut { Instant::now() } else { before };
    world.figures.lock().cuts += u64::from(cut);
    Ok(())
}

impl World {
    async fn act(&self, random: &mut StdRng) {
        let frontend = &self.frontends[random.random_range(0..self.frontends.len())];
        // Small and large payloads are equally frequent.
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
            Err(error) if *self.disturbed.lock() >= began && !error.is::<Corrupt>() => figures.excused += 1,
            Err(error) => figures.failures.push(format!("{error:#}")),
        }
    }

    async fn download(&self, frontend: &Frontend) -> Result<()> {
        let mut conn = frontend.dial(&self.source.target()).await?;
        timeout(DEADLINE, DOWNLOAD.receive_all(&mut conn)).await.context("a download")?
    }

    /// An exchange that is broken intentionally.
    async fn break_off(&self, frontend: &Frontend, random: &mut StdRng) {
        let pause = Duration::from_millis(random.random_range(0..2_000));
        let (target, reads) = match random.random_range(0..4) {
            0 => (self.source.target(), true),
            1 => (self.stalled.target(), false),
            2 => (self.resetting.target(), false),
            _ => {
                // The answer is not awaited.
                let _ = timeout(pause / 1_000, frontend.dial(&self.echo.target())).await;
                return;
            }
        };
        let Ok(Ok(mut conn)) = timeout(DEADLINE, frontend.dial(&target)).await else { return };
        if reads {
            let _ = timeout(pause, conn.read_u8()).await;
        } else {
            // More than the path to a stalled endpoint can hold.
            let _ = timeout(pause, Payload::new(1, 512 << 10).send(&mut conn)).await;
        }
        sleep(pause).await;
    }
}

/// Waits until the processes that were not killed are idle, and returns their resource usage.
async fn at_rest(pair: &Pair, world: &World, before: Option<&Vec<Usage>>) -> Result<Vec<Usage>> {
    let (limit, busy) = (Duration::from_secs(180), Mutex::new(Vec::new()));
    let rested = until("gauges and descriptors at rest", limit, || async {
        // The gRPC client library continues an upload whose connection was dropped, and the upload ends only when its endpoint
        // has read it.
        world.stalled.release();
        let (mut held, mut now) = (Vec::new(), Vec::new());
        for server in &pair.servers {
            now.extend(server.metrics().await.ok()?.busy());
            held.push(server.process.usage().ok()?);
        }
        now.extend(pair.agent().metrics().await.ok()?.busy());
        held.push(pair.agent().process.usage().ok()?);
        // One of our own scrapes may be open, and lanes may have returned.
        let back = |(now, then): (&Usage, &Usage)| now.descriptors <= then.descriptors + 9;
        let rest = now.is_empty() && before.is_none_or(|before| held.iter().zip(before).all(back));
        *busy.lock() = now;
        rest.then_some(held)
    });
    rested.await.with_context(|| format!("busy still: {:?}", busy.lock()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of 2 hours in phases of 5 minutes whose memory is this function of the hour, in KiB.
    fn slope(memory: impl Fn(usize, f64) -> f64) -> String {
        let hours: Vec<f64> = (1..=24).map(|phase| f64::from(phase) / 12.0).collect();
        let usage =
            |(at, hour): (usize, &f64)| Usage { rss_kib: memory(at, *hour) as u64, ..Usage::default() };
        let usages: Vec<Usage> = hours.iter().enumerate().map(usage).collect();
        Slope::of(&hours, &usages).map_or_else(String::new, |slope| slope.to_string())
    }

    #[test]
    fn slope_tells_leaks_from_noise() {
        let noise = |at: usize| [0.0, 300.0, 100.0, 200.0][at % 4];
        assert!(slope(|at, _| 20_000.0 + noise(at)).ends_with(": no leak"));
        assert!(slope(|at, hour| 20_000.0 + 5_000.0 * hour + noise(at)).ends_with(": a leak"));
        let steps = slope(|at, _| 20_000.0 + 10.0 * noise(at));
        assert!(steps.ends_with("none excluded"), "{steps}");
        // The first half is warm-up.
        assert!(slope(|_, hour| 20_000.0 - 9_000.0 * (1.0 - hour).max(0.0)).ends_with(": no leak"));
        assert!(Slope::of(&[0.1, 0.2], &[Usage::default(); 2]).is_none());
    }
}
