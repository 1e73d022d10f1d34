//! The ends of connections: each side learns of the end once, in order, and no earlier byte is lost.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Result, bail};
use e2e::adversarial::{AdversarialAgent, AgentMeta, close_req, close_rsp, data, dial_req};
use e2e::endpoints::Endpoint;
use e2e::exchange::{echo, expect_any_end, expect_end, works};
use e2e::frontend::{Conn, Mode, Place, Tunnel};
use e2e::pair::{FRONTS, Front, Pair, Setup};
use e2e::payload::{Digest, Digester, Payload};
use e2e::wait::{within, within_limit};
use proto::packet::Payload as Body;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::io::InspectReader;

async fn tunnel(pair: &Pair, target: &str) -> Result<Tunnel> {
    Ok(Tunnel::dial(pair.frontend().packets().await?, target).await?)
}

#[tokio::test]
async fn the_clients_close_reaches_the_endpoint() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let endpoint = Endpoint::sink().await?;
        let mut conn = pair.frontend().dial(&endpoint.target()).await?;
        conn.write_all(b"last words").await?;
        conn.shutdown().await?;
        let received = endpoint.wait_received(1).await?;
        assert!(received[0].clean, "a reset instead of an orderly end");
        assert_eq!(received[0].digest.length, 10);
        expect_end(&mut conn).await?;
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
        pair.agent().wait_metric("open_endpoint_connections", &[], 0.0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_endpoints_close_reaches_the_client_behind_its_bytes() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let payload = Payload::new(4, 3_000_000);
        let endpoint = Endpoint::source(payload).await?;
        let mut conn = pair.frontend().dial(&endpoint.target()).await?;
        within("the source's bytes", payload.receive_all(&mut conn)).await??;
        conn.shutdown().await?;
        drop(conn);
        endpoint.wait_open(0).await?;
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
    }
    Ok(())
}

/// A Go server never ends a stream itself, so the readers of its clients hang.
#[tokio::test]
async fn the_stream_ends_with_ok_soon_after_its_close_rsp() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::source(Payload::new(1, 10)).await?;
    let mut tunnel = tunnel(&pair, &endpoint.target()).await?;
    let mut bytes = Vec::new();
    within("the source's bytes", tunnel.read_to_end(&mut bytes)).await??;
    let end = tunnel.packets().end("the end of the stream");
    let (rest, status) = within_limit("the end of the stream", Duration::from_secs(5), end).await??;
    assert!(rest.is_empty() && status.is_none(), "{rest:?} {status:?}");
    Ok(())
}

#[tokio::test]
async fn a_dropped_client_closes_the_endpoint() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let endpoint = Endpoint::echo().await?;
        let conn = echo(pair.frontend().dial(&endpoint.target()).await?, Payload::new(1, 1_000)).await?;
        drop(conn);
        endpoint.wait_open(0).await?;
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
        pair.agent().wait_metric("open_endpoint_connections", &[], 0.0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_end_of_the_clients_stream_closes_the_endpoint() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::sink().await?;
    let mut tunnel = tunnel(&pair, &endpoint.target()).await?;
    tunnel.write_all(b"0123456789").await?;
    tunnel.packets().half_close();
    assert_eq!(endpoint.wait_received(1).await?[0].digest.length, 10);
    Ok(())
}

#[tokio::test]
async fn an_endpoints_reset_ends_the_connection() -> Result<()> {
    for (mode, front) in FRONTS {
        let pair = Setup::new(mode, front).start().await?;
        let endpoint = Endpoint::resetting().await?;
        let mut conn = pair.frontend().dial(&endpoint.target()).await?;
        conn.write_all(b"x").await?;
        expect_any_end(&mut conn).await?;
        drop(conn);
        pair.server().wait_metric("established_connections", &[], 0.0).await?;
        pair.agent().wait_metric("open_endpoint_connections", &[], 0.0).await?;
    }
    Ok(())
}

