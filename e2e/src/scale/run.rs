//! The measurement of one server with many light agents.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};

use super::light::{Auth, Plan};
use crate::exchange::pool;
use crate::figures::percentile;
use crate::frontend::{Conn, Frontend, SharedConnection};
use crate::metrics::{SERVER, Scrape};
use crate::pair::{Pair, Setup};
use crate::process::{Process, Recipe};
use crate::tokens::{AUDIENCE, USER, World};
use crate::usage::Usage;
use crate::wait::until;

/// Time limit for all agents to connect.
const CONNECT: Duration = Duration::from_secs(180);

/// The pause between two dials of the prober during a restart, and when it gives up a dial.
const PROBE_EVERY: Duration = Duration::from_millis(20);
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// The target of dials through light agents, which connect to nothing.
const TARGET: &str = "127.0.0.1:9";

/// The sizes of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The largest number of agents.
    pub agents: usize,
    /// The number of processes that they share.
    pub processes: usize,
    /// Idle connections.
    pub connections: usize,
    /// Dials for each point.
    pub dials: usize,
    /// Time over which CPU at rest is measured.
    pub rest: Duration,
    /// How the agents authenticate.
    pub auth: Auth,
}

/// The server with one number of agents.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The agents.
    pub agents: usize,
    /// Time until all were connected.
    pub connected: Duration,
    /// The server.
    pub usage: Usage,
    /// CPU at rest, in percent of one CPU.
    pub rest: f64,
    /// Median and 99th percentile of a dial.
    pub dial: [Duration; 2],
    /// The server's CPU time of a dial.
    pub dial_cpu: Duration,
}

/// All results.
#[derive(Clone, Debug)]
pub struct Measured {
    options: Options,
    /// The points, by number of agents.
    pub points: Vec<Point>,
    /// The server's resident memory and descriptors with the idle connections.
    pub with_connections: Usage,
    /// After the restart: until the first dial succeeded, and until all agents were connected.
    pub back: [Duration; 2],
    /// The 99th percentile and the maximum of dials after the first success, and how many of them failed.
    pub storm: ([Duration; 2], usize, usize),
    /// Token reviews since the restart, and the most at once.
    pub reviews: Option<[usize; 2]>,
}

/// Runs the measurement. `light` starts this program again as light agents, with [`Plan`]'s fields as its last arguments.
pub async fn run(options: Options, light: &[&str]) -> Result<Measured> {
    let world = World::new().await?;
    let mut rig = Rig::start(options, &world, light).await?;
    let mut points = Vec::new();
    for count in [1, 100, options.agents] {
        points.push(rig.point(count.min(options.agents)).await?);
    }
    let (conns, with_connections) = rig.connect().await?;
    drop(conns);
    let asked = world.api.count("tokenreviews");
    let (back, storm) = rig.restart().await?;
    let reviews = (options.auth == Auth::Token)
        .then(|| [world.api.count("tokenreviews") - asked, world.api.most_at_once()]);
    Ok(Measured { options, points, with_connections, back, storm, reviews })
}

struct Rig<'a> {
    options: Options,
    pair: Pair,
    fleets: Vec<Process>,
    started: usize,
    light: &'a [&'a str],
}

