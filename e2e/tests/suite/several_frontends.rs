//! Several frontends in one server: each carries bytes, the failure of one leaves the others, and a shutdown ends all.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, expect_any_end, works};
use e2e::frontend::{Frontend, Mode, Place};
use e2e::http1;
use e2e::pair::{Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::process::Signal;
use e2e::wait::{DEADLINE, until};
use tokio::io::AsyncWriteExt;

/// gRPC on a Unix socket, and HTTP CONNECT on a port.
fn both() -> Setup {
    Setup::grpc().and(Mode::HttpConnect, Front::Tls)
}

fn frontends(pair: &Pair) -> [&Frontend; 2] {
    [pair.frontend(), &pair.server().further[0]]
}

/// As `--frontend` names it.
fn name(frontend: &Frontend) -> String {
    let mode = frontend.mode.flag();
    match &frontend.place {
        Place::Unix(path) => format!("{mode}+unix:{}", path.display()),
        Place::Tls(address) => format!("{mode}+tcp:{address}"),
    }
}

/// Waits until the server is not ready because of exactly this frontend.
async fn wait_unbound(pair: &Pair, frontend: &Frontend) -> Result<()> {
    let (health, name) = (pair.server().health, name(frontend));
    let reason =
        format!("[-]frontend failed: the ports or sockets of these frontends are not bound: {name}\n");
    until("a frontend that does not listen", DEADLINE, || async {
        let answer = http1::get(health, "/readyz?verbose").await.ok()?;
        (answer.head.status == 500 && answer.body.contains(&reason)).then_some(())
    })
    .await
}

#[tokio::test]
async fn two_frontends_carry_bytes_through_one_agent() -> Result<()> {
    let pair = both().start().await?;
    let endpoint = Endpoint::echo().await?;
    let [grpc, connect] = frontends(&pair);
    for round in 0..3 {
        let conns = [grpc.dial(&endpoint.target()).await?, connect.dial(&endpoint.target()).await?];
        for frontend in [grpc, connect] {
            let labels = [("frontend", &*name(frontend))];
            pair.server().wait_metric("frontend_connections", &labels, 1.0).await?;
        }
        let [over_grpc, over_connect] = conns;
        let (one, other) = tokio::join!(
            echo(over_grpc, Payload::new(round, 3_000_000)),
            echo(over_connect, Payload::new(round + 10, 5_000_000)),
        );
        drop((one?, other?));
        for frontend in [grpc, connect] {
            let labels = [("frontend", &*name(frontend))];
            pair.server().wait_metric("frontend_connections", &labels, 0.0).await?;
        }
    }
    for frontend in [grpc, connect] {
        for line in ["Proxy connection established", "connection ended"] {
            let named = format!("frontend=\"{}\"", name(frontend));
            let what = format!("three lines {line:?} with {named}");
            until(&what, DEADLINE, || async {
                let log = pair.server().process.log();
                let lines = log.iter().filter(|shown| shown.contains(line) && shown.contains(&named));
                (lines.count() == 3).then_some(())
            })
            .await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_taken_http_connect_port_leaves_the_other_frontend() -> Result<()> {
    let mut pair = both().start().await?;
    let endpoint = Endpoint::echo().await?;
    let Place::Tls(address) = pair.server().further[0].place else { anyhow::bail!("a port") };
    pair.server_mut().process.kill()?;
    let taken = TcpListener::bind(address)?;
    pair.server_mut().process.restart()?;
    let [grpc, connect] = frontends(&pair);
    wait_unbound(&pair, connect).await?;
    until("traffic by the other frontend", DEADLINE, || async { works(grpc, &endpoint.target()).await.ok() })
        .await?;
    drop(taken);
    pair.server_mut().wait_ready().await?;
    for frontend in frontends(&pair) {
        works(frontend, &endpoint.target()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_taken_grpc_port_is_fatal() -> Result<()> {
    let mut pair = Setup::http_connect().and(Mode::Grpc, Front::Tls).agents(0).start().await?;
    let Place::Tls(address) = pair.server().further[0].place else { anyhow::bail!("a port") };
    pair.server_mut().process.kill()?;
    let _taken = TcpListener::bind(address)?;
    pair.server_mut().process.restart()?;
    let status = pair.server_mut().process.exit(DEADLINE).await?;
    assert_eq!(status.code(), Some(1));
    pair.server().process.wait_said(&address.to_string()).await
}

#[tokio::test]
async fn a_lost_socket_leaves_the_other_frontend() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let directory = folder.path().join("run");
    std::fs::create_dir(&directory)?;
    let mut pair = both().places(&[Place::Unix(directory.join("frontend.sock"))]).start().await?;
    let endpoint = Endpoint::echo().await?;
    let [grpc, connect] = frontends(&pair);
    let conn = grpc.dial(&endpoint.target()).await?;
    std::fs::remove_dir_all(&directory)?;
    wait_unbound(&pair, grpc).await?;
    works(connect, &endpoint.target()).await?;
    drop(echo(conn, Payload::new(1, 1_000_000)).await?);
    std::fs::create_dir(&directory)?;
    pair.server_mut().wait_ready().await?;
    for frontend in frontends(&pair) {
        works(frontend, &endpoint.target()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_shutdown_drains_and_ends_both() -> Result<()> {
    let mut pair = both().server_arg("--graceful-shutdown-timeout=60s").start().await?;
    let endpoint = Endpoint::echo().await?;
    let mut conns = Vec::new();
    for frontend in frontends(&pair) {
        conns.push(echo(frontend.dial(&endpoint.target()).await?, Payload::new(1, 10)).await?);
    }
    pair.server().process.signal(Signal::TERM)?;
    pair.server_mut().wait_unready().await?;
    for (frontend, conn) in frontends(&pair).into_iter().zip(conns) {
        works(frontend, &endpoint.target()).await?;
        let mut conn = echo(conn, Payload::new(2, 1_000_000)).await?;
        conn.shutdown().await?;
        expect_any_end(&mut conn).await?;
    }
    let status = pair.server_mut().process.exit(DEADLINE).await?;
    ensure!(status.success(), "{status}");
    for frontend in frontends(&pair) {
        ensure!(frontend.socket().await.is_err(), "{} still listens", name(frontend));
    }
    let Place::Unix(path) = &pair.frontend().place else { anyhow::bail!("a Unix socket") };
    ensure!(!path.exists(), "{} is still there", path.display());
    Ok(())
}

#[tokio::test]
async fn a_successor_takes_every_socket_over() -> Result<()> {
    let drain = "--graceful-shutdown-timeout=60s";
    let mut pair = Setup::grpc().and(Mode::HttpConnect, Front::Unix).server_arg(drain).start().await?;
    let endpoint = Endpoint::echo().await?;
    let mut idle = Vec::new();
    for frontend in frontends(&pair) {
        idle.push(echo(frontend.dial(&endpoint.target()).await?, Payload::new(1, 10)).await?);
    }
    pair.server().process.signal(Signal::TERM)?;
    pair.server_mut().wait_unready().await?;
    let [first, second] = frontends(&pair).map(name);
    // It has a third frontend, besides the two sockets of its predecessor.
    let successor = Setup::grpc()
        .places(&[pair.frontend().place.clone()])
        .and(Mode::HttpConnect, Front::Unix)
        .server_arg(format!("--frontend={second}"))
        .start()
        .await?;
    for (frontend, name) in frontends(&pair).into_iter().zip([first, second]) {
        let _conn = echo(frontend.dial(&endpoint.target()).await?, Payload::new(2, 10_000)).await?;
        successor.server().wait_metric("frontend_connections", &[("frontend", &name)], 1.0).await?;
    }
    for conn in idle {
        let mut conn = echo(conn, Payload::new(3, 100_000)).await?;
        conn.shutdown().await?;
        expect_any_end(&mut conn).await?;
    }
    let status = pair.server_mut().process.exit(DEADLINE).await?;
    ensure!(status.success(), "{status}");
    for frontend in frontends(&pair) {
        works(frontend, &endpoint.target()).await?;
    }
    Ok(())
}
