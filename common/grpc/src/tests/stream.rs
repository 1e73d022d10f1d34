//! Both ends of a stream.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderValue, Method};
use mux::{ConnectId, Packet};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::timeout;

use super::connection::request;
use super::{data, failure, next, packet, packets, pair, pair_with, ready, serve, soon};
use crate::frame::{OutFrame, PREFIX};
use crate::raw::{DATA, END_HEADERS, HEADERS, WINDOW_UPDATE, frame, hello};
use crate::status::{code_of, code_of_http, trailers, verdict};
use crate::{Code, Incoming, Keepalive, MESSAGE_LIMIT, ServerSettings, Wire, WireError, WireStream};

#[tokio::test(start_paused = true)]
async fn all_packets_both_ways() {
    let mut pair = pair().await;
    for _ in 0..50 {
        for sent in packets() {
            pair.client.stream.send(sent.clone()).unwrap();
            pair.server.send(sent.clone()).unwrap();
        }
        for sent in packets() {
            assert_eq!(packet(&mut pair.server).await, sent);
            assert_eq!(packet(&mut pair.client.stream).await, sent);
        }
    }
}

/// A DATA whose message has exactly this many bytes.
fn message_of(length: usize) -> Packet<Bytes> {
    let size = |payload| OutFrame::new(data(vec![7; payload])).remaining() - PREFIX;
    let head = size(length) - length;
    assert_eq!(size(length - head), length);
    data(vec![7; length - head])
}

#[tokio::test(start_paused = true)]
async fn four_mebibytes_are_taken_and_one_byte_more_is_not() {
    assert_eq!(MESSAGE_LIMIT, 4 * 1024 * 1024);
    let mut pair = pair().await;
    let longest = message_of(MESSAGE_LIMIT);
    pair.client.stream.send(longest.clone()).unwrap();
    assert_eq!(packet(&mut pair.server).await, longest);
    pair.client.stream.send(message_of(MESSAGE_LIMIT + 1)).unwrap();
    assert_eq!(failure(&mut pair.server).await.code, Code::ResourceExhausted);
    assert_eq!(next(&mut pair.server).await, None);
}

