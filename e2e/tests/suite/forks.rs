//! Peers of public forks are survived in every position, and nothing is inferred from them: bytes before and after arrive, no
//! credit is invented, and no unknown field is passed on.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use e2e::adversarial::forks::{FIELD_4, ForkServer, ForkStream, acknowledgments, with_field_4, with_field_9};
use e2e::adversarial::{close_req, close_rsp, data, dial_req, dial_rsp};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::pair::{Agent, Setup};
use e2e::payload::Payload;
use e2e::pki::Pki;
use e2e::wait::within;
use proto::packet::Payload as Body;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// More than any window that a fork could mean by field 4.
const LARGE: usize = 300_000;

const UNKNOWN: [(&str, &str); 1] = [("reason", "unknown_type")];
const MALFORMED: [(&str, &str); 1] = [("reason", "malformed")];

/// Reads DATA of a connection until this many bytes have come.
async fn bytes(stream: &mut ForkStream, id: i64, count: usize) -> Result<Vec<u8>> {
    let mut got = Vec::new();
    while got.len() < count {
        match stream.expect("DATA").await?.payload {
            Some(Body::Data(data)) if data.connect_id == id => got.extend_from_slice(&data.data),
            other => bail!("{other:?} after {} bytes", got.len()),
        }
    }
    Ok(got)
}

/// Sends type 7 in all its forms. Returns their number.
fn acknowledge(stream: &mut ForkStream) -> Result<f64> {
    let packets = acknowledgments();
    for packet in &packets {
        stream.send(packet)?;
    }
    Ok(packets.len() as f64)
}

#[tokio::test]
async fn a_forks_frontend_is_served() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let mut sent = 0.0;
    for field in FIELD_4 {
        let mut stream = fork_frontend(&pair).await?;
        // Before the dial, between dial and answer, and between DATA.
        sent += acknowledge(&mut stream)?;
        stream.send(&with_field_4(&dial_req(5, &endpoint.target()), field))?;
        sent += acknowledge(&mut stream)?;
        let Some(Body::DialResponse(response)) = stream.expect("the DIAL_RSP").await?.payload else {
            bail!("no DIAL_RSP")
        };
        ensure!(response.random == 5 && response.error.is_empty(), "{response:?}");
        let id = response.connect_id;
        let large = vec![b'x'; LARGE];
        for chunk in [&b"before"[..], &large, b"after"] {
            stream.send(&with_field_9(&data(id, chunk.to_vec())))?;
            sent += acknowledge(&mut stream)?;
            ensure!(bytes(&mut stream, id, chunk.len()).await? == chunk, "other bytes than were sent");
        }
        stream.send(&with_field_9(&close_req(id)))?;
        ensure!(stream.expect("the CLOSE_RSP").await? == close_rsp(id, ""));
    }
    let dropped = pair.server().wait_metric("dropped_packets_total", &UNKNOWN, sent).await?;
    let malformed = format!("{}dropped_packets_total", e2e::metrics::SERVER);
    ensure!(dropped.sum(&malformed, &MALFORMED).is_none(), "a fork's packet is malformed");
    // Nothing of it reached the agent.
    assert_eq!(pair.agent().metric("dropped_packets_total", &[]).await?, 0.0);
    works(pair.frontend(), &endpoint.target()).await
}

async fn fork_frontend(pair: &e2e::pair::Pair) -> Result<ForkStream> {
    ForkStream::frontend(pair.frontend().socket().await?).await
}

