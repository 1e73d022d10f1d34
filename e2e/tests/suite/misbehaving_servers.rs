//! The agent alone, with a server that the test controls: its Connect metadata, and its answers.

use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::adversarial::{
    AdversarialLink, AdversarialServer, bare, close_req, close_rsp, crossed, data, dial_cls, dial_req,
    unknown,
};
use e2e::endpoints::{Endpoint, Refusing};
use e2e::pair::Agent;
use e2e::payload::{Digester, Payload};
use e2e::pki::Pki;
use e2e::process::Signal;
use proto::packet::Payload as Body;
use proto::{DialRequest, DialResponse, Packet, PacketType};
use tempfile::TempDir;

/// A test-controlled server, and the agent that connected to it.
struct Played {
    agent: Agent,
    server: AdversarialServer,
    link: AdversarialLink,
    folder: Arc<TempDir>,
}

impl Played {
    async fn start(count: usize, flags: &[&str]) -> Result<Self> {
        let folder = Arc::new(tempfile::tempdir()?);
        let pki = Pki::create(folder.path())?;
        let mut server = AdversarialServer::start(&pki, "played", count).await?;
        let address = ([127, 0, 0, 1], server.port()).into();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let agent = Agent::start(
            None,
            "agent-1",
            "host=a&ipv4=10.0.0.1",
            address,
            flags,
            Vec::new(),
            folder.clone(),
            &pki,
        )?;
        let link = server.link().await.map_err(|error| agent.process.explain(&error))?;
        Ok(Self { agent, server, link, folder })
    }

    /// Makes the agent dial, and returns its answer.
    async fn dial(&mut self, random: i64, target: &str) -> Result<DialResponse> {
        self.link.send(dial_req(random, target)).await?;
        match self.link.expect("the DIAL_RSP").await?.payload {
            Some(Body::DialResponse(response)) => {
                ensure!(response.random == random, "{response:?}");
                Ok(response)
            }
            other => anyhow::bail!("{other:?}"),
        }
    }

    /// Sends bytes to an echo and expects them back.
    async fn echoes(&mut self, id: i64, text: &str) -> Result<()> {
        self.link.send(data(id, text.to_owned())).await?;
        let mut got = Vec::new();
        while got.len() < text.len() {
            match self.link.expect("the echo").await?.payload {
                Some(Body::Data(data)) if data.connect_id == id => got.extend_from_slice(&data.data),
                other => anyhow::bail!("{other:?}"),
            }
        }
        ensure!(got == text.as_bytes(), "{got:?}");
        Ok(())
    }
}

#[tokio::test]
async fn connect_names_the_agent() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    std::fs::write(&token, "secret-token\n")?;
    let played = Played::start(1, &[&format!("--service-account-token-path={}", token.display())]).await?;
    let values = |key: &str| -> Vec<String> {
        played
            .link
            .metadata
            .get_all(key)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(values("agentid"), ["agent-1"]);
    assert_eq!(values("agentidentifiers"), ["host=a&ipv4=10.0.0.1"]);
    assert_eq!(values("authorization"), ["Bearer secret-token"]);
    Ok(())
}

#[tokio::test]
async fn the_token_is_read_anew_for_each_connect() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    std::fs::write(&token, "first")?;
    let mut played =
        Played::start(2, &[&format!("--service-account-token-path={}", token.display())]).await?;
    std::fs::write(&token, "second")?;
    // The server announces two servers, so the agent continues to look.
    let link = loop {
        let link = played.server.link().await?;
        if link.metadata.get("authorization").is_some_and(|value| value == "Bearer second") {
            break link;
        }
    };
    drop(link);
    Ok(())
}

#[tokio::test]
async fn connection_ids_start_at_one_and_failed_dials_use_them_up() -> Result<()> {
    let mut played = Played::start(1, &[]).await?;
    let (endpoint, refusing) = (Endpoint::echo().await?, Refusing::new()?);
    assert_eq!(played.dial(10, &endpoint.target()).await?.connect_id, 1);
    let failed = played.dial(11, &refusing.target()).await?;
    assert_eq!(failed.error, format!("dial tcp {}: connect: connection refused", refusing.target()));
    assert_eq!(played.dial(12, &endpoint.target()).await?.connect_id, 3);
    played.echoes(1, "one").await?;
    played.echoes(3, "three").await
}