/// Sends until the stream is not ready. Returns the payload's bytes.
pub(super) async fn fill(stream: &mut WireStream) -> usize {
    let mut sent = 0;
    while let Ok(room) = timeout(Duration::from_secs(5), poll_fn(|cx| stream.poll_ready(cx))).await {
        let room = room.unwrap().min(64 << 10);
        assert!(room > 0);
        stream.send(data(vec![1; room])).unwrap();
        sent += room;
    }
    sent
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_stops_the_sender_at_its_window() {
    let mut pair = pair().await;
    let window = ServerSettings::for_agents().initial_stream_window as usize;
    let sent = fill(&mut pair.client.stream).await;
    assert!((window - (64 << 10)..=window + (8 << 10)).contains(&sent), "{sent} of a window of {window}");
    // Control packets may still be sent.
    pair.client.stream.send(Packet::CloseReq { id: ConnectId(1) }).unwrap();
    let mut read = 0;
    while read < sent {
        let Packet::Data { payload, .. } = packet(&mut pair.server).await else { panic!("DATA first") };
        read += payload.len();
    }
    assert_eq!(packet(&mut pair.server).await, Packet::CloseReq { id: ConnectId(1) });
    assert!(ready(&mut pair.client.stream).await.unwrap() > 0);
    let (down, up) = (fill(&mut pair.server).await, fill(&mut pair.client.stream).await);
    assert!(down.abs_diff(up) <= 8 << 10, "both ways alike: {down} and {up}");
}

/// Reads all packets while the peer sends as much as it may. Returns the payload's bytes.
async fn read_on(from: &mut WireStream, to: &mut WireStream) -> usize {
    let mut read = 0;
    loop {
        let sent = fill(from).await;
        let before = read;
        while let Ok(incoming) = timeout(Duration::from_secs(5), poll_fn(|cx| to.poll_packet(cx))).await {
            let Some(Ok(Incoming::Packet(Packet::Data { payload, .. }))) = incoming else { panic!("DATA") };
            read += payload.len();
        }
        if sent == 0 && read == before {
            return read;
        }
    }
}

/// For frames of any size: a Go client splits messages of 32 KiB or more into frames of 16 KiB.
#[tokio::test(start_paused = true)]
async fn bytes_read_ahead_stay_within_the_window() {
    for settings in [ServerSettings::for_agents(), ServerSettings::for_frontends()] {
        let window = settings.initial_stream_window as usize;
        let mut pair = pair_with(settings).await;
        pair.server.hold_back(true);
        let read = read_on(&mut pair.client.stream, &mut pair.server).await;
        assert!((window / 2..=window + (72 << 10)).contains(&read), "{read} of a window of {window}");
        pair.server.hold_back(false);
        assert!(fill(&mut pair.client.stream).await > window / 2, "given back");
    }
}

/// A tunnel that its client closes while it waits for window never asks for it again.
#[tokio::test(start_paused = true)]
async fn a_stream_that_no_longer_sends_leaves_the_window_to_the_others() {
    let (client_io, server_io) = duplex(1 << 20);
    let mut served = serve(server_io, ServerSettings::for_frontends());
    let (requests, connection) = h2::client::handshake::<_>(client_io).await.unwrap();
    tokio::spawn(connection);
    let mut requests = requests.ready().await.unwrap();
    let (closed, _to_closed) =
        requests.send_request(request(Method::POST, "application/grpc"), false).unwrap();
    let mut closed_stream = served.accept().await;
    let (_other, _to_other) =
        requests.send_request(request(Method::POST, "application/grpc"), false).unwrap();
    let mut other_stream = served.accept().await;
    let window = fill(&mut closed_stream).await;
    assert_eq!(fill(&mut other_stream).await, 0, "it waits for the connection's window");

    let mut body = soon(closed).await.unwrap().into_body();
    while let Ok(Some(chunk)) = timeout(Duration::from_secs(5), body.data()).await {
        body.flow_control().release_capacity(chunk.unwrap().len()).unwrap();
    }
    let sent = fill(&mut other_stream).await;
    assert!(sent > window / 2, "{sent} of a window of {window}");
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_the_window_is_read_ahead_whole() {
    let mut pair = pair().await;
    pair.server.hold_back(true);
    let longest = message_of(MESSAGE_LIMIT);
    pair.client.stream.send(longest.clone()).unwrap();
    assert_eq!(packet(&mut pair.server).await, longest);
}

#[tokio::test(start_paused = true)]
async fn idle_streams_hold_no_window_back() {
    // Many streams on a connection whose window is no larger than one stream's.
    let mut pair =
        pair_with(ServerSettings { initial_connection_window: 65_535, ..ServerSettings::for_agents() }).await;
    // Ready, but nothing to send: the whole window is available to the next sender.
    assert!(ready(&mut pair.client.stream).await.unwrap() > 60_000);
    assert!(ready(&mut pair.client.stream).await.unwrap() > 60_000);
    assert!(fill(&mut pair.client.stream).await <= 65_535 + (8 << 10));
    assert!(matches!(packet(&mut pair.server).await, Packet::Data { .. }));
}

/// A client that returns the connection's window as bytes arrive, like grpc-go, but no stream's: its streams stall one after
/// another, and those that wait for window hold nothing of the connection's.
#[tokio::test(start_paused = true)]
async fn stalled_streams_hold_no_window_of_their_connection() {
    const STREAMS: u32 = 1_000;
    let (mut client_io, server_io) = duplex(1 << 20);
    let mut served = serve(server_io, ServerSettings::for_frontends());
    client_io.write_all(&hello(&[])).await.unwrap();
    for stream in (1..).step_by(2).take(STREAMS as usize) {
        let request = b"\x83\x86\x84\x41\x01a\x0f\x10\x10application/grpc";
        client_io.write_all(&frame(HEADERS, END_HEADERS, stream, request)).await.unwrap();
    }
    tokio::spawn(async move {
        let mut head = [0; 9];
        while client_io.read_exact(&mut head).await.is_ok() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            client_io.read_exact(&mut vec![0; length as usize]).await.unwrap();
            if head[3] == DATA && length > 0 {
                client_io.write_all(&frame(WINDOW_UPDATE, 0, 0, &length.to_be_bytes())).await.unwrap();
            }
        }
    });
    let mut stalled = Vec::new();
    for number in 0..STREAMS {
        let mut stream = served.accept().await;
        let sent = fill(&mut stream).await;
        assert!((65_535 - (8 << 10)..=65_535 + (8 << 10)).contains(&sent), "stream {number} sent {sent}");
        stalled.push(stream);
    }
}

#[tokio::test(start_paused = true)]
async fn twenty_thousand_small_frames_unread() {
    let mut pair = pair().await;
    for number in 0..20_000_u32 {
        pair.client.stream.send(data(vec![number as u8])).unwrap();
    }
    // The second pong proves that the server's connection has read everything before it.
    for _ in 0..2 {
        pair.client.connection.keepalive.probe();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!*pair.client.connection.keepalive.unresponsive().borrow());
    }
    for number in 0..20_000_u32 {
        assert_eq!(packet(&mut pair.server).await, data(vec![number as u8]));
    }
    pair.client.stream.send(Packet::Drain).unwrap();
    assert_eq!(packet(&mut pair.server).await, Packet::Drain);
}

