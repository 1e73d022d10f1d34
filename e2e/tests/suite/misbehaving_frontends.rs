//! Adversarial frontends, and the harm that they must not be able to do to others.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use e2e::adversarial::frames::{SETTINGS, frame, hello, read_frame};
use e2e::adversarial::{
    PacketStream, bare, close_req, crossed, data, dial_cls, dial_req, dial_rsp, drain, unknown,
};
use e2e::endpoints::{Endpoint, FullQueue};
use e2e::exchange::works;
use e2e::frontend::Mode;
use e2e::pair::{Front, Pair, Setup};
use e2e::wait::within;
use proto::PacketType;
use proto::packet::Payload as Body;
use tokio::io::AsyncWriteExt;

/// Dials by hand; returns the stream and its connect id.
async fn dialed(pair: &Pair, random: i64, target: &str) -> Result<(PacketStream, i64)> {
    let mut stream = pair.frontend().packets().await?;
    stream.send(dial_req(random, target)).await?;
    match stream.expect("the DIAL_RSP").await?.payload {
        Some(Body::DialResponse(response)) if response.error.is_empty() => {
            ensure!(response.random == random, "the answer names dial {}", response.random);
            Ok((stream, response.connect_id))
        }
        other => anyhow::bail!("{other:?}"),
    }
}

/// The DIAL_REQs that the server has read.
pub(crate) async fn dial_requests(pair: &Pair) -> Result<f64> {
    let labels = [("segment", "from_client"), ("packet_type", "DIAL_REQ")];
    pair.server().metric("stream_packets_total", &labels).await
}

/// Sends bytes by hand and expects their echo.
async fn echoes(stream: &mut PacketStream, id: i64, text: &str) -> Result<()> {
    stream.send(data(id, text.to_owned())).await?;
    let mut got = Vec::new();
    while got.len() < text.len() {
        match stream.expect("the echo").await?.payload {
            Some(Body::Data(data)) => got.extend_from_slice(&data.data),
            other => anyhow::bail!("{other:?}"),
        }
    }
    ensure!(got == text.as_bytes(), "{got:?}");
    Ok(())
}

/// Unknown types, DATA of no connection, and DATA without bytes.
#[tokio::test]
async fn meaningless_packets_are_ignored() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let (mut stream, id) = dialed(&pair, 5, &endpoint.target()).await?;
    let unknown = [7, 99, 100, 1_000, i32::MAX, -1, i32::MIN].map(unknown);
    for packet in unknown.into_iter().chain([data(0, "nobody's"), data(id, Bytes::new())]) {
        stream.send(packet.clone()).await?;
        echoes(&mut stream, id, "still here").await.with_context(|| format!("after {packet:?}"))?;
    }
    Ok(())
}

/// A Go server crashes on these packets, with all its connections.
#[tokio::test]
async fn a_known_type_without_its_payload_is_survived() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let (mut bystander, id) = dialed(&pair, 6, &endpoint.target()).await?;
    for number in 0..=6 {
        let kind = PacketType::try_from(number)?;
        for packet in [bare(kind), crossed(kind, data(1, "x")), crossed(kind, dial_rsp(1, 1, "x"))] {
            let mut stream = pair.frontend().packets().await?;
            // The server may end the stream.
            let _ = stream.send(packet).await;
            let _ = within("the response headers", stream.headers()).await?;
            drop(stream);
            echoes(&mut bystander, id, "still here").await?;
        }
    }
    pair.server_mut().process.check_alive()?;
    let malformed = pair.server().metric("dropped_packets_total", &[("reason", "malformed")]).await?;
    ensure!(malformed > 0.0, "the server has read no malformed packet");
    works(pair.frontend(), &endpoint.target()).await
}

#[tokio::test]
async fn packets_that_only_agents_send_are_harmless() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let (mut bystander, id) = dialed(&pair, 6, &endpoint.target()).await?;
    let mut stream = pair.frontend().packets().await?;
    for packet in [
        drain(),
        dial_rsp(6, id, ""),
        dial_rsp(6, id, "x"),
        e2e::adversarial::close_rsp(id, "x"),
        dial_cls(6),
    ] {
        let _ = stream.send(packet).await;
    }
    // All but the DIAL_CLS.
    pair.server().wait_metric("dropped_packets_total", &[("reason", "wrong_direction")], 4.0).await?;
    echoes(&mut bystander, id, "still here").await?;
    works(pair.frontend(), &endpoint.target()).await
}