#[tokio::test]
async fn unknown_ids_are_answered_by_close_rsp() -> Result<()> {
    let mut played = Played::start(1, &[]).await?;
    played.link.send(data(5, "for whom?")).await?;
    assert_eq!(played.link.expect("the answer to DATA").await?, close_rsp(5, "unrecognized connectID"));
    played.link.send(close_req(6)).await?;
    assert_eq!(played.link.expect("the answer to CLOSE_REQ").await?, close_rsp(6, "Unknown connectID"));
    Ok(())
}

#[tokio::test]
async fn a_close_req_is_answered_by_one_close_rsp() -> Result<()> {
    let mut played = Played::start(1, &[]).await?;
    let endpoint = Endpoint::sink().await?;
    let id = played.dial(1, &endpoint.target()).await?.connect_id;
    played.link.send(close_req(id)).await?;
    assert_eq!(played.link.expect("the CLOSE_RSP").await?, close_rsp(id, ""));
    played.link.send(close_req(id)).await?;
    assert_eq!(played.link.expect("the answer to the second").await?, close_rsp(id, "Unknown connectID"));
    endpoint.wait_open(0).await
}

/// In Go a CLOSE_REQ discards queued bytes: a fifth of such uploads are cut short.
#[tokio::test]
async fn bytes_before_a_close_req_are_delivered() -> Result<()> {
    let mut played = Played::start(1, &[]).await?;
    let endpoint = Endpoint::sink().await?;
    for round in 0..20 {
        let payload = Payload::new(round, 1_000_000);
        let id = played.dial(round as i64, &endpoint.target()).await?.connect_id;
        for piece in payload.pieces() {
            played.link.send(data(id, piece)).await?;
        }
        played.link.send(close_req(id)).await?;
        assert_eq!(played.link.expect("the CLOSE_RSP").await?, close_rsp(id, ""));
        let received = endpoint.wait_received(round as usize + 1).await?;
        payload.check(&received[round as usize].digest)?;
    }
    Ok(())
}