impl<'a> Rig<'a> {
    async fn start(options: Options, world: &World, light: &'a [&'a str]) -> Result<Self> {
        let setup = match options.auth {
            Auth::Certificate => Setup::http_connect(),
            Auth::Token => {
                for number in 0..options.agents {
                    let user = json!({"username": USER, "extra": {}});
                    let review = json!({"authenticated": true, "user": user, "audiences": [AUDIENCE]});
                    world.api.set_review(&Plan::token(number), review);
                }
                world.require("none", Setup::http_connect())?
            }
        };
        let further = setup.and(crate::frontend::Mode::Grpc, crate::pair::Front::Unix);
        let pair = further.agents(0).start().await?;
        Ok(Self { options, pair, fleets: Vec::new(), started: 0, light })
    }

    /// Starts further agents until there are `count`.
    fn grow(&mut self, count: usize) -> Result<()> {
        let missing = count - self.started;
        let processes = self.options.processes.min(missing.div_ceil(100)).max(1);
        for process in 0..processes {
            let share = missing / processes + usize::from(process < missing % processes);
            let mut args: Vec<String> = self.light.iter().map(|arg| (*arg).to_owned()).collect();
            args.extend([
                format!("--server={}", self.pair.server().agent_address()),
                format!("--first={}", self.started),
                format!("--count={share}"),
                format!("--pki={}", self.pair.folder().display()),
                format!("--auth={}", self.options.auth.name()),
            ]);
            let program = std::env::current_exe()?;
            self.fleets.push(Process::spawn(Recipe {
                name: "light agents".into(),
                program,
                args,
                env: Vec::new(),
            })?);
            self.started += share;
        }
        Ok(())
    }

    /// Waits until the server has this number of agents.
    async fn has(&self, count: usize) -> Result<()> {
        let what = format!("{count} agents at the server");
        until(&what, CONNECT, || async { (self.agents().await? >= count).then_some(()) }).await
    }

    async fn agents(&self) -> Option<usize> {
        let scrape = Scrape::fetch(self.pair.server().health).await.ok()?;
        let name = format!("{SERVER}grpc_connections");
        Some(scrape.value(&name, &[("service_method", "Connect")]) as usize)
    }

    async fn point(&mut self, count: usize) -> Result<Point> {
        let began = Instant::now();
        if count > self.started {
            self.grow(count)?;
        }
        self.has(count).await?;
        let connected = began.elapsed();
        // Handshakes leave memory that is given back, and agents that have just connected are measured by probes.
        sleep(Duration::from_secs(2)).await;
        let process = &self.pair.server().process;
        let before = process.usage()?;
        sleep(self.options.rest).await;
        let usage = process.usage()?;
        let rest = (usage.cpu - before.cpu).as_secs_f64() / self.options.rest.as_secs_f64() * 100.0;
        let mut times = Vec::with_capacity(self.options.dials);
        for _ in 0..self.options.dials {
            let began = Instant::now();
            drop(self.pair.frontend().dial(TARGET).await?);
            times.push(began.elapsed());
        }
        let dial_cpu = (process.usage()?.cpu - usage.cpu) / u32::try_from(self.options.dials.max(1))?;
        let dial = [50, 99].map(|percent| percentile(&mut times, percent).unwrap_or_default());
        Ok(Point { agents: count, connected, usage, rest, dial, dial_cpu })
    }

    /// Opens idle connections as streams of gRPC connections.
    async fn connect(&self) -> Result<(Vec<Conn>, Usage)> {
        let grpc = self.pair.server().further.first().context("the gRPC frontend")?;
        let shared = SharedConnection::open(grpc, 16 << 10).await?;
        let dials = (0..self.options.connections).map(|_| {
            let shared = shared.clone();
            async move { shared.dial(TARGET).await }
        });
        let conns = pool(50, dials).await?;
        Ok((conns, self.pair.server().process.usage()?))
    }

    /// Kills the server and starts it again, beside a prober.
    async fn restart(&mut self) -> Result<([Duration; 2], ([Duration; 2], usize, usize))> {
        let frontend = self.pair.frontend().clone();
        let restarted = Instant::now();
        self.pair.server_mut().restart()?;
        let prober = Prober::start(frontend);
        self.has(self.options.agents).await?;
        let all = restarted.elapsed();
        let (first, storm) = prober.result()?;
        Ok(([first - restarted, all], storm))
    }
}

/// Dials every [`PROBE_EVERY`], whether earlier dials have been answered or not.
struct Prober {
    dials: Arc<Mutex<Vec<(Instant, Duration, bool)>>>,
    _task: JoinSet<()>,
}

/// The 99th percentile and the longest time of dials, the number of failed ones, and of all.
type Storm = ([Duration; 2], usize, usize);

