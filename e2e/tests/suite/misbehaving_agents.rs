//! Adversarial agents: they affect no other peer, and the server survives.

use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use e2e::adversarial::{
    AdversarialAgent, AgentMeta, bare, close_req, close_rsp, crossed, data, dial_cls, dial_req, dial_rsp,
    drain, unknown,
};
use e2e::endpoints::Endpoint;
use e2e::exchange::works;
use e2e::frontend::{Conn, DialError, Mode, Tunnel};
use e2e::metrics::{SERVER, Scrape};
use e2e::pair::{Front, Pair, Setup};
use e2e::wait::{DEADLINE, until, within, within_limit};
use proto::packet::Payload as Body;
use proto::{Packet, PacketType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

async fn server() -> Result<Pair> {
    Setup::grpc().agents(0).start().await
}

async fn agent(pair: &Pair, id: &str, identifiers: &str) -> Result<AdversarialAgent> {
    AdversarialAgent::connect(pair.server().agent_port(), &pair.pki, &AgentMeta::new(id, identifiers)).await
}

fn dial(pair: &Pair, target: &str) -> JoinHandle<Result<Conn, DialError>> {
    let (frontend, target) = (pair.frontend().clone(), target.to_owned());
    tokio::spawn(async move { frontend.dial(&target).await })
}

/// A connection through an adversarial agent that assigned this id.
async fn connected(pair: &Pair, agent: &mut AdversarialAgent, target: &str, id: i64) -> Result<Conn> {
    let dialing = dial(pair, target);
    agent.accept(id).await?;
    Ok(within("the dial", dialing).await???)
}

async fn says(conn: &mut Conn, text: &str) -> Result<()> {
    let mut got = vec![0; text.len()];
    within("bytes from the agent", conn.read_exact(&mut got)).await??;
    ensure!(got == text.as_bytes(), "{:?}", String::from_utf8_lossy(&got));
    Ok(())
}

#[tokio::test]
async fn a_late_dial_rsp_is_answered_by_close_req() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    agent.stream.send(dial_rsp(123_456, 9, "")).await?;
    assert_eq!(agent.stream.expect("the CLOSE_REQ").await?, close_req(9));
    pair.server().wait_metric("dial_failure_count", &[("reason", "unrecognized_response")], 1.0).await?;
    Ok(())
}

/// A Go server crashes on these packets, with all its connections.
#[tokio::test]
async fn a_known_type_without_its_payload_is_survived() -> Result<()> {
    let mut pair = server().await?;
    let mut good = agent(&pair, "good", "").await?;
    let mut conn = connected(&pair, &mut good, "127.0.0.1:9", 1).await?;
    let mut liar = agent(&pair, "liar", "").await?;
    for number in 0..=6 {
        let kind = PacketType::try_from(number)?;
        for packet in [bare(kind), crossed(kind, dial_req(1, "x")), crossed(kind, data(1, "x"))] {
            liar.stream.send(packet).await?;
            good.stream.send(data(1, "ok")).await?;
            says(&mut conn, "ok").await?;
        }
    }
    let counted = format!("{SERVER}dropped_packets_total");
    let all = |scrape: &Scrape| scrape.value(&counted, &[("reason", "malformed")]) >= 6.0;
    pair.server().wait_metrics("malformed packets", all).await?;
    pair.server_mut().process.check_alive()
}

#[tokio::test]
async fn unknown_and_misdirected_packets_are_ignored() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    let mut conn = connected(&pair, &mut agent, "127.0.0.1:9", 1).await?;
    let unexpected =
        [unknown(7), unknown(99), unknown(-1), dial_req(3, "127.0.0.1:9"), close_req(1), data(0, "zero")];
    for packet in unexpected {
        agent.stream.send(packet).await?;
        agent.stream.send(data(1, "ok")).await?;
        says(&mut conn, "ok").await?;
    }
    Ok(())
}

/// The Go client takes an empty DATA for an end of file, so none may be forwarded.
#[tokio::test]
async fn an_empty_data_is_not_forwarded() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    let mut conn = connected(&pair, &mut agent, "127.0.0.1:9", 1).await?;
    agent.stream.send(data(1, Bytes::new())).await?;
    agent.stream.send(data(1, "behind it")).await?;
    says(&mut conn, "behind it").await
}

