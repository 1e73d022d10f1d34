//! The cases. Each starts with a fresh, idle pair and adds figures to a report.

use std::time::Duration;

use anyhow::Result;

use super::endpoint::CommandEndpoint;
use super::report::{Report, Unit};
use super::rig::{Rig, Subject};
use super::{beside, bulk, connects, small, stalls};
use crate::usage::Usage;

pub(super) const MIB: u64 = 1 << 20;
/// Time limit of a case; a case that exceeds it is stuck.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// The amount of work of each case.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// MiB of each bulk case over all its connections.
    pub bulk: u64,
    /// Round trips of the ping-pong.
    pub pings: usize,
    /// Seconds of the fan-out, connect and busy cases.
    pub seconds: u64,
    /// Number of idle connections whose memory is measured.
    pub idle: usize,
    /// Number of uploads.
    pub uploads: usize,
    /// Number of idle connections beside the busy ones.
    pub many: usize,
    /// Number of busy connections beside the idle ones.
    pub busy: usize,
}

/// A group of figures that can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Memory at the start and of idle connections.
    Memory,
    /// Bulk transfers.
    Bulk,
    /// Bulk transfers over the streams of one HTTP/2 connection.
    OneConnection,
    /// Round trips of one connection.
    Ping,
    /// Bulk transfers at a high RTT.
    HighBdp,
    /// Many small messages.
    FanOut,
    /// The connect rate.
    Connects,
    /// Uploads closed at once.
    Uploads,
    /// Downloads beside stalled readers.
    Stalls,
    /// The latency beside bulk transfers and beside stalls.
    Beside,
    /// Very many connections.
    Many,
}

impl Case {
    /// All cases in the order of their run, with their names on the command line.
    pub const ALL: [(&str, Self); 11] = [
        ("memory", Self::Memory),
        ("bulk", Self::Bulk),
        ("one-connection", Self::OneConnection),
        ("high-bdp", Self::HighBdp),
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
            Self::OneConnection => bulk::one_connection(rig, endpoint, load.bulk, report).await,
            Self::HighBdp => bulk::measure(rig, endpoint, load.bulk / 4, ", 50 ms away", report).await,
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
    // 50 ms RTT, as between two regions of a continent.
    let delay = (case == Case::HighBdp).then_some(Duration::from_millis(25));
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

/// CPU time of both processes so far.
pub(super) fn cpu(rig: &Rig) -> Result<Duration> {
    let (server, agent) = usage(rig)?;
    Ok(server.cpu + agent.cpu)
}

/// The result of a case within its time limit; a failed case has no figure, and its error is printed.
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
