//! The programs start with the command lines of public distributions, run, and stop on SIGTERM.
//!
//! `command_lines.json` has their flags as the manifests have them; template variables have example values. The harness
//! replaces what a test cannot have: files, sockets, ports, hosts, and variables of the pod's environment.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::http1::get;
use e2e::pair::{Pair, Setup};
use e2e::pki::Pki;
use e2e::ports::Lease;
use e2e::process::{Process, Recipe, Signal};
use e2e::program::Program;
use e2e::wait::{DEADLINE, until};
use fake_apiserver::FakeApi;
use serde::Deserialize;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Number of programs that run at once.
const AT_ONCE: usize = 6;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandLine {
    /// The distribution, and the program's role.
    name: String,
    program: String,
    /// The manifest, at a tag or commit where a repository has it.
    source: String,
    /// Separated by blanks; no value contains one.
    flags: String,
}

fn command_lines() -> Result<Vec<CommandLine>> {
    serde_json::from_str(include_str!("command_lines.json")).context("command_lines.json")
}

/// What all programs of the test share: certificates, a Kubernetes API, and a server for the agents.
struct World {
    pair: Pair,
    kubeconfig: String,
    _api: FakeApi,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Result<Self> {
        let (api, folder) = (FakeApi::start().await?, tempfile::tempdir()?);
        let kubeconfig = api.kubeconfig(folder.path(), "{token: canary}")?.display().to_string();
        // This server admits agents with any credential.
        let pair = Setup::grpc().agents(0).server_arg("--cluster-ca-cert=").start().await?;
        Ok(Self { pair, kubeconfig, _api: api, _folder: folder })
    }
}

