//! The subject of a measurement: a server and an agent on either side of a path, or TCP alone.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpStream;

use super::emulator::WideArea;
use crate::frontend::{Conn, Frontend, Mode};
use crate::netns::NEAR;
use crate::pair::{Agent, Front, Pair, Setup};

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
    },
    /// One TCP connection for each client.
    Tcp,
}

impl Subject {
    /// A pair of programs.
    pub fn pair(name: &str, server: &Path, agent: &Path, mode: Mode) -> Self {
        Self::Pair { name: name.into(), server: server.into(), agent: agent.into(), mode }
    }

    /// The name in the report.
    pub fn name(&self) -> String {
        match self {
            Self::Pair { name, mode, .. } => format!("{name}, {}", mode.flag()),
            Self::Tcp => "TCP".into(),
        }
    }

    /// Starts the subject and waits until it is usable. Must be called on the near side.
    pub(super) async fn start(&self, area: &WideArea) -> Result<Rig> {
        let Self::Pair { server, agent, mode, .. } = self else { return Ok(Rig::Tcp) };
        let setup = Setup::new(*mode, Front::Unix)
            .agents(0)
            .programs(server.clone(), agent.clone())
            .server_arg(format!("--agent-bind-address={NEAR}"));
        let mut pair = setup.start().await?;
        let address = SocketAddr::from((NEAR, pair.server().agent_port()));
        let agent = area.far.enter(|| pair.agent_at("agent", address))?;
        pair.server_mut().wait_ready().await.map_err(|error| agent.process.explain(&error))?;
        Ok(Rig::Pair(Box::new((agent, pair))))
    }
}

/// A started subject.
pub(super) enum Rig {
    /// Dropped in this order: the agent ends before the server.
    Pair(Box<(Agent, Pair)>),
    Tcp,
}

/// Dials from any task on the near side.
#[derive(Clone)]
pub(super) enum Dialer {
    Frontend(Box<Frontend>),
    Tcp,
}

impl Rig {
    pub(super) fn dialer(&self) -> Dialer {
        match self {
            Self::Pair(pair) => Dialer::Frontend(Box::new(pair.1.frontend().clone())),
            Self::Tcp => Dialer::Tcp,
        }
    }

    /// CPU time of both programs so far.
    pub(super) fn cpu(&self) -> Result<Option<Duration>> {
        match self {
            Self::Pair(pair) => {
                let (agent, pair) = pair.as_ref();
                Ok(Some(agent.process.usage()?.cpu + pair.server().process.usage()?.cpu))
            }
            Self::Tcp => Ok(None),
        }
    }
}

impl Dialer {
    pub(super) async fn dial(&self, target: SocketAddr) -> Result<Conn> {
        match self {
            Self::Frontend(frontend) => frontend.dial(&target.to_string()).await.context("a dial"),
            Self::Tcp => {
                let stream = TcpStream::connect(target).await?;
                stream.set_nodelay(true)?;
                Ok(Conn::Connect(Box::new(stream)))
            }
        }
    }
}