#[tokio::test]
async fn the_endpoints_bytes_come_before_its_close_rsp() -> Result<()> {
    let mut played = Played::start(1, &[]).await?;
    let payload = Payload::new(3, 2_000_000);
    let endpoint = Endpoint::source(payload).await?;
    let id = played.dial(1, &endpoint.target()).await?.connect_id;
    let mut digester = Digester::default();
    loop {
        match played.link.expect("DATA or CLOSE_RSP").await?.payload {
            Some(Body::Data(data)) => {
                ensure!(data.connect_id == id && !data.data.is_empty(), "an empty or foreign DATA");
                ensure!(data.data.len() <= 256 << 10, "a DATA of {} bytes", data.data.len());
                digester.update(&data.data);
            }
            Some(Body::CloseResponse(close)) => {
                ensure!(close.connect_id == id && close.error.is_empty(), "{close:?}");
                return payload.check(&digester.finish());
            }
            other => anyhow::bail!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn unexpected_packets_are_survived() -> Result<()> {
    let mut played = Played::start(1, &[]).await?;
    let endpoint = Endpoint::echo().await?;
    let id = played.dial(1, &endpoint.target()).await?.connect_id;
    let mut unexpected = vec![unknown(7), unknown(99), unknown(-1), data(0, "zero"), dial_cls(12_345)];
    for number in 0..=6 {
        let kind = PacketType::try_from(number)?;
        unexpected.extend([bare(kind), crossed(kind, e2e::adversarial::dial_rsp(1, 1, "x"))]);
    }
    for packet in unexpected {
        // A CLOSE_RSP or DIAL_RSP is unexpected here, but the connection must survive.
        if packet.payload.as_ref().is_some_and(|body| matches!(body, Body::DialResponse(_)))
            && packet.r#type == 1
        {
            continue;
        }
        played.link.send(packet).await?;
        played.echoes(id, "still here").await?;
    }
    let malformed = played.agent.metric("dropped_packets_total", &[("reason", "malformed")]).await?;
    ensure!(malformed >= 6.0, "{malformed} malformed packets were counted");
    played.agent.process.check_alive()
}

/// In Go the server's `protocol` is passed to the dialer unchecked: `unix` would open sockets of the node.
#[tokio::test]
async fn only_tcp_is_dialed() -> Result<()> {
    let mut played = Played::start(1, &[]).await?;
    let endpoint = Endpoint::echo().await?;
    let path = played.folder.path().join("secret.sock");
    let listener = tokio::net::UnixListener::bind(&path)?;
    for (protocol, address) in [
        ("unix", path.to_str().unwrap_or_default()),
        ("udp", "127.0.0.1:53"),
        ("", "127.0.0.1:1"),
        ("ip", "127.0.0.1"),
    ] {
        let request = DialRequest {
            protocol: protocol.into(),
            address: address.into(),
            random: 5,
            ..Default::default()
        };
        let packet = Packet { r#type: PacketType::DialReq.into(), payload: Some(Body::DialRequest(request)) };
        played.link.send(packet).await?;
        match played.link.expect("the DIAL_RSP").await?.payload {
            Some(Body::DialResponse(response)) => {
                ensure!(!response.error.is_empty() && response.connect_id == 0, "{protocol}: {response:?}");
            }
            other => anyhow::bail!("{other:?}"),
        }
    }
    drop(listener);
    for protocol in ["tcp", "tcp4"] {
        let request = DialRequest {
            protocol: protocol.into(),
            address: endpoint.target(),
            random: 6,
            ..Default::default()
        };
        let packet = Packet { r#type: PacketType::DialReq.into(), payload: Some(Body::DialRequest(request)) };
        played.link.send(packet).await?;
        match played.link.expect("the DIAL_RSP").await?.payload {
            Some(Body::DialResponse(response)) => {
                ensure!(response.error.is_empty(), "{protocol}: {response:?}")
            }
            other => anyhow::bail!("{other:?}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn malformed_addresses_are_answered() -> Result<()> {
    let mut played = Played::start(1, &[]).await?;
    for address in [
        "",
        ":",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:99999",
        "127.0.0.1:-1",
        "[::1",
        "a b:1",
        "host:port:1",
    ] {
        let response = played.dial(1, address).await?;
        ensure!(!response.error.is_empty() && response.connect_id == 0, "{address:?}: {response:?}");
    }
    let endpoint = Endpoint::echo().await?;
    let id = played.dial(2, &endpoint.target()).await?.connect_id;
    played.echoes(id, "fine").await
}

#[tokio::test]
async fn a_drain_is_sent_once() -> Result<()> {
    let mut played = Played::start(1, &[]).await?;
    let endpoint = Endpoint::echo().await?;
    let id = played.dial(1, &endpoint.target()).await?.connect_id;
    played.agent.process.signal(Signal::TERM)?;
    // A Go agent checks its signal only when a packet arrives: keep sending until then.
    let mut drains = 0;
    for round in 0..50 {
        played.link.send(data(id, format!("{round:04}"))).await?;
        let mut got = 0;
        while got < 4 {
            match played.link.expect("an echo").await?.payload {
                Some(Body::Data(data)) => got += data.data.len(),
                Some(Body::Drain(_)) => drains += 1,
                other => anyhow::bail!("{other:?}"),
            }
        }
        if drains > 0 && round > 10 {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(drains, 1);
    Ok(())
}

#[tokio::test]
async fn the_end_of_the_stream_closes_every_endpoint() -> Result<()> {
    let mut played = Played::start(1, &[]).await?;
    let endpoint = Endpoint::echo().await?;
    for random in 0..20 {
        played.dial(random, &endpoint.target()).await?;
    }
    assert_eq!(endpoint.open(), 20);
    // Ends the Connect with OK, as a server does at shutdown.
    played.link.finish();
    endpoint.wait_open(0).await?;
    played.link = played.server.link().await?;
    let id = played.dial(1, &endpoint.target()).await?.connect_id;
    // Ids start again, because they belong to the stream.
    assert_eq!(id, 1);
    Ok(())
}

#[tokio::test]
async fn duplicates_are_closed_and_the_first_stream_stays() -> Result<()> {
    let mut played = Played::start(3, &[]).await?;
    let endpoint = Endpoint::echo().await?;
    let id = played.dial(1, &endpoint.target()).await?.connect_id;
    for _ in 0..4 {
        let mut duplicate = played.server.link().await?;
        assert_eq!(duplicate.end().await?, []);
        played.echoes(id, "the first").await?;
    }
    played.agent.wait_metric("open_server_connections", &[], 1.0).await?;
    played.agent.wait_metric("known_server_count", &[], 3.0).await?;
    Ok(())
}