/// In Go any frontend can write to and close any connection of the same agent.
#[tokio::test]
async fn other_client_can_neither_write_nor_close() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let (endpoint, other) = (Endpoint::echo().await?, Endpoint::echo().await?);
    let (mut victim, id) = dialed(&pair, 1, &endpoint.target()).await?;
    let (mut thief, own) = dialed(&pair, 2, &other.target()).await?;
    echoes(&mut thief, own, "mine").await?;
    for stolen in (id - 5..id + 5).filter(|stolen| *stolen != own) {
        let _ = thief.send(data(stolen, "injected")).await;
        let _ = thief.send(close_req(stolen)).await;
    }
    drop(thief);
    for stolen in id - 5..id + 5 {
        // A separate stream for each, which has dialed, so that the server has assigned an agent to it.
        let (mut thief, own) = dialed(&pair, 3, &other.target()).await?;
        if stolen != own {
            let _ = thief.send(data(stolen, "injected")).await;
            let _ = thief.send(close_req(stolen)).await;
        }
        other.wait_open(1).await?;
        drop(thief);
        other.wait_open(0).await?;
    }
    echoes(&mut victim, id, "untouched").await?;
    assert_eq!(endpoint.open(), 1);
    Ok(())
}

/// The dial id belongs to the client: two clients with the same id both reach their own endpoint.
#[tokio::test]
async fn equal_dial_ids_do_not_collide() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let silent = FullQueue::new()?;
    let endpoint = Endpoint::echo().await?;
    let mut waiting = pair.frontend().packets().await?;
    waiting.send(dial_req(42, &silent.target())).await?;
    pair.server().wait_metric("pending_backend_dials", &[], 1.0).await?;
    let (mut stream, id) = dialed(&pair, 42, &endpoint.target()).await?;
    echoes(&mut stream, id, "mine").await?;
    match waiting.expect("the answer to the silent dial").await?.payload {
        Some(Body::DialResponse(response)) => {
            ensure!(response.error.ends_with("i/o timeout"), "{response:?}")
        }
        other => anyhow::bail!("{other:?}"),
    }
    echoes(&mut stream, id, "still mine").await
}

#[tokio::test]
async fn other_client_cannot_cancel_a_dial() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let silent = FullQueue::new()?;
    let mut waiting = pair.frontend().packets().await?;
    waiting.send(dial_req(42, &silent.target())).await?;
    pair.server().wait_metric("pending_backend_dials", &[], 1.0).await?;
    let mut other_client = pair.frontend().packets().await?;
    other_client.send(dial_cls(42)).await?;
    match waiting.expect("the answer to the silent dial").await?.payload {
        Some(Body::DialResponse(response)) => {
            ensure!(response.error.ends_with("i/o timeout"), "{response:?}")
        }
        other => anyhow::bail!("{other:?}"),
    }
    Ok(())
}

#[tokio::test]
async fn unusual_ids_are_accepted_as_dial_ids() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    for random in [1, -1, i64::MAX, i64::MIN] {
        let (mut stream, id) = dialed(&pair, random, &endpoint.target()).await?;
        echoes(&mut stream, id, "hello").await?;
    }
    Ok(())
}

#[tokio::test]
async fn closing_twice_is_harmless() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let (mut stream, id) = dialed(&pair, 5, &endpoint.target()).await?;
    let _ = stream.send(close_req(id)).await;
    let _ = stream.send(close_req(id)).await;
    let _ = stream.send(data(id, "too late")).await;
    drop(stream);
    endpoint.wait_open(0).await?;
    works(pair.frontend(), &endpoint.target()).await?;
    pair.server().wait_metric("established_connections", &[], 0.0).await?;
    Ok(())
}

#[tokio::test]
async fn a_large_data_is_carried_and_a_larger_one_ends_only_its_stream() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::sink().await?;
    let (mut stream, id) = dialed(&pair, 5, &endpoint.target()).await?;
    stream.send(data(id, vec![7; 4_000_000])).await?;
    stream.send(close_req(id)).await?;
    assert_eq!(endpoint.wait_received(1).await?[0].digest.length, 4_000_000);
    let (mut stream, id) = dialed(&pair, 5, &endpoint.target()).await?;
    let _ = stream.send(data(id, vec![7; 5_000_000])).await;
    let (_, status) = stream.end("the end of the stream").await?;
    assert_eq!(status.map(|status| status.code()), Some(tonic::Code::ResourceExhausted));
    endpoint.wait_received(2).await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