/// The client's dial ids never reach an agent, because two equal ones would collide there.
#[tokio::test]
async fn dial_ids_are_the_servers_own() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    let (mut one, mut two) = (pair.frontend().packets().await?, pair.frontend().packets().await?);
    one.send(dial_req(42, "127.0.0.1:1")).await?;
    two.send(dial_req(42, "127.0.0.1:2")).await?;
    let (first, second) = (agent.expect_dial().await?, agent.expect_dial().await?);
    assert_ne!(first.random, second.random);
    for request in [&second, &first] {
        let port: i64 = request.address.trim_start_matches("127.0.0.1:").parse()?;
        agent.stream.send(dial_rsp(request.random, port, "")).await?;
        agent.stream.send(data(port, request.address.clone())).await?;
    }
    for (stream, address) in [(&mut one, "127.0.0.1:1"), (&mut two, "127.0.0.1:2")] {
        let Some(Body::DialResponse(response)) = stream.expect("the DIAL_RSP").await?.payload else {
            anyhow::bail!("no DIAL_RSP");
        };
        assert_eq!((response.random, response.error.as_str()), (42, ""));
        let Some(Body::Data(data)) = stream.expect("the DATA").await?.payload else {
            anyhow::bail!("no DATA")
        };
        assert_eq!(data.data, address.as_bytes());
    }
    Ok(())
}

/// Go looks up pending dials by a global number, so any agent could answer any dial.
#[tokio::test]
async fn an_agent_cannot_answer_anothers_dial() -> Result<()> {
    let pair = Setup::grpc().agents(0).server_arg("--proxy-strategies=destHost").start().await?;
    let mut asked = agent(&pair, "asked", "host=asked").await?;
    let mut liar = agent(&pair, "liar", "host=liar").await?;
    let dialing = dial(&pair, "asked:1");
    let request = asked.expect_dial().await?;
    liar.stream.send(dial_rsp(request.random, 5, "")).await?;
    assert_eq!(liar.stream.expect("the CLOSE_REQ").await?, close_req(5));
    liar.stream.send(dial_rsp(request.random, 0, "stolen")).await?;
    liar.stream.send(dial_cls(request.random)).await?;
    // The answer to a later packet shows that the server has read the false answers.
    liar.stream.send(data(99, "sync")).await?;
    assert_eq!(liar.stream.expect("the CLOSE_REQ").await?, close_req(99));
    asked.stream.send(dial_rsp(request.random, 5, "")).await?;
    let mut conn = within("the dial", dialing).await???;
    asked.stream.send(data(5, "honest")).await?;
    says(&mut conn, "honest").await
}

/// Connect ids start at 1 on every stream: equal ids of two agents are two connections.
#[tokio::test]
async fn equal_ids_of_two_agents_do_not_cross() -> Result<()> {
    let pair = Setup::grpc().agents(0).server_arg("--proxy-strategies=destHost").start().await?;
    let mut one = agent(&pair, "one", "host=one").await?;
    let mut two = agent(&pair, "two", "host=two").await?;
    let mut to_one = connected(&pair, &mut one, "one:1", 1).await?;
    let mut to_two = connected(&pair, &mut two, "two:1", 1).await?;
    one.stream.send(data(1, "from one")).await?;
    two.stream.send(data(1, "from two")).await?;
    says(&mut to_one, "from one").await?;
    says(&mut to_two, "from two").await?;
    one.stream.send(close_rsp(1, "")).await?;
    assert_eq!(within("the end of one", to_one.read_to_end(&mut Vec::new())).await??, 0);
    two.stream.send(data(1, "alive")).await?;
    says(&mut to_two, "alive").await
}

/// In Go two streams of one agent id overwrite each other's connections.
#[tokio::test]
async fn equal_ids_of_two_streams_of_one_agent_do_not_cross() -> Result<()> {
    let pair = server().await?;
    let mut older = agent(&pair, "twin", "").await?;
    let mut to_older = connected(&pair, &mut older, "127.0.0.1:1", 1).await?;
    let mut younger = agent(&pair, "twin", "").await?;
    older.stream.send(drain()).await?;
    let drained = [("segment", "from_agent"), ("packet_type", "DRAIN")];
    pair.server().wait_metric("stream_packets_total", &drained, 1.0).await?;
    let mut to_younger = connected(&pair, &mut younger, "127.0.0.1:2", 1).await?;
    older.stream.send(data(1, "older")).await?;
    younger.stream.send(data(1, "younger")).await?;
    says(&mut to_older, "older").await?;
    says(&mut to_younger, "younger").await?;
    drop(older);
    // Any kind of end: its agent is gone.
    let _ = within("the end of the older", to_older.read_to_end(&mut Vec::new())).await?;
    younger.stream.send(data(1, "alive")).await?;
    says(&mut to_younger, "alive").await
}