/// Reads ahead until the peer's window is exhausted.
async fn hold(stream: &mut WireStream) {
    let all = async {
        poll_fn::<(), _>(|cx| {
            stream.poll_hold(cx);
            Poll::Pending
        })
        .await
    };
    let _ = timeout(Duration::from_secs(5), all).await;
}

#[tokio::test(start_paused = true)]
async fn held_packets_are_handed_out_in_order_and_their_window_is_given_back() {
    let mut pair = pair().await;
    let sent = fill(&mut pair.client.stream).await;
    pair.client.stream.send(Packet::Drain).unwrap();
    pair.client.stream.finish();
    hold(&mut pair.server).await;
    let window = ServerSettings::for_agents().initial_stream_window as usize;
    assert!(pair.server.held() >= window, "{} of {sent}", pair.server.held());
    let mut read = 0;
    while read < sent {
        let Packet::Data { payload, .. } = packet(&mut pair.server).await else { panic!("DATA first") };
        read += payload.len();
    }
    assert_eq!(packet(&mut pair.server).await, Packet::Drain);
    assert_eq!(next(&mut pair.server).await, None);
    assert!(pair.server.held() < 64 << 10, "{}", pair.server.held());
}

#[tokio::test(start_paused = true)]
async fn held_packets_do_not_pin_their_receive_buffers() {
    let mut pair = pair().await;
    for _ in 0..100 {
        pair.client.stream.send(data("x")).unwrap();
    }
    hold(&mut pair.server).await;
    assert!(pair.server.held() >= 100 * "x".len());
    assert_eq!(pair.server.slices_ahead(), 1, "copied together");
}

#[tokio::test(start_paused = true)]
async fn held_packets_come_before_the_failure_of_their_stream() {
    let mut pair = pair().await;
    pair.client.stream.send(data("x")).unwrap();
    hold(&mut pair.server).await;
    drop(pair.client);
    hold(&mut pair.server).await;
    assert_eq!(packet(&mut pair.server).await, data("x"));
    assert_eq!(failure(&mut pair.server).await.code, Code::Canceled);
}

