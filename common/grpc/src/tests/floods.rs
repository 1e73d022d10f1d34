//! Raw HTTP/2: the announced settings, and the answers to adversarial peers.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::timeout;

use super::{Served, data, dial, failure, serve, soon};
use crate::raw::{
    ACK, CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, hello,
};
use crate::{Code, ConnectionError, Request, ServerSettings, Wire};

// HTTP/2 error codes.
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

/// POST, http, /, an authority of one letter, content-type application/grpc.
pub(super) const REQUEST: &[u8] = b"\x83\x86\x84\x41\x01a\x0f\x10\x10application/grpc";

/// A client's preface with these settings, and then these frames.
pub(super) fn with(settings: &[(u16, u32)], frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    std::iter::once(hello(settings)).chain(frames).flatten().collect()
}

/// A client's stream ids, in order.
fn streams(count: usize) -> impl Iterator<Item = u32> {
    (1..).step_by(2).take(count)
}

/// The complete frames of `bytes`: type, stream, payload.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u32, &[u8])> {
    let mut all = Vec::new();
    while let [a, b, c, kind, _, s0, s1, s2, s3, rest @ ..] = bytes {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((payload, next)) = rest.split_at_checked(length) else { break };
        all.push((*kind, u32::from_be_bytes([*s0, *s1, *s2, *s3]), payload));
        bytes = next;
    }
    all
}

/// The error code of the GOAWAY, if there is one.
fn goaway(bytes: &[u8]) -> Option<u32> {
    let frame = frames(bytes).into_iter().find(|(kind, _, _)| *kind == GOAWAY)?;
    Some(u32::from_be_bytes(frame.2[4..8].try_into().unwrap()))
}

/// Reads until the peer ends the connection, or sends nothing for 1 s.
async fn all_of(io: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(Ok(1..)) = timeout(Duration::from_secs(1), io.read_buf(&mut bytes)).await {}
    bytes
}

/// Returns a listener's answer to these bytes.
async fn answer(settings: ServerSettings, flood: Vec<u8>) -> Vec<u8> {
    let (client_io, server_io) = duplex(1 << 20);
    // The requests stay unanswered, as with a slow caller.
    let _served = serve(server_io, settings);
    let (mut reading, mut writing) = tokio::io::split(client_io);
    let flooding = tokio::spawn(async move {
        // An error means that the listener has closed the connection.
        let _ = writing.write_all(&flood).await;
        writing
    });
    let bytes = all_of(&mut reading).await;
    drop(soon(flooding).await.unwrap());
    bytes
}

fn listeners() -> [ServerSettings; 2] {
    [ServerSettings::for_agents(), ServerSettings::for_frontends()]
}

/// A peer's initial SETTINGS, and the connection's window.
fn announced(bytes: &[u8]) -> (BTreeMap<u16, u32>, u32) {
    let (mut settings, mut window) = (BTreeMap::new(), 65_535);
    for (kind, stream, payload) in frames(bytes) {
        match (kind, stream) {
            (SETTINGS, 0) => settings.extend(payload.chunks_exact(6).map(|pair| {
                let id = u16::from_be_bytes(pair[..2].try_into().unwrap());
                (id, u32::from_be_bytes(pair[2..].try_into().unwrap()))
            })),
            (WINDOW_UPDATE, 0) => window += u32::from_be_bytes(payload.try_into().unwrap()),
            _ => {}
        }
    }
    (settings, window)
}

/// The announced limits: streams, the stream's window, the largest frame, the largest header list.
#[tokio::test(start_paused = true)]
async fn limits_and_windows_are_announced() {
    let largest = (1 << 31) - 1;
    let expected = [
        ([(3, 8), (4, 64), (5, 128 << 10), (6, 64 << 10)], 65_535),
        ([(3, 65_536), (4, 256 << 10), (5, 16 << 10), (6, 32 << 10)], largest),
    ];
    for (settings, (pairs, window)) in listeners().into_iter().zip(expected) {
        let bytes = answer(settings, with(&[], [])).await;
        assert_eq!(announced(&bytes), (pairs.into(), window));
    }
    let (client_io, mut server_io) = duplex(1 << 20);
    tokio::spawn(dial(client_io, HeaderMap::new()));
    let bytes = all_of(&mut server_io).await;
    let pairs = [(2, 0), (4, 256 << 10), (5, 128 << 10), (6, 64 << 10)];
    assert_eq!(announced(bytes.strip_prefix(PREFACE).unwrap()), (pairs.into(), 64 << 20));
}

