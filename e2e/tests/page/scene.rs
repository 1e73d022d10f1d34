//! A pair with something to see: agents, connections, a stalled reader, failed dials, a refused peer.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use e2e::endpoints::Endpoint;
use e2e::exchange::echo;
use e2e::frontend::{Conn, Mode};
use e2e::http1::get;
use e2e::pair::{Front, Pair, Setup};
use e2e::payload::Payload;
use e2e::wait::{DEADLINE, until};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::browser::Browser;

/// The pair, and what keeps its connections open.
pub(crate) struct Scene {
    pub(crate) pair: Pair,
    pub(crate) server: String,
    pub(crate) agent: String,
    _open: Vec<Conn>,
    _endpoints: Vec<Endpoint>,
}

impl Scene {
    /// Starts the pair, and waits until the server's status shows everything.
    pub(crate) async fn start() -> Result<Self> {
        let setup = Setup::new(Mode::HttpConnect, Front::Tls);
        let nodes = (1..=3).map(|at| (format!("node-{at}"), format!("ipv4=10.0.0.{at}&zone=eu-central-1a")));
        let pair =
            nodes.fold(setup, |setup, (id, identifiers)| setup.agent(&id, &identifiers)).start().await?;
        let endpoints = vec![Endpoint::echo().await?, Endpoint::source(Payload::new(9, 32 << 20)).await?];
        if std::env::var_os("SCREENSHOTS").is_some() {
            past(&pair, &endpoints[0]).await?;
        }
        let mut open = Vec::new();
        for (seed, length) in [(0, 400), (1, 70_000), (2, 5_000), (3, 1_200_000), (4, 90)] {
            let conn = pair.frontend().dial(&endpoints[0].target()).await?;
            open.push(echo(conn, Payload::new(seed, length)).await?);
        }
        open.push(pair.frontend().dial(&endpoints[1].target()).await?);
        ensure!(pair.frontend().dial("127.0.0.1:1").await.is_err());
        let mut peer = TcpStream::connect(pair.server().agent_address()).await?;
        peer.write_all(b"GET / HTTP/1.1\r\n\r\n").await?;
        let admin = pair.server().admin;
        until("a status with everything", DEADLINE, || async {
            let answer = get(admin, "/statusz").await.ok()?.body;
            (answer.contains("stalled_seconds") && !answer.contains("\"refused\":[]")).then_some(())
        })
        .await?;
        let (server, agent) = (format!("http://{admin}/"), format!("http://{}/", pair.agent().admin));
        Ok(Self { pair, server, agent, _open: open, _endpoints: endpoints })
    }

    /// The scene, and a browser at the server's page.
    pub(crate) async fn with_browser() -> Result<(Self, Browser)> {
        let (scene, browser) = (Self::start().await?, Browser::start().await?);
        browser.open(&scene.server).await?;
        Ok((scene, browser))
    }
}

/// Dials through six intervals of the history, for pictures.
async fn past(pair: &Pair, endpoint: &Endpoint) -> Result<()> {
    for (at, dials) in [4_usize, 9, 6, 14, 11, 5].into_iter().enumerate() {
        for _ in 0..dials {
            drop(pair.frontend().dial(&endpoint.target()).await?);
        }
        until("the next interval", DEADLINE, || async {
            let answer = get(pair.server().admin, "/statusz?limit=0").await.ok()?.body;
            let status: serde_json::Value = serde_json::from_str(&answer).ok()?;
            (status["history"].as_array()?.len() > at + 1).then_some(())
        })
        .await?;
    }
    Ok(())
}

/// Writes a picture into the folder `SCREENSHOTS`, if it is set.
pub(crate) fn keep(name: &str, picture: &[u8]) -> Result<()> {
    if let Some(folder) = std::env::var_os("SCREENSHOTS") {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(PathBuf::from(folder).join(name), picture)?;
    }
    Ok(())
}