impl Prober {
    fn start(frontend: Frontend) -> Self {
        let dials = Arc::<Mutex<Vec<_>>>::default();
        let noted = Arc::clone(&dials);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let (mut ticks, mut under_way) = (interval(PROBE_EVERY), JoinSet::new());
            loop {
                ticks.tick().await;
                while under_way.try_join_next().is_some() {}
                let (frontend, noted) = (frontend.clone(), Arc::clone(&noted));
                under_way.spawn(async move {
                    let began = Instant::now();
                    let dialed = timeout(PROBE_LIMIT, frontend.dial(TARGET)).await;
                    let succeeded = matches!(dialed, Ok(Ok(_)));
                    noted.lock().push((began, began.elapsed(), succeeded));
                });
            }
        });
        Self { dials, _task: task }
    }

    /// The moment of the first success; then percentiles, failures and number of the dials that began after it.
    fn result(&self) -> Result<(Instant, Storm)> {
        let dials = self.dials.lock();
        let succeeded = dials.iter().filter(|(.., succeeded)| *succeeded);
        let first = succeeded.map(|(began, took, _)| *began + *took).min().context("no dial succeeded")?;
        let after: Vec<_> = dials.iter().filter(|(began, ..)| *began >= first).collect();
        ensure!(!after.is_empty(), "no dial after the first success");
        let mut times: Vec<Duration> = after.iter().map(|(_, took, _)| *took).collect();
        let p99 = percentile(&mut times, 99).unwrap_or_default();
        let most = times.last().copied().unwrap_or_default();
        let failed = after.iter().filter(|(.., succeeded)| !succeeded).count();
        Ok((first, ([p99, most], failed, after.len())))
    }
}

impl Measured {
    /// The server's memory of an idle agent, in KiB, from the points with 100 and with the most agents.
    pub fn kib_per_agent(&self) -> f64 {
        let [.., few, many] = self.points.as_slice() else { return 0.0 };
        let agents = many.agents.saturating_sub(few.agents).max(1);
        (many.usage.rss_kib as f64 - few.usage.rss_kib as f64) / agents as f64
    }

    /// The server's CPU of idle agents, in percent of a CPU for each thousand.
    fn rest_per_thousand(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.rest * 1_000.0 / point.agents.max(1) as f64)
    }

    /// Fails unless the goals are met. The time limit of a restart is for 16,000 agents: it is scaled.
    pub fn check(&self) -> Result<()> {
        const MOST_KIB: f64 = 64.0;
        const SLOWEST_DIAL: Duration = Duration::from_secs(1);
        // Agents' pauses alone take some seconds.
        const LEAST: Duration = Duration::from_secs(10);
        let within = Duration::from_secs(60).mul_f64(self.options.agents as f64 / 16_000.0).max(LEAST);
        ensure!(self.kib_per_agent() <= MOST_KIB, "{:.1} KiB for an idle agent", self.kib_per_agent());
        ensure!(self.back[1] <= within, "all agents were back after {:.1?}, not {within:.1?}", self.back[1]);
        let ([_, most], failed, dials) = self.storm;
        ensure!(
            most <= SLOWEST_DIAL && failed == 0,
            "during the storm {failed} of {dials} dials failed, slowest {most:.2?}"
        );
        if let Some([reviews, at_once]) = self.reviews {
            ensure!(at_once <= 32, "{at_once} token reviews at once");
            ensure!(
                reviews <= self.options.agents * 2,
                "{reviews} token reviews for {} agents",
                self.options.agents
            );
        }
        Ok(())
    }
}

impl Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| agents | all connected | RSS | descriptors | CPU at rest | dial p50, p99 | CPU of a dial |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        for Point { agents, connected, usage, rest, dial: [p50, p99], dial_cpu } in &self.points {
            write!(f, "| {agents} | {connected:.1?} | {:.1} MiB ", usage.rss_kib as f64 / 1024.0)?;
            writeln!(f, "| {} | {rest:.1} % | {p50:.2?}, {p99:.2?} | {dial_cpu:.0?} |", usage.descriptors)?;
        }
        writeln!(
            f,
            "\nan idle agent: {:.1} KiB; a thousand: {:.2} % of a CPU",
            self.kib_per_agent(),
            self.rest_per_thousand()
        )?;
        let Usage { rss_kib, descriptors, .. } = self.with_connections;
        writeln!(
            f,
            "{} idle connections: {:.1} MiB, {descriptors} descriptors",
            self.options.connections,
            rss_kib as f64 / 1024.0
        )?;
        let ([p99, most], failed, dials) = self.storm;
        let [first, all] = self.back;
        writeln!(
            f,
            "restart: first dial after {first:.2?}, all agents after {all:.1?}; then dials p99 {p99:.1?}, max {most:.1?}, {failed} of {dials} failed"
        )?;
        let rate = self.options.agents as f64 / all.as_secs_f64();
        writeln!(
            f,
            "modelled from that: {rate:.0} agents a second, so 16,000 after {:.0} s",
            16_000.0 / rate
        )?;
        if let Some([reviews, at_once]) = self.reviews {
            writeln!(f, "token reviews since the restart: {reviews}, {at_once} at once at most")?;
        }
        Ok(())
    }
}
