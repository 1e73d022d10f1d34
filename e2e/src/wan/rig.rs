//! The subject of a measurement: a server and an agent on either side of a path, or TLS alone.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::ClientConfig;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;

use super::emulator::WideArea;
use crate::frontend::{Conn, Frontend, Mode, tls_socket};
use crate::netns::NEAR;
use crate::pair::{Agent, Front, Pair, Setup};
use crate::pki::Pki;
use crate::sockets::connections;

/// An agent that opened no lane for this time opens no other: it measures the RTT a second after its start, and waits for ten times
/// as long as an attempt took.
const LANES_WITHIN: Duration = Duration::from_secs(5);

/// A subject that a cell compares.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A server and an agent.
    Pair {
        /// Its name in the report.
        name: String,
        /// The server's executable.
        server: PathBuf,
        /// The agent's executable.
        agent: PathBuf,
        /// The frontend.
        mode: Mode,
        /// Further flags of the agent.
        agent_flags: Vec<String>,
    },
    /// One TLS connection for each client.
    Tls,
}

impl Subject {
    /// A pair of programs.
    pub fn pair(name: &str, server: &Path, agent: &Path, mode: Mode, agent_flags: &[String]) -> Self {
        let (server, agent, agent_flags) = (server.into(), agent.into(), agent_flags.to_vec());
        Self::Pair { name: name.into(), server, agent, mode, agent_flags }
    }

    /// The name in the report.
    pub fn name(&self) -> String {
        match self {
            Self::Pair { name, mode, .. } => format!("{name}, {}", mode.flag()),
            Self::Tls => "TLS".into(),
        }
    }

    /// Starts the subject and waits until it is usable. Must be called on the near side.
    pub(super) async fn start(&self, area: &WideArea) -> Result<Rig> {
        let Self::Pair { server, agent, mode, agent_flags, .. } = self else {
            let folder = tempfile::tempdir()?;
            return Ok(Rig::Tls { pki: Box::new(Pki::create(folder.path())?), _folder: folder });
        };
        let setup = agent_flags.iter().fold(Setup::new(*mode, Front::Unix), Setup::agent_arg);
        let setup = setup
            .agents(0)
            .programs(server.clone(), agent.clone())
            .server_arg(format!("--agent-bind-address={NEAR}"));
        let mut pair = setup.start().await?;
        let address = SocketAddr::from((NEAR, pair.server().agent_port()));
        let agent = area.far.enter(|| pair.agent_at("agent", address))?;
        pair.server_mut().wait_ready().await.map_err(|error| agent.process.explain(&error))?;
        let (mut lanes, mut since) = (0, Instant::now());
        while since.elapsed() < LANES_WITHIN {
            let now = connections(agent.process.pid(), address)?;
            if std::mem::replace(&mut lanes, now) != now {
                since = Instant::now();
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(Rig::Pair(Box::new((agent, pair))))
    }
}

/// A started subject.
pub(super) enum Rig {
    /// Dropped in this order: the agent ends before the server.
    Pair(Box<(Agent, Pair)>),
    Tls {
        pki: Box<Pki>,
        _folder: TempDir,
    },
}

/// Dials from any task on the near side.
#[derive(Clone)]
pub(super) enum Dialer {
    Frontend(Box<Frontend>),
    Tls(Arc<ClientConfig>),
}

impl Rig {
    pub(super) fn dialer(&self) -> Result<Dialer> {
        Ok(match self {
            Self::Pair(pair) => Dialer::Frontend(Box::new(pair.1.frontend().clone())),
            Self::Tls { pki, .. } => Dialer::Tls(pki.agent_client()?),
        })
    }

    /// The endpoint's part of TLS, if it has one.
    pub(super) fn acceptor(&self) -> Result<Option<TlsAcceptor>> {
        match self {
            Self::Pair(_) => Ok(None),
            Self::Tls { pki, .. } => Ok(Some(TlsAcceptor::from(pki.agent_server()?))),
        }
    }

    /// CPU time of both programs so far.
    pub(super) fn cpu(&self) -> Result<Option<Duration>> {
        match self {
            Self::Pair(pair) => {
                let (agent, pair) = pair.as_ref();
                Ok(Some(agent.process.usage()?.cpu + pair.server().process.usage()?.cpu))
            }
            Self::Tls { .. } => Ok(None),
        }
    }
}

impl Dialer {
    pub(super) async fn dial(&self, target: SocketAddr) -> Result<Conn> {
        match self {
            Self::Frontend(frontend) => frontend.dial(&target.to_string()).await.context("a dial"),
            Self::Tls(config) => Ok(Conn::Connect(Box::new(tls_socket(target, Arc::clone(config)).await?))),
        }
    }
}
