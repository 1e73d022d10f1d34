//! The memory of many idle agents at a server, and of many idle servers at an agent, without and with lanes.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::JoinSet;

use crate::adversarial::{AdversarialAgent, AgentMeta};
use crate::pair::Setup;
use crate::usage::Usage;

/// Agents that connect at the same time.
const AT_ONCE: usize = 16;

/// The most memory that one idle lane may cost at one end, in KiB.
const MOST_KIB: u64 = 40;

/// One end's usage without and with lanes.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// With one lane for each peer.
    pub one: Usage,
    /// With all lanes.
    pub all: Usage,
    /// The number of further lanes.
    pub further: usize,
}

impl Cost {
    /// Memory of one further lane in KiB.
    pub fn kib(&self) -> u64 {
        self.all.rss_kib.saturating_sub(self.one.rss_kib) / self.further.max(1) as u64
    }

    /// # Errors
    /// A lane costs too much.
    pub fn check(&self) -> Result<()> {
        ensure!(self.kib() <= MOST_KIB, "a lane costs {} KiB: {self:?}", self.kib());
        Ok(())
    }
}

/// A server with this many idle agents of one and of two lanes.
///
/// # Errors
/// An agent cannot connect.
pub async fn agents_at_a_server(count: usize) -> Result<Cost> {
    Ok(Cost { one: with_agents(count, 1).await?, all: with_agents(count, 2).await?, further: count })
}

async fn with_agents(count: usize, lanes: usize) -> Result<Usage> {
    let pair = Setup::grpc().agents(0).start().await?;
    let port = pair.server().agent_port();
    let (mut connecting, mut open) = (JoinSet::new(), Vec::new());
    for number in 0..count * lanes {
        if connecting.len() >= AT_ONCE {
            open.extend(connecting.join_next().await.transpose()?);
        }
        let (pki, process) = (pair.pki.clone(), number / lanes);
        let meta = AgentMeta::new(&format!("agent-{process}"), "")
            .with("konnectivity-capabilities", &format!("pings, lanes={process}"));
        connecting.spawn(async move { AdversarialAgent::connect(port, &pki, &meta).await });
    }
    open.extend(connecting.join_all().await);
    let _open = open.into_iter().collect::<Result<Vec<_>>>()?;
    pair.server().wait_metric("connected_agents", &[], count as f64).await?;
    pair.server().process.usage()
}

/// An agent with this many idle servers, with one and with four lanes to each.
///
/// # Errors
/// A server is not reached.
pub async fn servers_at_an_agent(count: usize) -> Result<Cost> {
    Ok(Cost { one: with_servers(count, 1).await?, all: with_servers(count, 4).await?, further: 3 * count })
}

async fn with_servers(count: usize, lanes: usize) -> Result<Usage> {
    let setup = Setup::grpc().servers(count).server_arg(format!("--server-count={count}"));
    let pair = setup.agent_arg(format!("--lanes={lanes}")).start().await?;
    pair.wait_lanes(count * lanes, Duration::from_secs(120)).await?;
    pair.agent().process.usage()
}