/// Bytes that are not HTTP, or stop in the middle, affect only their own connection.
#[tokio::test]
async fn garbage_is_survived() -> Result<()> {
    for (mode, front) in
        [(Mode::Grpc, Front::Unix), (Mode::HttpConnect, Front::Unix), (Mode::Grpc, Front::Tls)]
    {
        let mut pair = Setup::new(mode, front).start().await?;
        let endpoint = Endpoint::echo().await?;
        let mut held = Vec::new();
        for garbage in [
            &b"\x00\x01\x02\x03\xff\xfe\xfd"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"PRI * HTTP/2.0\r\n",
            b"CONNECT",
            b"CONNECT  HTTP/1.1\r\n\r\n",
            b"CONNECT no-port HTTP/1.1\r\nHost: x\r\n\r\n",
            b"CONNECT a:b HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\n\n\n\n",
        ] {
            let mut socket = pair.frontend().socket().await?;
            let _ = socket.write_all(garbage).await;
            let _ = socket.flush().await;
            held.push(socket);
        }
        pair.server_mut().process.check_alive()?;
        works(pair.frontend(), &endpoint.target()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_head_without_end_is_refused() -> Result<()> {
    let pair = Setup::http_connect().start().await?;
    let mut socket = pair.frontend().socket().await?;
    socket.write_all(b"CONNECT 127.0.0.1:9 HTTP/1.1\r\n").await?;
    let flood = async {
        while socket
            .write_all(b"X-Padding: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n")
            .await
            .is_ok()
        {}
    };
    within("a refusal of endless headers", flood).await?;
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

/// Two thousand streams on one connection, each reset while its dial is pending.
#[tokio::test]
async fn a_flood_of_resets_is_survived() -> Result<()> {
    let mut pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let (mut bystander, id) = dialed(&pair, 6, &endpoint.target()).await?;
    let channel = pair.frontend().channel().await?;
    for _ in 0..10 {
        let mut streams = Vec::new();
        for random in 0..200 {
            let mut stream = PacketStream::proxy(channel.clone());
            stream.send(dial_req(random, &endpoint.target())).await?;
            streams.push(stream);
        }
        for stream in &mut streams {
            within("the response headers", stream.headers()).await??;
        }
    }
    drop(channel);
    ensure!(dial_requests(&pair).await? > 1_000.0, "most dials have not left");
    echoes(&mut bystander, id, "still here").await?;
    pair.server_mut().process.check_alive()?;
    drop(bystander);
    endpoint.wait_open(0).await?;
    pair.server().wait_metric("pending_backend_dials", &[], 0.0).await?;
    pair.server().wait_metric("established_connections", &[], 0.0).await?;
    works(pair.frontend(), &endpoint.target()).await
}

/// Each SETTINGS changes the windows of all streams.
#[tokio::test]
async fn a_flood_of_settings_ends_its_connection() -> Result<()> {
    for front in [Front::Unix, Front::Tls] {
        let pair = Setup::new(Mode::Grpc, front).start().await?;
        let mut socket = pair.frontend().socket().await?;
        let flood = (0..200).flat_map(|number| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, number % 2]));
        socket.write_all(&hello().into_iter().chain(flood).collect::<Vec<_>>()).await?;
        socket.flush().await?;
        within("the connection's end", async { while read_frame(&mut socket).await.is_ok() {} }).await?;
        works(pair.frontend(), &Endpoint::echo().await?.target()).await?;
    }
    Ok(())
}

/// In Go a second dial on a stream moves the stream to another agent; here the first connection must stay with its agent.
#[tokio::test]
async fn a_second_dial_leaves_the_first_connection_where_it_is() -> Result<()> {
    let pair = Setup::grpc()
        .server_arg("--proxy-strategies=destHost")
        .agent("by-address", "ipv4=127.0.0.1")
        .agent("by-name", "host=localhost")
        .start()
        .await?;
    let endpoint = Endpoint::echo().await?;
    let (mut stream, id) = dialed(&pair, 1, &endpoint.target()).await?;
    stream.send(dial_req(2, &format!("localhost:{}", endpoint.address().port()))).await?;
    match stream.expect("the second DIAL_RSP").await?.payload {
        Some(Body::DialResponse(response)) => {
            ensure!(response.random == 2 && !response.error.is_empty(), "{response:?}")
        }
        other => anyhow::bail!("{other:?}"),
    }
    echoes(&mut stream, id, "still at the first agent").await
}

/// A stream that dials and then disappears leaves no dial behind.
#[tokio::test]
async fn a_frontend_that_leaves_at_once_leaves_nothing_behind() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    for random in 0..50 {
        let mut stream = pair.frontend().packets().await?;
        stream.send(dial_req(random, &endpoint.target())).await?;
        stream.half_close();
        within("the response headers", stream.headers()).await??;
    }
    ensure!(dial_requests(&pair).await? > 0.0, "no dial has left");
    pair.server().wait_metric("grpc_connections", &[("service_method", "Proxy")], 0.0).await?;
    pair.server().wait_metric("pending_backend_dials", &[], 0.0).await?;
    pair.server().wait_metric("established_connections", &[], 0.0).await?;
    endpoint.wait_open(0).await
}
