//! The cases. Each starts from a fresh pair at rest and yields figures.

use std::time::Duration;

use anyhow::Result;

use super::endpoint::CommandEndpoint;
use super::report::{Report, Unit};
use super::rig::{Rig, Subject};
use super::{beside, bulk, connects, small, stalls};
use crate::usage::Usage;

pub(super) const MIB: u64 = 1 << 20;
/// What no case may exceed: something is stuck.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// How much each case does.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// MiB of each bulk case, over all its connections.
    pub bulk: u64,
    /// Round trips of the ping-pong.
    pub pings: usize,
    /// Seconds of the fan-out, connect and busy cases.
    pub seconds: u64,
    /// Idle connections whose memory is taken.
    pub idle: usize,
    /// Uploads.
    pub uploads: usize,
    /// Connections that are idle beside the busy ones.
    pub many: usize,
    /// Connections that are busy beside the idle ones.
    pub busy: usize,
}

/// A group of figures that can be asked for alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// At start, and of idle connections.
    Memory,
    /// Bulk transfers.
    Bulk,
    /// A ping-pong.
    Ping,
    /// Bulk transfers to an agent that is far away.
    Far,
    /// Many small messages.
    FanOut,
    /// The connect rate.
    Connects,
    /// Uploads closed at once.
    Uploads,
    /// Downloads beside stalled readers.
    Stalls,
    /// The latency beside bulk and beside stalls.
    Beside,
    /// Very many connections.
    Many,
}

impl Case {
    /// All of them, in the order of their run, by the names of the command line.
    pub const ALL: [(&str, Self); 10] = [
        ("memory", Self::Memory),
        ("bulk", Self::Bulk),
        ("far", Self::Far),
        ("ping", Self::Ping),
        ("fan-out", Self::FanOut),
        ("connects", Self::Connects),
        ("uploads", Self::Uploads),
        ("stalls", Self::Stalls),
        ("beside", Self::Beside),
        ("many", Self::Many),
    ];

    async fn run(self, rig: &Rig, endpoint: &CommandEndpoint, load: Load, report: &mut Report) -> Result<()> {
        match self {
            Self::Memory => {
                at("start", rig, report)?;
                connects::idle(rig, endpoint, load, report).await
            }
            Self::Bulk => bulk::measure(rig, endpoint, load.bulk, "", report).await,
            Self::Far => bulk::measure(rig, endpoint, load.bulk / 4, ", 50 ms away", report).await,
            Self::Ping => small::ping_pongs(rig, endpoint, load, report).await,
            Self::FanOut => small::fan_out(rig, endpoint, load, report).await,
            Self::Connects => {
                connects::connects(rig, endpoint, load, 1, report).await?;
                connects::connects(rig, endpoint, load, 16, report).await
            }
            Self::Uploads => stalls::uploads(rig, load, report).await,
            Self::Stalls => stalls::stalled(rig, endpoint, report).await,
            Self::Beside => {
                beside::measure(rig, endpoint, report).await;
                at("the end of stalls", rig, report)
            }
            Self::Many => {
                connects::many(rig, endpoint, load, report).await;
                Ok(())
            }
        }
    }
}

/// Starts the subject and runs a case once.
pub async fn measure(subject: &Subject, case: Case, load: Load, report: &mut Report) -> Result<()> {
    // 50 ms there and back, as between two regions of a continent.
    let delay = (case == Case::Far).then_some(Duration::from_millis(25));
    let rig = subject.start(delay).await?;
    // With that many connections the clients need all descriptors of this process.
    let endpoint = match case {
        Case::Many => CommandEndpoint::apart().await?,
        _ => CommandEndpoint::start().await?,
    };
    case.run(&rig, &endpoint, load, report).await
}

fn at(time: &str, rig: &Rig, report: &mut Report) -> Result<()> {
    let (server, agent) = usage(rig)?;
    report.add(&format!("RSS at {time}, server"), Unit::Mib, server.rss_kib as f64 / 1024.0);
    report.add(&format!("RSS at {time}, agent"), Unit::Mib, agent.rss_kib as f64 / 1024.0);
    Ok(())
}

pub(super) fn usage(rig: &Rig) -> Result<(Usage, Usage)> {
    let (server, agent) = rig.processes();
    Ok((server.usage()?, agent.usage()?))
}

/// Processor time of both processes so far.
pub(super) fn cpu(rig: &Rig) -> Result<Duration> {
    let (server, agent) = usage(rig)?;
    Ok(server.cpu + agent.cpu)
}

/// What a case yields in time; what is not served has no figure, and why is said.
pub(super) async fn served<T>(
    name: &str,
    limit: Duration,
    case: impl Future<Output = Result<T>>,
) -> Option<T> {
    match tokio::time::timeout(limit, case).await {
        Ok(Ok(figures)) => Some(figures),
        Ok(Err(error)) => {
            eprintln!("{name}: {error:#}");
            None
        }
        Err(_) => {
            eprintln!("{name}: not through after {limit:?}");
            None
        }
    }
}
