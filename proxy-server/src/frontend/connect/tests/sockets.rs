//! Tests over real sockets that depend on the kernel's behavior.

use std::io::ErrorKind;

use driver::CloseReason;
use mux::Cause;
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::super::socket::has_ended;
use super::*;
use crate::frontend::testing::Endpoint;

#[tokio::test]
async fn unix_socket_distinguishes_half_close_from_close() {
    let mut bench = Bench::new();
    for (half, expected) in [(true, ReadEnd::Eof), (false, ReadEnd::Closed)] {
        let (mut client, server) = UnixStream::pair().unwrap();
        let _task = bench.serve(server);
        client.write_all(REQUEST).await.unwrap();
        let Endpoint { mut stream, end: _end, attached } = bench.dial().await.succeed();
        expect_established(&mut client).await;
        if half {
            client.shutdown().await.unwrap();
            assert_eq!(read_all(&mut stream).await, "");
            drop(stream);
        } else {
            drop(client);
        }
        assert_eq!(timeout(SOON, attached).await.expect("an end"), Ok(Some(expected)));
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_dial() {
    let mut bench = Bench::new();
    let (mut client, server) = UnixStream::pair().unwrap();
    let task = bench.serve(server);
    client.write_all(REQUEST).await.unwrap();
    let dial = bench.dial().await;
    drop(client);
    dial.cancelled().await;
    task.await.expect("no panic");
    assert_eq!(bench.readings.metrics.http_connections.count(), 0);
    assert_eq!(bench.readings.failed_dials(), [r#"dial_failure_count{reason="frontend_close"} 1"#]);
}

#[tokio::test]
async fn a_half_closed_client_waits_for_its_dial_until_it_leaves() {
    for leaves in [false, true] {
        let mut bench = Bench::new();
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(REQUEST).await.unwrap();
        client.shutdown().await.unwrap();
        let _task = bench.serve(server);
        let dial = bench.dial().await;
        if leaves {
            drop(client);
            dial.cancelled().await;
            continue;
        }
        let mut endpoint = dial.succeed();
        endpoint.stream.write_all(b"greeting").await.unwrap();
        assert_eq!(read_all(&mut endpoint.stream).await, "");
        drop(endpoint.stream);
        let answer = read_all(&mut client).await;
        assert_eq!(answer.as_bytes(), [answer::ESTABLISHED, b"greeting"].concat());
    }
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, server) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (client.unwrap(), server.unwrap().0)
}

#[tokio::test]
async fn only_a_client_that_did_not_read_sees_a_reset() {
    for (close_reason, reset) in [
        (CloseReason::Broken(Cause::Stalled), true),
        (CloseReason::Broken(Cause::FlushTimeout), true),
        (CloseReason::Broken(Cause::Overrun), true),
        (CloseReason::Broken(Cause::LinkLost), false),
        (CloseReason::Broken(Cause::Peer("read: connection reset by peer".into())), false),
        (CloseReason::Flushed, false),
    ] {
        let mut bench = Bench::new();
        let (mut client, server) = tcp_pair().await;
        let _task = bench.serve(server);
        client.write_all(REQUEST).await.unwrap();
        let Endpoint { stream: _stream, end, attached } = bench.dial().await.succeed();
        expect_established(&mut client).await;
        end.send(close_reason).expect("not ended");
        let mut rest = Vec::new();
        let end = timeout(SOON, client.read_to_end(&mut rest)).await.expect("an end");
        assert_eq!(
            end.map_err(|error| error.kind()),
            if reset { Err(ErrorKind::ConnectionReset) } else { Ok(0) }
        );
        drop(client);
        timeout(SOON, attached).await.expect("an end").expect("attached");
        assert_eq!(bench.readings.metrics.http_connections.count(), 0);
    }
}

#[tokio::test]
async fn the_last_bytes_reach_a_client_that_is_still_sending() {
    let mut bench = Bench::new();
    let (mut client, server) = tcp_pair().await;
    let _task = bench.serve(server);
    client.write_all(REQUEST).await.unwrap();
    let mut endpoint = bench.dial().await.succeed();
    expect_established(&mut client).await;
    let response = vec![7; 900_000];
    endpoint.stream.write_all(&response).await.unwrap();
    endpoint.end.send(CloseReason::Flushed).expect("not ended");
    // Arrives after the end: without the linger it would reset the connection before the response is read.
    let _late = client.write_all(b"still sending").await;
    let mut received = Vec::new();
    let end = timeout(SOON, client.read_to_end(&mut received)).await.expect("an end");
    assert!(end.is_ok(), "{end:?}");
    assert!(response.starts_with(&received));
}

#[tokio::test]
async fn unread_input_does_not_turn_an_orderly_end_into_a_reset() {
    let mut bench = Bench::new();
    let (mut client, server) = UnixStream::pair().unwrap();
    let _task = bench.serve(server);
    client.write_all(REQUEST).await.unwrap();
    let endpoint = bench.dial().await.succeed();
    expect_established(&mut client).await;
    // No await between the two, so that the end is known before the input is read.
    client.try_write(b"unread").unwrap();
    endpoint.end.send(CloseReason::Flushed).expect("not ended");
    assert_eq!(read_all(&mut client).await, "");
    drop(client);
    timeout(SOON, endpoint.attached).await.expect("an end").expect("attached");
}

#[tokio::test]
async fn closed_peer_is_noticed_behind_unread_bytes() {
    let (mut client, server) = tcp_pair().await;
    client.write_all(b"unread").await.unwrap();
    server.readable().await.unwrap();
    assert!(!has_ended(&server));
    client.shutdown().await.unwrap();
    until_ended(&server).await;
    let (client, server) = tcp_pair().await;
    client.set_zero_linger().unwrap();
    drop(client);
    until_ended(&server).await;
}

async fn until_ended(socket: &TcpStream) {
    let ended = async {
        while !has_ended(socket) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SOON, ended).await.expect("an end");
}
