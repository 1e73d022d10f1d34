//! Starts that must fail, and those that must not.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::frontend::{Mode, Place};
use e2e::pair::{Front, Pair, Setup};
use e2e::process::{Process, Recipe};
use e2e::program::Program;
use e2e::wait::{DEADLINE, until};

#[tokio::test]
async fn help_and_unknown_flags() -> Result<()> {
    for program in [Program::Server, Program::Agent] {
        for (flag, code) in [("--help", 0), ("-h", 0), ("--no-such-flag", 1), ("--mode=grpc=x", 1)] {
            let recipe = Recipe {
                name: format!("{program:?} {flag}"),
                program: program.path()?,
                args: vec![flag.into()],
                env: Vec::new(),
            };
            let mut process = Process::spawn(recipe)?;
            let status = process.exit(DEADLINE).await?;
            ensure!(status.code() == Some(code), "{program:?} {flag}: {status}");
        }
    }
    Ok(())
}

/// Restarts the server while somebody else holds one of its ports.
fn restart_with_taken(pair: &mut Pair, port: u16) -> Result<TcpListener> {
    pair.server_mut().process.kill()?;
    let taken = TcpListener::bind(("127.0.0.1", port))?;
    pair.server_mut().process.restart()?;
    Ok(taken)
}

async fn fatal(mut pair: Pair, port: u16) -> Result<()> {
    let _taken = restart_with_taken(&mut pair, port)?;
    let status = pair.server_mut().process.exit(DEADLINE).await?;
    assert_eq!(status.code(), Some(1));
    pair.server().process.wait_said(&port.to_string()).await
}

#[tokio::test]
async fn a_taken_agent_port_is_fatal() -> Result<()> {
    let pair = Setup::grpc().agents(0).start().await?;
    let port = pair.server().agent_port();
    fatal(pair, port).await
}

#[tokio::test]
async fn a_taken_grpc_frontend_port_is_fatal() -> Result<()> {
    let pair = Setup::new(Mode::Grpc, Front::Tls).agents(0).start().await?;
    let Place::Tls(address) = pair.frontend().place else { anyhow::bail!("a TLS frontend") };
    fatal(pair, address.port()).await
}

/// Overlapping pods on a host network rely on it: the newer one waits for the port.
#[tokio::test]
async fn a_taken_health_port_is_retried() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    let port = pair.server().health.port();
    let taken = restart_with_taken(&mut pair, port)?;
    let endpoint = Endpoint::echo().await?;
    until("traffic without a health port", DEADLINE, || async {
        works(pair.frontend(), &endpoint.target()).await.ok()
    })
    .await?;
    drop(taken);
    pair.server_mut().wait_healthy().await
}

#[tokio::test]
async fn a_taken_admin_port_is_retried() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    let admin = pair.server().admin;
    let taken = restart_with_taken(&mut pair, admin.port())?;
    pair.server_mut().wait_healthy().await?;
    pair.wait_connected().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    drop(taken);
    until("the admin port", DEADLINE, || async { e2e::http1::get(admin, "/metrics").await.ok() }).await?;
    Ok(())
}

#[tokio::test]
async fn a_taken_http_connect_port_is_retried() -> Result<()> {
    let mut pair = Setup::new(Mode::HttpConnect, Front::Tls).start().await?;
    let Place::Tls(address) = pair.frontend().place else { anyhow::bail!("a TLS frontend") };
    let taken = restart_with_taken(&mut pair, address.port())?;
    let health = pair.server().health;
    until("a server with an agent and without a frontend", DEADLINE, || async {
        let answer = e2e::http1::get(health, "/readyz?verbose").await.ok()?;
        let waits = answer.body.contains("[+]backends ok") && answer.body.contains("[-]frontend failed: ");
        (answer.head.status == 500 && waits).then_some(())
    })
    .await?;
    drop(taken);
    pair.server_mut().wait_ready().await?;
    let endpoint = Endpoint::echo().await?;
    until("the frontend", DEADLINE, || async { works(pair.frontend(), &endpoint.target()).await.ok() }).await
}

/// Nobody can dial while the directory of the socket is gone; a frontend's place is known again within seconds.
#[tokio::test]
async fn a_server_whose_socket_cannot_be_reached_is_not_ready() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (directory, path) = (folder.path().join("run"), folder.path().join("run/frontend.sock"));
    std::fs::create_dir(&directory)?;
    let mut pair = Setup::http_connect().places(&[Place::Unix(path)]).start().await?;
    pair.server_mut().wait_ready().await?;
    std::fs::remove_dir_all(&directory)?;
    pair.server_mut().wait_unready().await?;
    std::fs::create_dir(&directory)?;
    pair.server_mut().wait_ready().await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}