/// An agent that has acknowledged the settings and opened a stream, which is not accepted yet.
async fn under_review() -> (DuplexStream, Served, Request) {
    let (mut client_io, server_io) = duplex(16 << 20);
    let mut served = serve(server_io, ServerSettings::for_agents());
    let opened = [frame(SETTINGS, ACK, 0, &[]), frame(HEADERS, END_HEADERS, 1, REQUEST)];
    client_io.write_all(&with(&[], opened)).await.unwrap();
    let request = soon(served.requests.recv()).await.unwrap();
    (client_io, served, request)
}

/// An agent's windows are small until its stream is accepted.
#[tokio::test(start_paused = true)]
async fn windows_widen_when_a_stream_is_accepted() {
    let (mut client_io, _served, request) = under_review().await;
    assert_eq!(announced(&all_of(&mut client_io).await).1, (1 << 16) - 1, "as long as it is under review");
    let _stream = request.accept(HeaderMap::new()).unwrap();
    let (settings, window) = announced(&all_of(&mut client_io).await);
    assert_eq!((settings, window), ([(4, 256 << 10)].into(), 64 << 20));
}

/// The peer does not acknowledge the settings: its streams keep the windows that HTTP/2 begins with.
#[tokio::test(start_paused = true)]
async fn small_frames_before_admission_end_the_connection() {
    for (count, ends) in [(100, None), (200, Some(ENHANCE_YOUR_CALM))] {
        let request = frame(HEADERS, END_HEADERS, 1, REQUEST);
        let data = std::iter::repeat_n(frame(DATA, 0, 1, b"x"), count);
        let flood = with(&[], std::iter::once(request).chain(data));
        assert_eq!(goaway(&answer(ServerSettings::for_agents(), flood).await), ends, "{count} frames");
    }
}

