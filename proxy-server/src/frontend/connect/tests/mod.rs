//! One connection against a scripted dialer, in memory, in paused time.

mod closing;
mod sockets;

use proptest::prelude::*;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::*;
use crate::accept::Lifetimes;
use crate::frontend::barrier;
use crate::frontend::testing::{Endpoint, ReadEnd, Readings, SOON, ScriptedDial, dialer, frontend};

const REQUEST: &[u8] = b"CONNECT node:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";

struct Bench {
    frontend: Frontend,
    dials: UnboundedReceiver<ScriptedDial>,
    readings: Readings,
    lifetimes: Lifetimes,
}

impl Bench {
    fn new() -> Self {
        let (dialer, dials) = dialer();
        let (readings, lifetimes) = (Readings::new(), Lifetimes::default());
        let frontend = frontend(dialer, &readings, &lifetimes);
        Bench { frontend, dials, readings, lifetimes }
    }

    fn serve<S: Socket>(&self, socket: S) -> JoinHandle<()> {
        let frontend = self.frontend.clone();
        tokio::spawn(async move { frontend.serve_socket(socket, "test".into()).await })
    }

    fn connect(&self) -> (DuplexStream, JoinHandle<()>) {
        let (client, server) = duplex(1 << 20);
        (client, self.serve(server))
    }

    async fn dial(&mut self) -> ScriptedDial {
        timeout(SOON, self.dials.recv()).await.expect("a dial").expect("a dial")
    }

    /// The answer to this request until the end of file; the request must cause no dial.
    async fn answer_to(&mut self, request: &[u8]) -> String {
        let (mut client, task) = self.connect();
        client.write_all(request).await.unwrap();
        let answer = read_all(&mut client).await;
        drop(client);
        task.await.expect("no panic");
        assert!(self.dials.try_recv().is_err(), "nothing was dialed");
        assert_eq!(self.readings.metrics.http_connections.count(), 0);
        answer
    }
}

async fn read_all(client: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut answer = String::new();
    timeout(SOON, client.read_to_string(&mut answer)).await.expect("an end of file").expect("no reset");
    answer
}

async fn read_exactly(stream: &mut (impl AsyncReadExt + Unpin), length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    timeout(SOON, stream.read_exact(&mut bytes)).await.expect("bytes").expect("bytes");
    bytes
}

async fn expect_established(client: &mut (impl AsyncReadExt + Unpin)) {
    assert_eq!(read_exactly(client, answer::ESTABLISHED.len()).await, answer::ESTABLISHED);
}

#[tokio::test(start_paused = true)]
async fn bytes_go_both_ways_after_the_answer() {
    let mut bench = Bench::new();
    let (mut client, task) = bench.connect();
    client.write_all(REQUEST).await.unwrap();
    let dial = bench.dial().await;
    assert_eq!((dial.target.protocol.as_str(), dial.target.address.as_str()), ("tcp", "node:10250"));
    assert_eq!(bench.readings.metrics.http_connections.count(), 1);
    let mut endpoint = dial.succeed();
    expect_established(&mut client).await;
    task.await.expect("the task ends with the attachment");
    client.write_all(b"ping").await.unwrap();
    assert_eq!(read_exactly(&mut endpoint.stream, 4).await, b"ping");
    endpoint.stream.write_all(b"pong").await.unwrap();
    assert_eq!(read_exactly(&mut client, 4).await, b"pong");
    drop(endpoint.stream);
    assert_eq!(read_all(&mut client).await, "");
    drop(client);
    assert_eq!(endpoint.attached.await, Ok(None));
    assert_eq!(bench.readings.metrics.http_connections.count(), 0);
    assert_eq!(bench.readings.metrics.frontend_write.count(), 3, "the answer, the payload, the end");
    assert!(bench.readings.samples("stream_packets").is_empty(), "as in Go");
}