/// Over TLS, to a client that is still reading at the end: many bytes wait in the server by then.
#[tokio::test]
async fn data_before_a_reset_or_a_loss_reaches_a_slow_client() -> Result<()> {
    for reset in [true, false] {
        let pair = Setup::new(Mode::HttpConnect, Front::Tls).agents(0).start().await?;
        let meta = AgentMeta::new("a", "");
        let mut agent = AdversarialAgent::connect(pair.server().agent_port(), &pair.pki, &meta).await?;
        let (dialed, accepted) = tokio::join!(pair.frontend().dial("127.0.0.1:1"), agent.accept(1));
        accepted?;
        let payload = Payload::new(5, 4 << 20);
        for piece in payload.pieces() {
            agent.stream.send(data(1, piece)).await?;
        }
        if reset {
            agent.stream.send(close_rsp(1, "read: connection reset by peer")).await?;
        } else {
            agent.stream.half_close();
        }
        let (received, end) = read_slowly(dialed?).await?;
        payload.check(&received)?;
        // No close_notify, so the client knows that bytes may be missing.
        assert_eq!(end, ErrorKind::UnexpectedEof);
        pair.server().wait_metric("http_connections", &[], 0.0).await?;
    }
    Ok(())
}

/// kube-apiserver's TLS takes an end between two records for an orderly one.
#[tokio::test]
async fn a_broken_connection_over_tls_ends_within_a_record() -> Result<()> {
    let pair = Setup::new(Mode::HttpConnect, Front::Tls).agents(0).start().await?;
    let meta = AgentMeta::new("a", "");
    let mut agent = AdversarialAgent::connect(pair.server().agent_port(), &pair.pki, &meta).await?;
    let Place::Tls(address) = pair.frontend().place else { bail!("a frontend without TLS") };
    let mut bytes = Vec::new();
    let recorded =
        InspectReader::new(TcpStream::connect(address).await?, |read| bytes.extend_from_slice(read));
    let connector = TlsConnector::from(pair.pki.frontend_client(&[])?);
    let mut client = connector.connect(ServerName::from(address.ip()), recorded).await?;
    client.write_all(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n").await?;
    agent.accept(1).await?;
    agent.stream.send(data(1, vec![7; 1_000])).await?;
    agent.stream.half_close();
    let mut received = Vec::new();
    let end = within("an end", client.read_to_end(&mut received)).await?.map_err(|error| error.kind());
    assert_eq!((end, received.ends_with(&[7; 1_000])), (Err(ErrorKind::UnexpectedEof), true));
    drop(client);
    let mut records = &*bytes;
    while let Some((&[_, _, _, high, low], rest)) = records.split_first_chunk::<5>()
        && let Some((_, rest)) = rest.split_at_checked(u16::from_be_bytes([high, low]).into())
    {
        records = rest;
    }
    assert_eq!(records, [23], "the rest of the last record");
    Ok(())
}

/// Reads to the end, which is not orderly.
async fn read_slowly(mut conn: Conn) -> Result<(Digest, ErrorKind)> {
    let mut digester = Digester::default();
    let mut chunk = vec![0; 16 << 10];
    loop {
        match within("bytes, or an end", conn.read(&mut chunk)).await? {
            Ok(0) => bail!("the end was told as an orderly one"),
            Ok(count) => digester.update(chunk.get(..count).unwrap_or_default()),
            Err(error) => return Ok((digester.finish(), error.kind())),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn packets_before_any_dial_are_answered_as_in_go() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    for (packet, text) in
        [(close_req(7), "backend uninitialized"), (data(7, "early"), "backend not initialized")]
    {
        let mut stream = pair.frontend().packets().await?;
        stream.send(packet).await?;
        assert_eq!(stream.expect(text).await?, close_rsp(7, text));
    }
    Ok(())
}

#[tokio::test]
async fn a_second_connection_id_closes_both() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::sink().await?;
    let mut stream = pair.frontend().packets().await?;
    stream.send(dial_req(1, &endpoint.target())).await?;
    let Some(Body::DialResponse(response)) = stream.expect("the DIAL_RSP").await?.payload else {
        anyhow::bail!("no DIAL_RSP");
    };
    let id = response.connect_id;
    stream.send(data(id, "one")).await?;
    stream.send(data(id + 1, "two")).await?;
    let mut closed = Vec::new();
    while closed.len() < 2 {
        match stream.expect("both CLOSE_RSP").await?.payload {
            Some(Body::CloseResponse(close)) if close.error == "mismatched connection IDs" => {
                closed.push(close.connect_id)
            }
            // The agent's own answer to the close may arrive in between.
            Some(Body::CloseResponse(_)) => {}
            other => anyhow::bail!("{other:?}"),
        }
    }
    closed.sort_unstable();
    assert_eq!(closed, [id, id + 1]);
    endpoint.wait_open(0).await
}

/// The Go client stops waiting for a CLOSE_RSP after 10 s, so the answer must come within 5 s even if the endpoint does not
/// read.
#[tokio::test]
async fn close_is_answered_in_time_though_the_endpoint_stalls() -> Result<()> {
    for (flow_control, bytes) in [("true", 300 << 10), ("false", 12 << 20)] {
        close_is_answered(flow_control, bytes, Duration::from_secs(8)).await?;
    }
    Ok(())
}

/// With connection flow control the CLOSE_REQ waits behind the bytes for which the client has no window. It gets one after 5 s.
#[tokio::test]
async fn close_behind_a_used_window_is_answered_though_the_endpoint_stalls() -> Result<()> {
    close_is_answered("true", 900 << 10, Duration::from_secs(25)).await
}

async fn close_is_answered(flow_control: &str, bytes: u64, within: Duration) -> Result<()> {
    let flag = format!("--connection-flow-control={flow_control}");
    let pair = Setup::grpc().server_arg(flag).start().await?;
    let endpoint = Endpoint::stalled().await?;
    let mut conn = pair.frontend().dial(&endpoint.target()).await?;
    let payload = Payload::new(1, bytes);
    // As many bytes as fit into all buffers on the path; the rest stays unsent.
    let _ = tokio::time::timeout(Duration::from_millis(500), payload.send(&mut conn)).await;
    let closing = async {
        conn.shutdown().await?;
        conn.read_to_end(&mut Vec::new()).await
    };
    within_limit("the CLOSE_RSP", within, closing).await??;
    endpoint.release();
    works(pair.frontend(), &Endpoint::echo().await?.target()).await
}

/// The stream is reset after its CLOSE_REQ, before the endpoint has read a byte: the sent bytes are still delivered.
#[tokio::test]
async fn the_loss_of_a_closed_connections_stream_discards_nothing() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::stalled().await?;
    let payload = Payload::new(2, 300_000);
    let mut conn = pair.frontend().dial(&endpoint.target()).await?;
    within("sending", payload.send(&mut conn)).await??;
    conn.shutdown().await?;
    let closed = [("segment", "from_client"), ("packet_type", "CLOSE_REQ")];
    pair.server().wait_metric("stream_packets_total", &closed, 1.0).await?;
    drop(conn);
    pair.server().wait_metric("grpc_connections", &[("service_method", "Proxy")], 0.0).await?;
    endpoint.release();
    payload.check(&endpoint.wait_received(1).await?[0].digest)
}

/// Two dials on one stream: the server must survive the second one, whatever its answer.
#[tokio::test]
async fn one_stream_with_two_connections_is_survived() -> Result<()> {
    let pair = Setup::grpc().start().await?;
    let endpoint = Endpoint::echo().await?;
    let mut stream = pair.frontend().packets().await?;
    stream.send(dial_req(1, &endpoint.target())).await?;
    stream.send(dial_req(2, &endpoint.target())).await?;
    let mut answered = Vec::new();
    while answered.len() < 2 {
        if let Some(Body::DialResponse(response)) = stream.expect("both DIAL_RSP").await?.payload {
            answered.push(response.random);
        }
    }
    answered.sort_unstable();
    assert_eq!(answered, [1, 2]);
    drop(stream);
    endpoint.wait_open(0).await?;
    let conn = pair.frontend().dial(&endpoint.target()).await?;
    echo(conn, Payload::new(1, 100)).await.map(|conn: Conn| drop(conn))
}