#[tokio::test(start_paused = true)]
async fn a_window_full_of_one_byte_packets_is_no_flood() {
    let mut pair = pair().await;
    let mut sent = 0;
    while timeout(Duration::from_secs(5), poll_fn(|cx| pair.client.stream.poll_ready(cx))).await.is_ok() {
        pair.client.stream.send(data("x")).unwrap();
        sent += 1;
    }
    assert!(sent > 12_000);
    for _ in 0..sent {
        assert_eq!(packet(&mut pair.server).await, data("x"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_server_ends_with_ok_behind_its_packets() {
    let mut pair = pair().await;
    pair.server.send(data(vec![3; 300_000])).unwrap();
    pair.server.finish();
    drop(pair.server);
    assert_eq!(packet(&mut pair.client.stream).await, data(vec![3; 300_000]));
    assert_eq!(next(&mut pair.client.stream).await, None);
    assert_eq!(next(&mut pair.client.stream).await, None);
    // A send after the peer's end succeeds: `poll_packet` has reported the end already.
    pair.client.stream.send(Packet::Drain).unwrap();
    pair.client.stream.finish();
    drop(pair.client.stream);
    soon(pair.client.connection.closed()).await.unwrap();
    soon(pair.served.serving).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_server_ends_with_a_status() {
    let mut pair = pair().await;
    let status = WireError::new(Code::Unauthenticated, "50 % größer\nnot allowed");
    pair.server.fail(&status);
    assert_eq!(status.message, "50 % größer\\nnot allowed");
    assert_eq!(failure(&mut pair.client.stream).await, status);
    assert_eq!(pair.server.send(Packet::Drain).unwrap_err().code, Code::Internal);
}

#[tokio::test(start_paused = true)]
async fn the_client_ends_and_the_server_goes_on() {
    let mut pair = pair().await;
    pair.client.stream.send(Packet::Drain).unwrap();
    pair.client.stream.finish();
    assert_eq!(packet(&mut pair.server).await, Packet::Drain);
    assert_eq!(next(&mut pair.server).await, None);
    pair.server.send(data("late")).unwrap();
    pair.server.finish();
    assert_eq!(packet(&mut pair.client.stream).await, data("late"));
    assert_eq!(next(&mut pair.client.stream).await, None);
}

#[tokio::test(start_paused = true)]
async fn data_of_a_finished_client_arrives_after_its_end() {
    let mut pair = pair().await;
    let mut sent = 0;
    while sent < 900_000 {
        pair.client.stream.send(data(vec![2; 60_000])).unwrap();
        sent += 60_000;
    }
    pair.client.stream.finish();
    drop(pair.client.stream);
    let closing = tokio::spawn(pair.client.connection.close(Duration::from_secs(10)));
    while sent > 0 {
        assert_eq!(packet(&mut pair.server).await, data(vec![2; 60_000]));
        sent -= 60_000;
    }
    assert_eq!(next(&mut pair.server).await, None);
    pair.server.finish();
    drop(pair.server);
    soon(closing).await.unwrap();
    soon(pair.served.serving).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_is_bounded() {
    let mut pair = pair().await;
    pair.client.stream.finish();
    drop(pair.client.stream);
    let before = tokio::time::Instant::now();
    pair.client.connection.close(Duration::from_secs(3)).await;
    assert_eq!(before.elapsed().as_secs(), 3, "the server never ended the stream");
    assert_eq!(next(&mut pair.server).await, None);
}

#[tokio::test(start_paused = true)]
async fn dropped_stream_is_canceled() {
    let mut one = pair().await;
    drop(one.client.stream);
    assert_eq!(failure(&mut one.server).await.code, Code::Canceled);
    assert_eq!(one.server.send(Packet::Drain).unwrap_err().code, Code::Canceled);
    assert_eq!(ready(&mut one.server).await.unwrap_err().code, Code::Canceled);

    let mut other = pair().await;
    drop(other.server);
    assert_eq!(failure(&mut other.client.stream).await.code, Code::Canceled);
    assert_eq!(other.client.stream.send(Packet::Drain).unwrap_err().code, Code::Canceled);
    assert_eq!(ready(&mut other.client.stream).await.unwrap_err().code, Code::Canceled);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_ends_its_streams() {
    let mut one = pair().await;
    one.served.serving.abort();
    assert_eq!(failure(&mut one.client.stream).await.code, Code::Unavailable);
    assert_eq!(one.client.stream.send(Packet::Drain).unwrap_err().code, Code::Unavailable);

    let mut other = pair().await;
    drop(other.client.connection);
    assert_eq!(failure(&mut other.server).await.code, Code::Canceled, "as a Go handler sees it");
}

#[tokio::test(start_paused = true)]
async fn that_a_stream_is_over_is_known_before_it_is_read_to_its_end() {
    let mut one = pair().await;
    let early = timeout(Duration::from_secs(5), poll_fn(|cx| one.client.stream.poll_over(cx))).await;
    early.expect_err("it goes on");
    one.server.send(data(vec![3; 200_000])).unwrap();
    one.server.finish();
    drop(one.server);
    soon(poll_fn(|cx| one.client.stream.poll_over(cx))).await;
    assert_eq!(packet(&mut one.client.stream).await, data(vec![3; 200_000]));
    assert_eq!(next(&mut one.client.stream).await, None);

    let mut other = pair().await;
    other.client.stream.send(data(vec![4; 60_000])).unwrap();
    assert_eq!(packet(&mut other.server).await, data(vec![4; 60_000]), "the stream is open");
    other.client.stream.send(data(vec![5; 60_000])).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(other.client.connection);
    soon(poll_fn(|cx| other.server.poll_over(cx))).await;
    assert_eq!(packet(&mut other.server).await, data(vec![5; 60_000]), "what had arrived");
    assert_eq!(failure(&mut other.server).await.code, Code::Canceled);
}

#[tokio::test(start_paused = true)]
async fn an_empty_data_is_never_sent() {
    let mut pair = pair().await;
    pair.client.stream.send(data("")).unwrap();
    pair.client.stream.send(Packet::Drain).unwrap();
    assert_eq!(packet(&mut pair.server).await, Packet::Drain);
}

/// The error of the server's stream for a hand-built body.
async fn verdict_on(body: &'static [u8]) -> WireError {
    let (client_io, server_io) = duplex(1 << 20);
    let mut served = serve(server_io, ServerSettings::for_agents());
    let (requests, connection) = h2::client::handshake::<_>(client_io).await.unwrap();
    tokio::spawn(connection);
    let mut requests = requests.ready().await.unwrap();
    let (_response, mut send) =
        requests.send_request(request(Method::POST, "application/grpc"), false).unwrap();
    send.send_data(Bytes::from_static(body), true).unwrap();
    failure(&mut served.accept().await).await
}

#[tokio::test(start_paused = true)]
async fn bodies_that_are_no_grpc() {
    assert_eq!(verdict_on(&[1, 0, 0, 0, 1, 0]).await.code, Code::Unimplemented);
    assert_eq!(verdict_on(&[0, 0, 0, 0, 2, 0]).await.code, Code::Internal);
    assert_eq!(verdict_on(&[0, 0, 0]).await.code, Code::Internal);
    assert_eq!(verdict_on(&[0, 0xff, 0xff, 0xff, 0xff]).await.code, Code::ResourceExhausted);
}

#[test]
fn trailers_carry_any_text() {
    for text in ["", "plain", "100 %", "größer", "a\u{7f}b", "%41"] {
        let sent = trailers(Code::NotFound, text);
        let error = verdict(&sent).unwrap_err();
        assert_eq!((error.code, error), (Code::NotFound, WireError::new(Code::NotFound, text)));
    }
    assert_eq!(verdict(&trailers(Code::OK, "")), Ok(()));
    assert_eq!(verdict(&HeaderMap::new()).unwrap_err().code, Code::Unknown);
    let mut unusual = HeaderMap::new();
    unusual.insert("grpc-status", HeaderValue::from_static("77"));
    assert_eq!(verdict(&unusual).unwrap_err().code, Code::Unknown);
}

#[test]
fn codes_are_grpc_gos() {
    use h2::Reason;
    for (reason, code) in [
        (Reason::NO_ERROR, Code::Internal),
        (Reason::PROTOCOL_ERROR, Code::Internal),
        (Reason::INTERNAL_ERROR, Code::Internal),
        (Reason::FLOW_CONTROL_ERROR, Code::ResourceExhausted),
        (Reason::REFUSED_STREAM, Code::Unavailable),
        (Reason::CANCEL, Code::Canceled),
        (Reason::ENHANCE_YOUR_CALM, Code::ResourceExhausted),
        (Reason::INADEQUATE_SECURITY, Code::PermissionDenied),
        (Reason::HTTP_1_1_REQUIRED, Code::Internal),
        (Reason::from(99), Code::Unknown),
    ] {
        assert_eq!(code_of(reason), code, "{reason}");
    }
    for (number, code) in Code::ALL.iter().copied().enumerate() {
        assert_eq!(Code::from_number(number as u32), Some(code));
        assert_eq!(code as usize, number);
    }
    assert_eq!(code_of_http(http::StatusCode::BAD_GATEWAY), Code::Unavailable);
    assert_eq!(code_of_http(http::StatusCode::NOT_FOUND), Code::Unimplemented);
}

#[test]
fn messages_are_one_short_line() {
    let error = WireError::new(Code::Internal, "a\r\nb\u{1b}".to_owned() + &"ö".repeat(400));
    assert!(error.message.starts_with("a\\r\\nb\\u{1b}ö"));
    assert!(error.message.len() <= 256);
}

#[test]
fn the_default_keepalive_is_grpc_gos() {
    assert_eq!(Keepalive::DEFAULT.interval, Duration::from_secs(2 * 3600));
}