#[tokio::test]
async fn second_agent_with_the_same_id_does_not_displace_the_first() -> Result<()> {
    let pair = server().await?;
    let mut incumbent = agent(&pair, "twin", "").await?;
    let mut rival = agent(&pair, "twin", "").await?;
    let mut conns = Vec::new();
    for id in 1..=5 {
        let mut conn = connected(&pair, &mut incumbent, "127.0.0.1:1", id).await?;
        incumbent.stream.send(data(id, "mine")).await?;
        says(&mut conn, "mine").await?;
        conns.push(conn);
    }
    rival.stream.send(data(1, "not mine")).await?;
    assert_eq!(rival.stream.expect("the CLOSE_REQ").await?, close_req(1));
    Ok(())
}

#[tokio::test]
async fn an_id_can_be_used_again_after_its_close() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    for round in 0..3 {
        let mut conn = connected(&pair, &mut agent, "127.0.0.1:1", 1).await?;
        let text = format!("round {round}");
        agent.stream.send(data(1, text.clone())).await?;
        says(&mut conn, &text).await?;
        agent.stream.send(close_rsp(1, "")).await?;
        assert_eq!(within("the end", conn.read_to_end(&mut Vec::new())).await??, 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_repeated_dial_rsp_is_a_late_one() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    let dialing = dial(&pair, "127.0.0.1:1");
    let request = agent.expect_dial().await?;
    agent.stream.send(dial_rsp(request.random, 1, "")).await?;
    let mut conn = within("the dial", dialing).await???;
    agent.stream.send(dial_rsp(request.random, 2, "")).await?;
    assert_eq!(agent.stream.expect("the CLOSE_REQ").await?, close_req(2));
    agent.stream.send(data(1, "still mine")).await?;
    says(&mut conn, "still mine").await
}

#[tokio::test]
async fn data_before_the_dial_rsp_is_dropped() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    let dialing = dial(&pair, "127.0.0.1:1");
    let request = agent.expect_dial().await?;
    agent.stream.send(data(1, "too early")).await?;
    assert_eq!(agent.stream.expect("the CLOSE_REQ").await?, close_req(1));
    agent.stream.send(dial_rsp(request.random, 2, "")).await?;
    let mut conn = within("the dial", dialing).await???;
    agent.stream.send(data(2, "in time")).await?;
    says(&mut conn, "in time").await
}

#[tokio::test]
async fn the_close_rsps_error_reaches_the_client() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    let frontend = pair.frontend().clone();
    let dialing = tokio::spawn(async move { Tunnel::dial(frontend.packets().await?, "127.0.0.1:1").await });
    agent.accept(1).await?;
    let mut tunnel = within("the dial", dialing).await???;
    agent.stream.send(close_rsp(1, "the endpoint went away")).await?;
    within("the end", tunnel.read_to_end(&mut Vec::new())).await??;
    assert_eq!(tunnel.ended(), Some("the endpoint went away"));
    Ok(())
}

#[tokio::test]
async fn the_agents_dial_cls_ends_the_dial() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    let dialing = dial(&pair, "127.0.0.1:1");
    let request = agent.expect_dial().await?;
    agent.stream.send(dial_cls(request.random)).await?;
    ensure!(within("the dial", dialing).await??.is_err(), "a dial that its agent closed succeeded");
    pair.server().wait_metric("dial_failure_count", &[("reason", "backend_close")], 1.0).await?;
    pair.server().wait_metric("pending_backend_dials", &[], 0.0).await?;
    Ok(())
}

/// Every error text of an agent maps to one status, in Go's order.
#[tokio::test]
async fn dial_error_texts_become_statuses() -> Result<()> {
    let pair = Setup::http_connect().agents(0).start().await?;
    let mut agent = agent(&pair, "a", "").await?;
    for (text, status) in [
        ("dial tcp 1.2.3.4:9: i/o timeout", 504),
        ("context DEADLINE exceeded", 504),
        ("TLS handshake Timeout", 504),
        ("too many open files, then a timeout", 504),
        ("socket: Too many open files", 503),
        ("dial tcp 1.2.3.4:9: connect: connection refused", 502),
        ("dial tcp 1.2.3.4:9: connect: no route to host", 502),
        ("dial tcp: lookup x on 1.2.3.4:53: no such host", 502),
        ("something that nobody has heard of", 502),
    ] {
        let dialing = dial(&pair, "127.0.0.1:1");
        let request = agent.expect_dial().await?;
        agent.stream.send(dial_rsp(request.random, 0, text)).await?;
        let Err(error) = within("the dial", dialing).await?? else { anyhow::bail!("{text}: success") };
        assert_eq!((error.status(), error.text()), (Some(status), text));
    }
    Ok(())
}

