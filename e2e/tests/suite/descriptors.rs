//! Programs with few descriptors: peers beyond the limit are refused, and probes and agents keep some.

use anyhow::{Context as _, Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::frontend::{Conn, DialError};
use e2e::http1;
use e2e::pair::{FRONTS, Front, Pair, Setup};
use e2e::process::Process;
use e2e::program::Program;
use e2e::wait::{DEADLINE, until, within};
use tokio::task::JoinSet;

/// The smallest limit that the programs accept. They use 18 to 25 descriptors themselves.
const FEW: usize = 64;

/// Dials one after the other until one fails.
async fn dial_until_refused(pair: &Pair, target: &str) -> Result<(Vec<Conn>, DialError)> {
    let mut conns = Vec::new();
    loop {
        match within("an answer", pair.frontend().dial(target)).await? {
            Ok(conn) => conns.push(conn),
            Err(error) => return Ok((conns, error)),
        }
        ensure!(conns.len() < FEW, "as many connections as descriptors");
    }
}

fn is_server_full(error: &DialError) -> bool {
    const WHY: &str = "too many connections, try again later: the server's file descriptors are short";
    error.text().contains(WHY)
        && (error.status() == Some(503) || error.text().starts_with("ResourceExhausted: "))
}

/// The ports of a program with few descriptors answer, and it never lacked one.
async fn is_well(process: &Process, health: std::net::SocketAddr) -> Result<()> {
    let answer = within("/healthz", http1::get(health, "/healthz")).await??;
    ensure!(answer.head.status == 200, "/healthz: {}", answer.head.status);
    ensure!(!process.said("Too many open files"), "{:?}", process.log());
    Ok(())
}

#[tokio::test]
async fn server_without_descriptors_refuses_clients_and_takes_agents() -> Result<()> {
    let (folder, endpoint) = (tempfile::tempdir()?, Endpoint::echo().await?);
    let server = Program::Server.with_descriptors(folder.path(), FEW)?;
    for (mode, front) in FRONTS {
        let setup = Setup::new(mode, front).programs(server.clone(), Program::Agent.path()?);
        let mut pair = setup.start().await?;
        let (conns, error) = dial_until_refused(&pair, &endpoint.target()).await?;
        ensure!(is_server_full(&error), "{mode:?} {front:?}: {error}");
        ensure!(conns.len() >= FEW / 4, "only {} connections", conns.len());
        pair.add_agent("new", "", &[])?;
        pair.wait_connected().await?;
        is_well(&pair.server().process, pair.server().health).await?;
        let (more, error) = dial_until_refused(&pair, &endpoint.target()).await?;
        ensure!(is_server_full(&error), "{mode:?} {front:?}: {error}");
        let refused = "clients are refused, because file descriptors are short";
        let lines: Vec<_> =
            pair.server().process.log().into_iter().filter(|line| line.contains(refused)).collect();
        ensure!(lines.len() == 1 && lines[0].contains("limit=64"), "{lines:?}");
        drop((conns, more));
        until("a dial", DEADLINE, || async { works(pair.frontend(), &endpoint.target()).await.ok() }).await?;
    }
    Ok(())
}

/// The clients wait for their refusals, because there are more than descriptors.
#[tokio::test]
async fn burst_of_clients_is_served_or_refused() -> Result<()> {
    let (folder, endpoint) = (tempfile::tempdir()?, Endpoint::echo().await?);
    let server = Program::Server.with_descriptors(folder.path(), FEW)?;
    for (mode, _) in FRONTS.into_iter().filter(|(_, front)| *front == Front::Unix) {
        let setup = Setup::new(mode, Front::Unix).programs(server.clone(), Program::Agent.path()?);
        let (pair, mut dials, mut conns) = (setup.start().await?, JoinSet::new(), Vec::new());
        for _ in 0..3 * FEW {
            let (frontend, target) = (pair.frontend().clone(), endpoint.target());
            dials.spawn(async move { frontend.dial(&target).await });
        }
        while let Some(dialed) = within("the answers", dials.join_next()).await? {
            match dialed? {
                Ok(conn) => conns.push(conn),
                Err(error) => ensure!(is_server_full(&error), "{mode:?}: {error}"),
            }
        }
        ensure!(conns.len() >= FEW / 4, "only {} connections", conns.len());
        let answer = within("/healthz", http1::get(pair.server().health, "/healthz")).await??;
        ensure!(answer.head.status == 200, "/healthz: {}", answer.head.status);
    }
    Ok(())
}

#[tokio::test]
async fn agent_without_descriptors_refuses_dials_and_answers_probes() -> Result<()> {
    let (folder, endpoint) = (tempfile::tempdir()?, Endpoint::echo().await?);
    let agent = Program::Agent.with_descriptors(folder.path(), FEW)?;
    let pair = Setup::http_connect().programs(Program::Server.path()?, agent).start().await?;
    let (conns, error) = dial_until_refused(&pair, &endpoint.target()).await?;
    ensure!(error.status() == Some(503) && error.text().contains("socket: too many open files"), "{error}");
    ensure!(conns.len() >= FEW / 4, "only {} connections", conns.len());
    let unknown = pair.frontend().dial("unknown.invalid:1").await.err().context("an unknown name")?;
    ensure!(
        unknown.text().contains("dial tcp: socket: too many open files"),
        "a lookup took place: {unknown}"
    );
    is_well(&pair.agent().process, pair.agent().health).await?;
    drop(conns);
    until("a dial", DEADLINE, || async { works(pair.frontend(), &endpoint.target()).await.ok() }).await
}

#[tokio::test]
async fn start_with_too_low_a_limit_fails_with_the_reason() -> Result<()> {
    let (folder, mut pair) = (tempfile::tempdir()?, Setup::grpc().start().await?);
    let few = |program: Program| program.with_descriptors(folder.path(), FEW / 2);
    let (server, agent) = (few(Program::Server)?, few(Program::Agent)?);
    let programs = [(&mut pair.servers[0].process, server), (&mut pair.agents[0].process, agent)];
    for (process, program) in programs {
        process.restart_as(&program)?;
        let (status, log) = (process.exit(DEADLINE).await?, process.log().join("\n"));
        let why = "the limit on open descriptors is 32: set LimitNOFILE or ulimit -n to 64 or more";
        ensure!(!status.success() && log.matches(why).count() == 1, "{status}: {log}");
    }
    Ok(())
}
