//! A started, ready subject: a pair of programs, or the bare relay.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};

use crate::balancer::Balancer;
use crate::frontend::{Conn, Frontend, Mode};
use crate::pair::{Front, Pair, Setup};
use crate::pki::Pki;
use crate::ports::Lease;
use crate::process::{Process, Recipe};
use crate::wait::{DEADLINE, until};

/// The subject of a measurement.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A server and an agent, with one of the frontends.
    Pair {
        /// The server's executable.
        server: PathBuf,
        /// The agent's executable.
        agent: PathBuf,
        /// The frontend.
        mode: Mode,
        /// Further flags of both programs.
        flags: Vec<String>,
    },
    /// The bare relay, as two processes of the benchmark's own executable.
    Relay,
}

/// A started subject.
pub enum Rig {
    /// A pair.
    Pair(Box<Pair>),
    /// The relay: its processes, its socket, and the resources that must outlive them.
    Relay {
        /// The process on the clients' side.
        ingress_relay: Box<Process>,
        /// The process on the endpoints' side.
        egress_relay: Box<Process>,
        /// The socket for clients.
        socket: PathBuf,
        /// The folder with socket and certificates, and the port.
        kept: (TempDir, Lease, Option<Balancer>),
    },
}

/// Dials through a rig, from any task.
#[derive(Clone, Debug)]
pub enum Dialer {
    /// Through a frontend.
    Frontend(Box<Frontend>),
    /// Through the relay's socket.
    Relay(Arc<PathBuf>),
}

impl Subject {
    /// A description of the topology.
    pub fn topology(&self) -> &'static str {
        match self {
            Self::Pair { mode: Mode::Grpc, .. } => {
                "client -gRPC, Unix socket-> server -gRPC, one mutual TLS connection-> agent -TCP-> endpoint"
            }
            Self::Pair { mode: Mode::HttpConnect, .. } => {
                "client -HTTP CONNECT, Unix socket-> server -gRPC, one mutual TLS connection-> agent -TCP-> endpoint"
            }
            Self::Relay => "client -Unix socket-> relay -a TLS connection each-> relay -TCP-> endpoint",
        }
    }

    /// Starts the subject and waits until it is ready. `delay` is the one-way delay between its two processes, if any.
    pub async fn start(&self, delay: Option<Duration>) -> Result<Rig> {
        match self {
            Self::Pair { server, agent, mode, flags } => {
                let setup = Setup::new(*mode, Front::Unix).programs(server.clone(), agent.clone());
                let setup = flags.iter().fold(setup, |setup, flag| setup.server_arg(flag).agent_arg(flag));
                let setup = delay.into_iter().fold(setup, Setup::with_delay);
                Ok(Rig::Pair(Box::new(setup.start().await?)))
            }
            Self::Relay => relay(delay).await,
        }
    }
}

/// Starts the benchmark's own program again, in another role.
pub(super) fn again(name: &str, args: &[&str]) -> Result<Process> {
    Process::spawn(Recipe {
        name: name.into(),
        program: std::env::current_exe()?,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: Vec::new(),
    })
}

async fn relay(delay: Option<Duration>) -> Result<Rig> {
    let folder = tempfile::tempdir()?;
    Pki::create(folder.path())?;
    let (port, socket) = (Lease::new()?, folder.path().join("relay.sock"));
    let pki = folder.path().display().to_string();
    let egress_relay = again("the egress relay", &["relay-egress", &port.port().to_string(), &pki])?;
    let path = socket.display().to_string();
    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.port()));
    let delayed = match delay {
        Some(delay) => Some(Balancer::with_delay(vec![address], delay).await?),
        None => None,
    };
    if let Some(delayed) = &delayed {
        address = delayed.address();
    }
    let ingress_relay = again("the ingress relay", &["relay-ingress", &path, &address.to_string(), &pki])?;
    let both = || async {
        UnixStream::connect(&socket).await.ok()?;
        TcpStream::connect((Ipv4Addr::LOCALHOST, port.port())).await.ok()
    };
    until("the relay", DEADLINE, both)
        .await
        .map_err(|error| ingress_relay.explain(&egress_relay.explain(&error)))?;
    Ok(Rig::Relay {
        ingress_relay: Box::new(ingress_relay),
        egress_relay: Box::new(egress_relay),
        socket,
        kept: (folder, port, delayed),
    })
}

impl Rig {
    /// The process on the clients' side, and the one on the endpoints' side.
    pub fn processes(&self) -> (&Process, &Process) {
        match self {
            Self::Pair(pair) => (&pair.server().process, &pair.agent().process),
            Self::Relay { ingress_relay, egress_relay, .. } => {
                (ingress_relay.as_ref(), egress_relay.as_ref())
            }
        }
    }

    /// The frontend of a pair, if it is gRPC.
    pub fn grpc_frontend(&self) -> Option<&Frontend> {
        match self {
            Self::Pair(pair) => Some(pair.frontend()).filter(|frontend| frontend.mode == Mode::Grpc),
            Self::Relay { .. } => None,
        }
    }

    /// A dialer for use in any task.
    pub fn dialer(&self) -> Dialer {
        match self {
            Self::Pair(pair) => Dialer::Frontend(Box::new(pair.frontend().clone())),
            Self::Relay { socket, .. } => Dialer::Relay(Arc::new(socket.clone())),
        }
    }
}

impl Dialer {
    /// Dials `host:port`.
    pub async fn dial(&self, target: &str) -> Result<Conn> {
        match self {
            Self::Frontend(frontend) => frontend.dial(target).await.context("a dial"),
            Self::Relay(socket) => {
                let mut conn = UnixStream::connect(socket.as_path()).await?;
                conn.write_all(format!("{target}\n").as_bytes()).await?;
                Ok(Conn::Connect(Box::new(conn)))
            }
        }
    }
}