/// A dial whose client has left is canceled at the agent; if the agent still answers, the connection is closed.
#[tokio::test]
async fn abandoned_dial_is_canceled_at_the_agent() -> Result<()> {
    for mode in [Mode::Grpc, Mode::HttpConnect] {
        let pair = Setup::new(mode, Front::Unix).agents(0).start().await?;
        let mut agent = agent(&pair, "a", "").await?;
        let dialing = dial(&pair, "127.0.0.1:1");
        let request = agent.expect_dial().await?;
        dialing.abort();
        // The server's time limit of a dial is longer.
        let ended = async {
            assert_eq!(agent.stream.expect("the DIAL_CLS").await?, dial_cls(request.random));
            pair.server().wait_metric("pending_backend_dials", &[], 0.0).await
        };
        within_limit("the end of an abandoned dial", Duration::from_secs(3), ended).await??;
        agent.stream.send(dial_rsp(request.random, 3, "")).await?;
        assert_eq!(agent.stream.expect("the CLOSE_REQ").await?, close_req(3));
        pair.server().wait_metric("dial_failure_count", &[("reason", "frontend_close")], 1.0).await?;
        assert_eq!(pair.server().metric("dial_failure_count", &[]).await?, 1.0, "it counts once");
    }
    Ok(())
}

#[tokio::test]
async fn a_clients_dial_cls_cancels_the_dial_at_the_agent() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    let mut stream = pair.frontend().packets().await?;
    stream.send(dial_req(42, "127.0.0.1:1")).await?;
    let request = agent.expect_dial().await?;
    stream.send(dial_cls(42)).await?;
    assert_eq!(agent.stream.expect("the DIAL_CLS").await?, dial_cls(request.random));
    pair.server().wait_metric("dial_failure_count", &[("reason", "frontend_close")], 1.0).await?;
    Ok(())
}

/// In Go one connection with a stalled reader blocks all other connections of its agent.
#[tokio::test]
async fn an_agent_that_floods_one_connection_stalls_no_other() -> Result<()> {
    let pair = Setup::grpc().agents(0).server_arg("--proxy-strategies=destHost").start().await?;
    let mut flooding = agent(&pair, "a", "host=flood&host=calm").await?;
    let _stalled = connected(&pair, &mut flooding, "flood:1", 1).await?;
    let mut calm = connected(&pair, &mut flooding, "calm:1", 2).await?;
    for _ in 0..100 {
        // 6.4 MiB that are not read: below the limit of 8 MiB.
        flooding.stream.send(data(1, vec![0; 65_536])).await?;
    }
    flooding.stream.send(data(2, "through")).await?;
    says(&mut calm, "through").await
}

#[tokio::test]
async fn the_clients_bytes_arrive_in_order_and_before_the_close() -> Result<()> {
    let pair = server().await?;
    let mut agent = agent(&pair, "a", "").await?;
    let mut conn = connected(&pair, &mut agent, "127.0.0.1:1", 1).await?;
    conn.write_all(b"one ").await?;
    conn.write_all(b"two").await?;
    conn.shutdown().await?;
    let mut got = Vec::new();
    let closed = loop {
        match agent.stream.expect("DATA and a close").await? {
            Packet { payload: Some(Body::Data(data)), .. } if data.connect_id == 1 => {
                got.extend_from_slice(&data.data)
            }
            other => break other,
        }
    };
    assert_eq!((got.as_slice(), closed), (&b"one two"[..], close_req(1)));
    agent.stream.send(close_rsp(1, "")).await?;
    assert_eq!(within("the end", conn.read_to_end(&mut Vec::new())).await??, 0);
    Ok(())
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_only_that_agent() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    let mut liar = agent(&pair, "liar", "").await?;
    let _ = liar.stream.send(data(1, vec![0; 5_000_000])).await;
    let (_, status) = liar.stream.end("the end of the liar's stream").await?;
    assert_eq!(status.map(|status| status.code()), Some(tonic::Code::ResourceExhausted));
    drop(liar);
    until("one agent less", DEADLINE, || async {
        let labels = [("service_method", "Connect")];
        (pair.server().metric("grpc_connections", &labels).await.ok()? == 1.0).then_some(())
    })
    .await?;
    pair.server_mut().process.check_alive()?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}