#[tokio::test(start_paused = true)]
async fn a_close_without_payload_is_timed_as_its_answer_and_its_end() {
    for leaves in [true, false] {
        let mut bench = Bench::new();
        let (mut client, _task) = bench.connect();
        client.write_all(REQUEST).await.unwrap();
        let endpoint = bench.dial().await.succeed();
        expect_established(&mut client).await;
        assert_eq!(bench.readings.metrics.frontend_write.count(), 1, "the answer");
        if leaves {
            drop(client);
            drop(endpoint.stream);
        } else {
            drop(endpoint.stream);
            assert_eq!(read_all(&mut client).await, "");
            drop(client);
        }
        timeout(SOON, endpoint.attached).await.expect("an end").expect("attached");
        assert_eq!(bench.readings.metrics.frontend_write.count(), 2, "the end");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_from_before_the_dial_until_the_clients_end() {
    let mut bench = Bench::new();
    // A buffer smaller than the answer and the payload, so that writing depends on the client's reads.
    let (mut client, server) = duplex(64);
    let _task = bench.serve(server);
    client.write_all(REQUEST).await.unwrap();
    let dial = bench.dial().await;
    assert_eq!(bench.lifetimes.connections.len(), 1, "for a dial");
    let mut endpoint = dial.succeed();
    expect_established(&mut client).await;
    endpoint.stream.write_all(&[7; 1000]).await.unwrap();
    drop(endpoint.stream);
    bench.lifetimes.connections.close();
    let early = timeout(Duration::from_millis(500), bench.lifetimes.connections.wait()).await;
    assert!(early.is_err(), "for what the client has not taken");
    assert_eq!(read_all(&mut client).await.len(), 1000);
    drop(client);
    timeout(SOON, bench.lifetimes.connections.wait()).await.expect("no longer");
    assert_eq!(endpoint.attached.await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn bytes_after_the_head_are_payload() {
    let mut bench = Bench::new();
    let (mut client, _task) = bench.connect();
    client.write_all(&[REQUEST, b"\r\nwith the head, "].concat()).await.unwrap();
    let dial = bench.dial().await;
    client.write_all(b"while dialing, ").await.unwrap();
    let mut endpoint = dial.succeed();
    expect_established(&mut client).await;
    client.write_all(b"after").await.unwrap();
    let expected = b"\r\nwith the head, while dialing, after";
    assert_eq!(read_exactly(&mut endpoint.stream, expected.len()).await, expected);
}

#[tokio::test(start_paused = true)]
async fn payload_sent_with_the_request_does_not_lift_the_barrier() {
    let mut bench = Bench::new();
    let (mut client, _task) = bench.connect();
    client.write_all(&[REQUEST, b"early"].concat()).await.unwrap();
    let mut endpoint = bench.dial().await.succeed();
    endpoint.stream.write_all(b"first").await.unwrap();
    assert_eq!(read_exactly(&mut endpoint.stream, 5).await, b"early");
    expect_established(&mut client).await;
    let told = Instant::now();
    assert_eq!(read_exactly(&mut client, 5).await, b"first");
    assert_eq!(told.elapsed(), barrier::MAX_HOLD);
}

/// The client reads with a buffer that is large enough for the 200 and the endpoint's first bytes.
async fn greeted(bench: &mut Bench) -> (DuplexStream, Endpoint) {
    let (mut client, _task) = bench.connect();
    client.write_all(REQUEST).await.unwrap();
    let mut endpoint = bench.dial().await.succeed();
    endpoint.stream.write_all(b"greeting").await.unwrap();
    endpoint.stream.shutdown().await.unwrap();
    let mut first = [0; 4096];
    let length = client.read(&mut first).await.unwrap();
    assert_eq!(&first[..length], answer::ESTABLISHED);
    (client, endpoint)
}

#[tokio::test(start_paused = true)]
async fn the_200_is_written_alone_and_payload_waits_50_ms() {
    let mut bench = Bench::new();
    let (mut client, _endpoint) = greeted(&mut bench).await;
    let told = Instant::now();
    assert_eq!(read_exactly(&mut client, 8).await, b"greeting");
    assert_eq!(told.elapsed(), Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn payload_follows_the_clients_first_byte_at_once() {
    let mut bench = Bench::new();
    let (mut client, _endpoint) = greeted(&mut bench).await;
    let told = Instant::now();
    client.write_all(b"h").await.unwrap();
    assert_eq!(read_exactly(&mut client, 8).await, b"greeting");
    assert_eq!(told.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn early_payload_is_bounded_and_complete() {
    let mut bench = Bench::new();
    let (mut client, server) = duplex(1024);
    let _task = bench.serve(server);
    let payload: Vec<u8> = (0..3 * MAX_EARLY).map(|i| i as u8).collect();
    let sent = payload.clone();
    let (mut reader, mut writer) = tokio::io::split(client);
    let writing = tokio::spawn(async move {
        writer.write_all(REQUEST).await.unwrap();
        writer.write_all(&sent).await.unwrap();
        writer
    });
    let dial = bench.dial().await;
    sleep(Duration::from_secs(5)).await;
    assert!(!writing.is_finished(), "the rest waits in the socket");
    let mut endpoint = dial.succeed();
    expect_established(&mut reader).await;
    assert_eq!(read_exactly(&mut endpoint.stream, payload.len()).await, payload);
    client = reader.unsplit(writing.await.unwrap());
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn early_payload_behind_a_long_head_has_the_same_bound() {
    let (mut client, mut server) = duplex(4 * MAX_EARLY);
    client.write_all(&[1; 4 * MAX_EARLY]).await.unwrap();
    let mut early = BytesMut::with_capacity(FIRST_READ);
    (0..9).for_each(|_| early.extend_from_slice(&[0; 1_000]));
    let _head = early.split();
    assert!(timeout(Duration::from_secs(1), left(&mut server, &mut early)).await.is_err());
    assert_eq!(early.len(), MAX_EARLY);
}

#[tokio::test(start_paused = true)]
async fn payload_and_an_end_of_file_are_delivered() {
    let mut bench = Bench::new();
    let (mut client, _task) = bench.connect();
    client.write_all(&[REQUEST, b"upload"].concat()).await.unwrap();
    let dial = bench.dial().await;
    client.shutdown().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let mut endpoint = dial.succeed();
    assert_eq!(read_all(&mut endpoint.stream).await, "upload");
    endpoint.stream.write_all(b"thanks").await.unwrap();
    drop(endpoint.stream);
    let answer = read_all(&mut client).await;
    assert_eq!(answer.as_bytes(), [answer::ESTABLISHED, b"thanks"].concat());
    assert_eq!(endpoint.attached.await, Ok(Some(ReadEnd::Eof)));
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_opens_for_a_client_that_has_left_is_no_failure() {
    let mut bench = Bench::new();
    let (mut client, task) = bench.connect();
    client.write_all(&[REQUEST, b"payload"].concat()).await.unwrap();
    let dial = bench.dial().await;
    drop(client);
    let endpoint = dial.succeed();
    task.await.expect("no panic");
    assert!(endpoint.attached.await.is_err(), "dropped, not attached");
    assert_eq!(bench.readings.failed_dials(), [""; 0]);
    assert_eq!(bench.readings.samples("dial_duration_seconds_count"), ["dial_duration_seconds_count 1"]);
    let closed = r#"established_connections_closed_total{reason="frontend_close"} 1"#;
    assert_eq!(bench.readings.samples("established_connections_closed"), [closed]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_is_dropped_without_an_answer_as_in_go() {
    let bench = Bench::new();
    let (mut client, task) = bench.connect();
    let started = Instant::now();
    let trickle = tokio::spawn(async move {
        for byte in REQUEST.iter().cycle() {
            sleep(Duration::from_secs(2)).await;
            if client.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
        read_all(&mut client).await
    });
    task.await.expect("no panic");
    assert_eq!(started.elapsed(), Duration::from_secs(60), "Go's limit");
    assert_eq!(trickle.await.unwrap(), "");
}

#[tokio::test(start_paused = true)]
async fn half_a_head_gets_no_answer() {
    for head in [b"".as_slice(), b"CONNECT node:1 HT", &REQUEST[..REQUEST.len() - 1]] {
        let bench = Bench::new();
        let (mut client, task) = bench.connect();
        client.write_all(head).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(read_all(&mut client).await, "");
        task.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn stop_ends_only_clients_without_a_request() {
    let mut bench = Bench::new();
    let (mut asked, _task) = bench.connect();
    asked.write_all(REQUEST).await.unwrap();
    let dial = bench.dial().await;
    let (mut silent, task) = bench.connect();
    bench.lifetimes.stop.cancel();
    assert_eq!(read_all(&mut silent).await, "");
    task.await.expect("no panic");
    let _endpoint = dial.succeed();
    expect_established(&mut asked).await;
}

#[tokio::test(start_paused = true)]
async fn refused_heads_are_answered() {
    let mut bench = Bench::new();
    for request in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"] {
        assert_eq!(
            bench.answer_to(request.as_bytes()).await,
            answer::refusal(HeadError::Method, request.as_bytes())
        );
    }
    for (request, error) in [
        ("CONNECT node:x HTTP/1.1\r\n\r\n", HeadError::Bad("CONNECT target must be host:port")),
        ("CONNECT a:1 HTTP/1.1\n\n", HeadError::Bad("line without CR before LF")),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HeadError::Version),
        (
            &format!("CONNECT {}:1 HTTP/1.1\r\n\r\n", "a".repeat(1023)),
            HeadError::Bad("CONNECT target of more than 1024 bytes"),
        ),
        ("\u{16}\u{3}\u{1}", HeadError::Bad("control character in the head")),
    ] {
        assert_eq!(bench.answer_to(request.as_bytes()).await, answer::refusal(error, request.as_bytes()));
    }
    let long = format!("CONNECT a:1 HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(head::MAX_HEAD));
    assert_eq!(bench.answer_to(long.as_bytes()).await, answer::refusal(HeadError::TooLarge, b""));
}

#[tokio::test(start_paused = true)]
async fn failed_dials_are_answered_as_go_answers() {
    let cases = [
        (
            DialFailure::NoAgent,
            "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\n\
             currently no tunnels available: No agent available",
        ),
        (
            DialFailure::refused("dial tcp 10.0.0.1:9: connect: connection refused"),
            "HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
             dial tcp 10.0.0.1:9: connect: connection refused",
        ),
        (
            DialFailure::refused("dial tcp 10.0.0.1:9: i/o timeout"),
            "HTTP/1.1 504 Gateway Timeout\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
             dial tcp 10.0.0.1:9: i/o timeout",
        ),
        (
            DialFailure::refused("socket: too many open files"),
            "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
             socket: too many open files",
        ),
        (
            DialFailure::TimedOut,
            "HTTP/1.1 504 Gateway Timeout\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
             Backend dial timeout: timed out waiting for backend dial\r\n",
        ),
        (
            DialFailure::LinkLost,
            "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
             Backend context error: context canceled\r\n",
        ),
    ];
    for (failure, expected) in cases {
        let passed_on = u64::from(matches!(failure, DialFailure::Refused(_)));
        let mut bench = Bench::new();
        let (mut client, task) = bench.connect();
        client.write_all(REQUEST).await.unwrap();
        bench.dial().await.fail(failure);
        assert_eq!(read_all(&mut client).await, expected);
        drop(client);
        task.await.expect("no panic");
        assert_eq!(bench.readings.metrics.http_connections.count(), 0);
        assert_eq!(bench.readings.metrics.frontend_write.count(), passed_on, "{expected}: as in Go");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The same bytes arrive however a client splits its request and payload into writes.
    #[test]
    fn any_split_arrives_whole(cuts in proptest::collection::vec(1_usize..20, 1..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut bench = Bench::new();
            let (mut client, _task) = bench.connect();
            let sent = [REQUEST, b"payload of the client"].concat();
            let mut rest = sent.as_slice();
            for cut in cuts {
                let (piece, tail) = rest.split_at(cut.min(rest.len()));
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
                rest = tail;
            }
            client.write_all(rest).await.unwrap();
            let mut endpoint = bench.dial().await.succeed();
            expect_established(&mut client).await;
            let expected = b"payload of the client";
            assert_eq!(read_exactly(&mut endpoint.stream, expected.len()).await, expected);
        });
    }
}