/// A message in fragments ends the stream, and nothing of it is held although its owner keeps it.
#[tokio::test(start_paused = true)]
async fn stream_that_failed_holds_nothing_of_later_frames() {
    let (mut client_io, _served, request) = under_review().await;
    let mut stream = request.accept(HeaderMap::new()).unwrap();
    all_of(&mut client_io).await;
    client_io.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
    let fragment = frame(DATA, 0, 1, b"\0");
    client_io.write_all(&frame(DATA, 0, 1, b"\0\0\x10\0\0")).await.unwrap();
    client_io.write_all(&fragment.repeat(2_000)).await.unwrap();
    assert_eq!(failure(&mut stream).await.code, Code::ResourceExhausted);
    client_io.write_all(&fragment.repeat(50_000)).await.unwrap();
    assert_eq!(goaway(&all_of(&mut client_io).await), None, "the connection's other streams go on");
    assert_eq!(stream.held(), 0, "HTTP/2 drops the frames as they come");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_sends_too_much_before_it_is_admitted_ends() {
    let (mut client_io, server_io) = duplex(1 << 20);
    let served = serve(server_io, ServerSettings::for_agents());
    client_io.write_all(&hello(&[])).await.unwrap();
    let ping = frame(PING, ACK, 0, &[1; 8]).repeat(10_000);
    let mut sent = 0;
    while client_io.write_all(&ping).await.is_ok() {
        sent += ping.len();
        assert!(sent < 4 << 20, "it is read on");
    }
    assert!(matches!(soon(served.serving).await.unwrap(), Err(ConnectionError::UnadmittedMemory)));
}

#[tokio::test(start_paused = true)]
async fn streams_above_the_limit_are_refused() {
    for settings in listeners() {
        let most = settings.max_concurrent_streams as usize;
        let flood = streams(most + 1).map(|stream| frame(HEADERS, END_HEADERS, stream, REQUEST));
        let bytes = answer(settings, with(&[], flood)).await;
        let resets: Vec<_> =
            frames(&bytes).into_iter().filter(|(kind, _, _)| matches!(*kind, RST_STREAM | GOAWAY)).collect();
        let last = 2 * u32::try_from(most).unwrap() + 1;
        assert_eq!(resets, [(RST_STREAM, last, &REFUSED_STREAM.to_be_bytes()[..])]);
    }
}

/// A client that ignores the announced limit loses the streams above it, and nothing else.
#[tokio::test(start_paused = true)]
async fn seventy_thousand_streams_of_a_frontend_are_refused_only_above_the_limit() {
    let flood = streams(70_000).map(|stream| frame(HEADERS, END_HEADERS, stream, REQUEST));
    let bytes = answer(ServerSettings::for_frontends(), with(&[], flood)).await;
    let resets = frames(&bytes).into_iter().filter(|(kind, ..)| matches!(*kind, RST_STREAM | GOAWAY));
    let excess = streams(70_000).skip(1 << 16);
    let refused = REFUSED_STREAM.to_be_bytes();
    assert!(resets.eq(excess.map(|stream| (RST_STREAM, stream, &refused[..]))));
}

/// Between native peers a DATA and its head fit into one frame.
#[tokio::test(start_paused = true)]
async fn sixty_four_kibibytes_are_one_frame() {
    let (mut client_io, server_io) = duplex(1 << 20);
    let mut served = serve(server_io, ServerSettings::for_agents());
    let open = frame(HEADERS, END_HEADERS, 1, REQUEST);
    client_io.write_all(&with(&[(4, 1 << 20), (5, 128 << 10)], [open])).await.unwrap();
    client_io.write_all(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 20).to_be_bytes())).await.unwrap();
    let mut stream = served.accept().await;
    assert!(super::ready(&mut stream).await.unwrap() >= 64 << 10);
    stream.send(data(vec![7; 64 << 10])).unwrap();
    let bytes = all_of(&mut client_io).await;
    let lengths: Vec<_> =
        frames(&bytes).iter().filter(|(kind, _, _)| *kind == DATA).map(|(_, _, data)| data.len()).collect();
    assert!(matches!(lengths[..], [length] if length > 64 << 10), "{lengths:?}");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_streams_that_are_reset_at_once_ends_the_connection() {
    for settings in listeners() {
        let flood = streams(10_000).flat_map(|stream| {
            let cancel = frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
            [frame(HEADERS, END_HEADERS, stream, REQUEST), cancel]
        });
        assert_eq!(goaway(&answer(settings, with(&[], flood)).await), Some(ENHANCE_YOUR_CALM));
    }
}

/// A client that cancels thousands of dials at once is no flood: its streams are accepted as they are read.
#[tokio::test]
async fn burst_of_canceled_streams_keeps_a_frontends_connection() {
    let burst = streams(20_000).flat_map(|stream| {
        let cancel = frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
        [frame(HEADERS, END_HEADERS, stream, REQUEST), cancel]
    });
    let bytes = answer(ServerSettings::for_frontends(), with(&[], burst)).await;
    assert_eq!(goaway(&bytes), None);
}

