//! Faults that the two programs must survive, and threats that they must resist: one row for each, one function for each row.
//!
//! A row injects the real fault beside a load with checksums, and fails unless everything that it names holds. It returns the
//! time until the fault was noticed, and the time until everything worked again. Rows about single packets have nothing to
//! time: they are tests of `e2e/tests/suite`, which this program starts with the same programs.

mod api;
mod cases;
mod floods;
mod heads;
mod host;
mod load;
mod losses;
mod names;
mod network;
mod report;
mod stalls;
mod storms;
mod table;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::report::{Column, markdown};
pub use self::table::ROWS;
use crate::netns::Network;
use crate::pair::{Pair, Setup};
use crate::scenarios::{in_network, unless_signaled};
use crate::usage::Usage;
use crate::wait::until;

/// How long gauges and descriptors may take to return to the values before the fault.
const AT_REST: Duration = Duration::from_secs(5);

/// Descriptors that a scrape of this program and a retried dial may hold.
const SPARE_DESCRIPTORS: usize = 3;

/// The programs under test.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// A server and an agent instead of those in the environment.
    pub programs: Option<(PathBuf, PathBuf)>,
    /// Go's server and agent, for rows that mix programs.
    pub go: Option<(PathBuf, PathBuf)>,
    /// The test program `suite`.
    pub suite: Option<PathBuf>,
}

/// The measured times of one round.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// From the fault until it was noticed, or until clients had their answer.
    pub noticed: Option<Duration>,
    /// From the end of the fault (or from the fault, if it has no end) until everything worked again.
    pub recovered: Option<Duration>,
    /// Other figures.
    pub note: String,
}

impl Times {
    fn new(noticed: Duration, recovered: Duration) -> Self {
        Self { noticed: Some(noticed), recovered: Some(recovered), note: String::new() }
    }

    fn note(mut self, note: impl fmt::Display) -> Self {
        self.note = note.to_string();
        self
    }
}

/// When a row runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// It takes less than 20 s.
    Quick,
    /// It takes longer.
    Nightly,
    /// It takes minutes, and runs once however many rounds were asked for.
    Once,
}

/// One fault or threat.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its number: of a fault, or of a threat with a T.
    pub number: &'static str,
    /// The fault.
    pub name: &'static str,
    /// What must hold.
    pub holds: &'static str,
    /// When it runs.
    pub length: Length,
    /// Whether Go's programs can run it, too.
    pub go: bool,
    /// How it was shown to fail without its defense.
    pub shown: &'static str,
    /// Runs one round.
    pub run: fn(&Context) -> Result<Times>,
}

impl Context {
    /// A pair of the programs under test.
    fn with(&self, setup: Setup) -> Setup {
        match self.programs.clone() {
            Some((server, agent)) => setup.programs(server, agent),
            None => setup,
        }
    }

    /// Whether the programs are ours: only they have all metrics.
    fn is_native(&self) -> bool {
        self.programs.is_none()
    }
}

/// Runs a round on a new runtime.
fn alone<F: Future<Output = Result<Times>>>(round: impl FnOnce() -> F) -> Result<Times> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(unless_signaled(round()));
    runtime.shutdown_background();
    done
}

/// Runs a round on the near side of a new network with this number of far sides.
fn networked(far: u8, round: impl AsyncFnOnce(&Network) -> Result<Times> + Send) -> Result<Times> {
    in_network(far, round)
}

/// The resources of a pair's processes before a fault.
struct Base {
    /// The process id and the usage of each process.
    usages: Vec<(u32, Usage)>,
}

impl Base {
    fn of(pair: &Pair) -> Result<Self> {
        let processes = pair.servers.iter().map(|server| &server.process);
        let processes = processes.chain(pair.agents.iter().map(|agent| &agent.process));
        let usages = processes.map(|process| Ok((process.pid(), process.usage()?))).collect::<Result<_>>()?;
        Ok(Self { usages })
    }

    /// Waits until the gauges of all processes are at zero, and the descriptors and threads of those that still run are those
    /// from before. Go's programs have other gauges: only their descriptors count.
    async fn back(&self, context: &Context, pair: &Pair) -> Result<()> {
        let left = Mutex::new(Vec::new());
        let rested = until("gauges and descriptors at rest", AT_REST, || async {
            let mut busy = Vec::new();
            for address in pair.servers.iter().map(|s| s.health).chain(pair.agents.iter().map(|a| a.health)) {
                if context.is_native() {
                    busy.extend(crate::metrics::Scrape::fetch(address).await.ok()?.busy());
                }
            }
            for (pid, before) in &self.usages {
                let Ok(now) = Usage::of(*pid) else { continue };
                if now.descriptors > before.descriptors + SPARE_DESCRIPTORS {
                    busy.push(format!("{} descriptors, not {}", now.descriptors, before.descriptors));
                }
            }
            let idle = busy.is_empty();
            *left.lock() = busy;
            idle.then_some(())
        });
        rested.await.with_context(|| format!("left: {:?}", left.lock()))
    }
}

/// The time since `began`, which must not exceed `limit`.
fn within(what: &str, began: Instant, limit: Duration) -> Result<Duration> {
    let took = began.elapsed();
    ensure!(took <= limit, "{what} after {took:.2?}, not within {limit:?}");
    Ok(took)
}