/// A program with its flags, and the ports and the folder that it needs.
struct Prepared {
    program: Program,
    args: Vec<String>,
    leases: Vec<(&'static str, Lease)>,
    folder: tempfile::TempDir,
}

/// Each program's ports, with the flags' names.
const SERVER_PORTS: [&str; 4] = ["--server-port", "--agent-port", "--health-port", "--admin-port"];
const AGENT_PORTS: [&str; 2] = ["--health-server-port", "--admin-server-port"];

impl Prepared {
    fn new(line: &CommandLine, world: &World) -> Result<Self> {
        let program = match line.program.as_str() {
            "server" => Program::Server,
            "agent" => Program::Agent,
            other => anyhow::bail!("unknown program {other:?}"),
        };
        let mut prepared =
            Self { program, args: Vec::new(), leases: Vec::new(), folder: tempfile::tempdir()? };
        let mut words = line.flags.split(' ').peekable();
        while let Some(word) = words.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, words.next_if(|next| !next.starts_with('-'))),
            };
            let value = value.map(|value| prepared.replaced(name, value, world)).transpose()?;
            match (value, word.contains('=')) {
                (None, _) => prepared.args.push(name.into()),
                (Some(value), true) => prepared.args.push(format!("{name}={value}")),
                (Some(value), false) => prepared.args.extend([name.into(), value]),
            }
        }
        prepared.add_defaults(world)?;
        Ok(prepared)
    }

    /// The value of a flag in this test.
    fn replaced(&mut self, name: &str, value: &str, world: &World) -> Result<String> {
        let pki = &world.pair.pki;
        let ports = SERVER_PORTS.iter().chain(&AGENT_PORTS);
        Ok(match name {
            _ if value.is_empty() => String::new(),
            "--server-port" if value == "0" => "0".into(),
            name if ports.clone().any(|port| *port == name) => {
                let name = ports.clone().find(|port| **port == name).context("a port")?;
                self.lease(name)?
            }
            "--proxy-server-host" => "127.0.0.1".into(),
            "--proxy-server-port" => world.pair.server().agent_port().to_string(),
            "--kubeconfig" => world.kubeconfig.clone(),
            "--uds-name" => self.file("frontend.sock", None)?,
            "--log-file" => self.file("program.log", Some(""))?,
            "--service-account-token-path" => self.file("token", Some("a.service-account.token"))?,
            _ => match file(pki, name) {
                Some(path) => path.display().to_string(),
                None => ["HOST_IP", "NODE_IP"].iter().fold(value.into(), |value: String, variable| {
                    let value = value.replace(&format!("$({variable})"), "192.0.2.10");
                    value.replace(&format!("${{{variable}}}"), "192.0.2.10")
                }),
            },
        })
    }

    /// Adds flags whose defaults a test cannot use: ports that others have, a server's address, and the pod's own kubeconfig.
    fn add_defaults(&mut self, world: &World) -> Result<()> {
        let ports: &[&'static str] =
            if self.program == Program::Server { &SERVER_PORTS } else { &AGENT_PORTS };
        for name in ports {
            if !self.has(name) {
                let port = self.lease(name)?;
                self.args.push(format!("{name}={port}"));
            }
        }
        if self.program == Program::Agent && !self.has("--proxy-server-port") {
            self.args.push(format!("--proxy-server-port={}", world.pair.server().agent_port()));
        }
        if self.has("--count-server-leases") && !self.has("--kubeconfig") {
            self.args.push(format!("--kubeconfig={}", world.kubeconfig));
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.args.iter().any(|arg| arg.split('=').next() == Some(name))
    }

    fn lease(&mut self, name: &'static str) -> Result<String> {
        let lease = Lease::new()?;
        let port = lease.port().to_string();
        self.leases.push((name, lease));
        Ok(port)
    }

    /// The path of a file in the program's folder.
    fn file(&self, name: &str, text: Option<&str>) -> Result<String> {
        let path = self.folder.path().join(name);
        if let Some(text) = text {
            std::fs::write(&path, text)?;
        }
        Ok(path.display().to_string())
    }

    fn port(&self, name: &str) -> Option<u16> {
        self.leases.iter().find(|(port, _)| *port == name).map(|(_, lease)| lease.port())
    }

    /// Starts the program, waits until it serves, and stops it.
    async fn run(self, name: &str) -> Result<()> {
        let (program, args) = (self.program.path()?, self.args.clone());
        let mut process = Process::spawn(Recipe { name: name.into(), program, args, env: Vec::new() })?;
        let mut alive = Ok(());
        let serves = until("a program that serves", DEADLINE, || {
            alive = process.check_alive();
            let ended = alive.is_err();
            let serves = self.serves();
            async move { (ended || serves.await).then_some(()) }
        });
        let serves = serves.await;
        alive?;
        serves.map_err(|error| process.explain(&error))?;
        process.signal(Signal::TERM)?;
        if self.program == Program::Agent {
            // As in Go, the first signal drains and the second one stops the agent.
            process.wait_said("Received first signal").await?;
            process.signal(Signal::TERM)?;
        }
        let status = process.exit(DEADLINE).await?;
        ensure!(status.success(), process.explain(&anyhow::anyhow!("ended with {status}")));
        Ok(())
    }

    /// Whether an agent is connected to its server, or every listener of a server accepts connections.
    async fn serves(&self) -> bool {
        let answers = async |flag: &str, path: &str| {
            let Some(port) = self.port(flag) else { return false };
            get(([127, 0, 0, 1], port).into(), path).await.is_ok_and(|answer| answer.head.status == 200)
        };
        if self.program == Program::Agent {
            return answers("--health-server-port", "/readyz").await;
        }
        let accepts = async |flag: &str| match self.port(flag) {
            Some(port) => TcpStream::connect(("127.0.0.1", port)).await.is_ok(),
            None => true,
        };
        let socket = self.folder.path().join("frontend.sock");
        answers("--health-port", "/healthz").await
            && accepts("--agent-port").await
            && accepts("--admin-port").await
            && accepts("--server-port").await
            && (!self.has("--uds-name") || UnixStream::connect(socket).await.is_ok())
    }
}

/// The certificate or key that a flag of either program names.
fn file<'a>(pki: &'a Pki, flag: &str) -> Option<&'a Path> {
    Some(match flag {
        "--server-ca-cert" => &pki.front_ca,
        "--server-cert" => &pki.front_server.cert,
        "--server-key" => &pki.front_server.key,
        "--cluster-ca-cert" | "--ca-cert" => &pki.cluster_ca,
        "--cluster-cert" => &pki.cluster_server.cert,
        "--cluster-key" => &pki.cluster_server.key,
        "--agent-cert" => &pki.agent.cert,
        "--agent-key" => &pki.agent.key,
        _ => return None,
    })
}

#[tokio::test]
async fn every_command_line_starts_runs_and_stops() -> Result<()> {
    let lines = command_lines()?;
    ensure!(lines.len() >= 30, "{} command lines", lines.len());
    let (world, slots) = (World::start().await?, Arc::new(Semaphore::new(AT_ONCE)));
    let mut running = JoinSet::new();
    for line in lines {
        let (prepared, slots) = (Prepared::new(&line, &world)?, slots.clone());
        running.spawn(async move {
            let _slot = slots.acquire_owned().await?;
            prepared.run(&line.name).await.with_context(|| format!("{}: {}", line.name, line.source))
        });
    }
    let mut failures = Vec::new();
    while let Some(result) = running.join_next().await {
        failures.extend(result?.err().map(|error| format!("{error:#}")));
    }
    ensure!(failures.is_empty(), "{} command lines failed:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

/// k0s's builds of the agent have flags that upstream does not have. The test above would notice such a flag.
#[tokio::test]
async fn a_flag_of_a_fork_is_refused_by_name() -> Result<()> {
    let world = World::start().await?;
    let lines = command_lines()?;
    let mut line = lines.into_iter().find(|line| line.program == "agent").context("an agent")?;
    line.flags.push_str(" --apiserver-port-mapping=6443:localhost:6443");
    let error = Prepared::new(&line, &world)?.run(&line.name).await.expect_err("an unknown flag");
    ensure!(format!("{error:#}").contains("unknown flag: --apiserver-port-mapping"), "{error:#}");
    Ok(())
}