/// "MadeYouReset": the peer breaks a rule on each of its streams, so that we must reset them.
#[tokio::test(start_paused = true)]
async fn a_flood_of_streams_that_we_must_reset_ends_the_connection() {
    for settings in listeners() {
        let limit = settings.max_local_error_resets;
        // Shared connections live long, and the count never decreases: half of the limit must not end one.
        for (count, end) in [(limit / 2, None), (limit + 10, Some(ENHANCE_YOUR_CALM))] {
            let flood = streams(count).flat_map(|stream| {
                // More than the largest window.
                let overflow = frame(WINDOW_UPDATE, 0, stream, &i32::MAX.to_be_bytes());
                [frame(HEADERS, END_HEADERS, stream, REQUEST), overflow]
            });
            assert_eq!(goaway(&answer(settings.clone(), with(&[], flood)).await), end, "{count}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_continuations_ends_the_connection() {
    for settings in listeners() {
        // The value of a header field without end.
        let begin = [REQUEST, b"\x00\x01x\x7f\xff\xff\xff\x07"].concat();
        let flood = std::iter::repeat_n(frame(CONTINUATION, 0, 1, b"aaaaaaaa"), 20_000);
        let flood = std::iter::once(frame(HEADERS, 0, 1, &begin)).chain(flood);
        assert_eq!(goaway(&answer(settings, with(&[], flood)).await), Some(ENHANCE_YOUR_CALM));
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_empty_data_ends_the_connection() {
    for settings in listeners() {
        let flood = std::iter::repeat_n(frame(DATA, 0, 1, &[]), 200);
        let flood = std::iter::once(frame(HEADERS, END_HEADERS, 1, REQUEST)).chain(flood);
        assert_eq!(goaway(&answer(settings, with(&[], flood)).await), Some(ENHANCE_YOUR_CALM));
    }
}

/// While a peer does not read the answers to its pings and settings, the server reads nothing from it, so no answers queue.
#[tokio::test(start_paused = true)]
async fn flood_with_unread_answers_is_not_read() {
    for settings in listeners() {
        for flood in [frame(PING, 0, 0, &[1; 8]), frame(SETTINGS, 0, 0, &[])] {
            let (mut client_io, server_io) = duplex(64 << 10);
            let _served = serve(server_io, settings.clone());
            client_io.write_all(&hello(&[])).await.unwrap();
            let block = flood.repeat(1_000);
            let mut taken = 0;
            while timeout(Duration::from_secs(5), client_io.write_all(&block))
                .await
                .is_ok_and(|sent| sent.is_ok())
            {
                taken += block.len();
                assert!(taken < 2 << 20, "{taken} bytes were read, and their answers kept");
            }
        }
    }
}

fn metadata(length: usize) -> HeaderMap {
    let mut metadata = HeaderMap::new();
    for number in 0..length / 10_000 {
        let name = HeaderName::try_from(format!("x-{number}")).unwrap();
        metadata.append(name, HeaderValue::from_bytes(&[b'a'; 9_900]).unwrap());
    }
    metadata
}

#[tokio::test(start_paused = true)]
async fn header_lists_are_limited() {
    let (agents, frontends) = (ServerSettings::for_agents, ServerSettings::for_frontends);
    let rows = [(agents(), 60_000, true), (agents(), 70_000, false), (frontends(), 30_000, true)];
    for (settings, length, fits) in rows.into_iter().chain([(frontends(), 40_000, false)]) {
        let (client_io, server_io) = duplex(1 << 20);
        let mut served = serve(server_io, settings);
        let connecting = dial(client_io, metadata(length));
        if fits {
            let (client, server) = tokio::join!(connecting, served.accept());
            client.unwrap();
            drop(server);
        } else {
            // The connection refuses it at once, before the caller receives the request.
            assert_ne!(connecting.await.unwrap_err().code, Code::DeadlineExceeded, "{length}");
            assert!(served.requests.try_recv().is_err(), "{length}");
        }
    }
    // The client applies the same limit to the server's response headers.
    for (length, fits) in [(60_000, true), (70_000, false)] {
        let (client_io, server_io) = duplex(1 << 20);
        let mut served = serve(server_io, agents());
        let accepting = async { soon(served.requests.recv()).await.unwrap().accept(metadata(length)) };
        let (client, server) = tokio::join!(dial(client_io, HeaderMap::new()), accepting);
        assert_eq!(client.is_ok(), fits, "{length}");
        drop(server);
    }
}

/// The loss of an agent ends thousands of streams at once, and their clients send until they have read it. The server ignores
/// these frames: each reset would count towards a limit of the connection's whole life.
#[tokio::test(start_paused = true)]
async fn data_behind_the_ends_of_many_streams_is_ignored() {
    const STREAMS: usize = 5_000;
    let (mut client_io, server_io) = duplex(16 << 20);
    let mut served = serve(server_io, ServerSettings::for_frontends());
    let open = streams(STREAMS).map(|stream| frame(HEADERS, END_HEADERS, stream, REQUEST));
    client_io.write_all(&with(&[], open)).await.unwrap();
    for _ in 0..STREAMS {
        served.accept().await.finish();
    }
    all_of(&mut client_io).await;
    let late: Vec<_> = streams(STREAMS).flat_map(|stream| frame(DATA, 0, stream, &[0; 300])).collect();
    client_io.write_all(&late).await.unwrap();
    let bytes = all_of(&mut client_io).await;
    let answers: Vec<_> = frames(&bytes).into_iter().filter(|(kind, ..)| *kind != WINDOW_UPDATE).collect();
    assert_eq!(answers, []);
}