#[tokio::test]
async fn a_forks_agent_serves() -> Result<()> {
    for setup in [Setup::grpc(), Setup::http_connect()] {
        let pair = setup.agents(0).start().await?;
        let mut agent = ForkStream::agent(pair.server().agent_port(), &pair.pki, "fork").await?;
        let mut sent = acknowledge(&mut agent)?;
        pair.server().wait_metric("ready_backends", &[], 1.0).await?;
        for (id, field) in (1..).zip(FIELD_4) {
            let (frontend, target) = (pair.frontend().clone(), "127.0.0.1:9");
            let dialing = tokio::spawn(async move { frontend.dial(target).await });
            let Some(Body::DialRequest(request)) = agent.expect("the DIAL_REQ").await?.payload else {
                bail!("no DIAL_REQ")
            };
            sent += acknowledge(&mut agent)?;
            agent.send(&with_field_4(&dial_rsp(request.random, id, ""), field))?;
            sent += acknowledge(&mut agent)?;
            let mut conn = within("the dial", dialing).await???;
            for text in ["before", "after"] {
                agent.send(&with_field_9(&data(id, text)))?;
                sent += acknowledge(&mut agent)?;
                let mut got = vec![0; text.len()];
                within("the agent's bytes", conn.read_exact(&mut got)).await??;
                assert_eq!(got, text.as_bytes());
            }
            // A window of 16 bytes would stop this: the agent acknowledges nothing.
            let payload = vec![b'y'; LARGE];
            let upload = async { Ok(conn.write_all(&payload).await?) };
            let arrived = bytes(&mut agent, id, LARGE);
            let ((), arrived) = within("an upload", async { tokio::try_join!(upload, arrived) }).await??;
            ensure!(arrived == payload, "other bytes than were sent");
            conn.shutdown().await?;
            ensure!(agent.expect("the CLOSE_REQ").await? == close_req(id));
            agent.send(&with_field_9(&close_rsp(id, "")))?;
        }
        pair.server().wait_metric("dropped_packets_total", &UNKNOWN, sent).await?;
        assert_eq!(pair.server().metric("dropped_packets_total", &MALFORMED).await?, 0.0);
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_forks_server_is_served() -> Result<()> {
    let folder = Arc::new(tempfile::tempdir()?);
    let pki = Pki::create(folder.path())?;
    let server = ForkServer::start(&pki).await?;
    let address = ([127, 0, 0, 1], server.port()?).into();
    let agent = Agent::start(None, "agent-1", "", address, Vec::new(), Vec::new(), folder.clone(), &pki)?;
    let mut link = server.link().await.map_err(|error| agent.process.explain(&error))?;
    let payload = Payload::new(3, LARGE as u64);
    let (echo, source) = (Endpoint::echo().await?, Endpoint::source(payload).await?);
    let mut sent = acknowledge(&mut link)?;
    for (random, field) in (1..).zip(FIELD_4) {
        let id = dial(&mut link, random, &echo.target(), field).await?;
        sent += acknowledge(&mut link)?;
        for text in ["before", "after"] {
            link.send(&with_field_9(&data(id, text)))?;
            sent += acknowledge(&mut link)?;
            ensure!(bytes(&mut link, id, text.len()).await? == text.as_bytes());
        }
        link.send(&with_field_9(&close_req(id)))?;
        ensure!(link.expect("the CLOSE_RSP").await? == close_rsp(id, ""));
        // A window of 16 bytes would stop this: the server acknowledges nothing.
        let id = dial(&mut link, random, &source.target(), field).await?;
        let got = bytes(&mut link, id, LARGE).await?;
        within("the payload's check", payload.receive_all(&mut got.as_slice())).await??;
        ensure!(link.expect("the CLOSE_RSP").await? == close_rsp(id, ""));
    }
    agent.wait_metric("dropped_packets_total", &UNKNOWN, sent).await?;
    assert_eq!(agent.metric("dropped_packets_total", &MALFORMED).await?, 0.0);
    Ok(())
}

/// Makes the agent dial with field 4, and returns the connect id.
async fn dial(link: &mut ForkStream, random: i64, target: &str, field: &[u8]) -> Result<i64> {
    link.send(&with_field_4(&dial_req(random, target), field))?;
    let answer = link.expect("the DIAL_RSP").await?.payload.context("no payload")?;
    let Body::DialResponse(response) = answer else { bail!("{answer:?}") };
    ensure!(response.random == random && response.error.is_empty(), "{response:?}");
    Ok(response.connect_id)
}
