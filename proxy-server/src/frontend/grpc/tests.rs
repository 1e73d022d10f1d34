//! One Proxy stream against a scripted dialer and a wire in memory, in paused time.

use std::future::pending;

use bytes::Bytes;
use driver::CloseReason;
use grpc::{Code, Incoming, Keepalive, Request, ServerSettings, WireError, serve_connection};
use http::HeaderMap;
use mux::{Cause, ConnectId, DialId, Packet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout};

use super::*;
use crate::accept::Lifetimes;
use crate::frontend::barrier;
use crate::frontend::testing::{
    Endpoint, ReadEnd, Readings, SOON, ScriptedDial, Sent, TestClient, dialer, frontend, wire,
};

const RANDOM: DialId = DialId(-4_711);
const STREAM_UP: &str = r#"grpc_connections{service_method="Proxy"} 1"#;
const STREAM_DOWN: &str = r#"grpc_connections{service_method="Proxy"} 0"#;

struct Bench {
    client: TestClient,
    dials: UnboundedReceiver<ScriptedDial>,
    readings: Readings,
    lifetimes: Lifetimes,
    task: tokio::task::JoinHandle<()>,
}

impl Bench {
    fn new() -> Self {
        let (dialer, dials) = dialer();
        let (server, client) = wire();
        let (readings, lifetimes) = (Readings::new(), Lifetimes::default());
        let frontend = frontend(dialer, &readings, &lifetimes);
        let task = tokio::spawn(async move { frontend.serve_stream(server, "test".into()).await });
        Bench { client, dials, readings, lifetimes, task }
    }

    async fn dial(&mut self) -> ScriptedDial {
        self.client.send(dial_req(RANDOM));
        timeout(SOON, self.dials.recv()).await.expect("a dial").expect("a dial")
    }

    async fn established() -> (Self, Endpoint) {
        let mut bench = Self::new();
        let endpoint = bench.dial().await.succeed();
        assert_eq!(
            bench.client.packet().await,
            Packet::DialRsp { random: RANDOM, outcome: Ok(ConnectId(1)) }
        );
        (bench, endpoint)
    }

    /// Checks that the stream ends with OK and that every gauge returns to its start.
    async fn ends(mut self) {
        assert_eq!(self.client.next().await, Some(Sent::Finished));
        assert_eq!(self.client.next().await, None);
        timeout(SOON, self.task).await.expect("in time").expect("no panic");
        assert_eq!(self.readings.samples("grpc_connections"), [STREAM_DOWN]);
    }
}

fn dial_req(random: DialId) -> Packet<Bytes> {
    Packet::DialReq { random, protocol: "tcp".into(), address: "node:10250".into(), trace: None }
}

fn data(id: i64, payload: &'static [u8]) -> Packet<Bytes> {
    Packet::Data { id: ConnectId(id), payload: Bytes::from_static(payload) }
}

fn close_rsp(error: &str) -> Packet<Bytes> {
    Packet::CloseRsp { id: ConnectId(1), error: error.into() }
}

#[tokio::test(start_paused = true)]
async fn bytes_go_both_ways_and_a_close_is_answered() {
    let (mut bench, mut endpoint) = Bench::established().await;
    assert_eq!(bench.readings.samples("grpc_connections"), [STREAM_UP]);
    bench.client.send(data(1, b"ping"));
    let mut ping = [0; 4];
    endpoint.stream.read_exact(&mut ping).await.unwrap();
    assert_eq!(&ping, b"ping");
    endpoint.stream.write_all(b"pong").await.unwrap();
    assert_eq!(bench.client.packet().await, data(1, b"pong"));
    bench.client.send(Packet::CloseReq { id: ConnectId(1) });
    assert_eq!(bench.client.packet().await, close_rsp(""));
    assert_eq!(endpoint.attached.await, Ok(Some(ReadEnd::Closed)));
    assert_eq!(
        bench.readings.samples("stream_packets"),
        [
            r#"stream_packets_total{packet_type="CLOSE_REQ",segment="from_client"} 1"#,
            r#"stream_packets_total{packet_type="CLOSE_RSP",segment="to_client"} 1"#,
            r#"stream_packets_total{packet_type="DATA",segment="from_client"} 1"#,
            r#"stream_packets_total{packet_type="DATA",segment="to_client"} 1"#,
            r#"stream_packets_total{packet_type="DIAL_REQ",segment="from_client"} 1"#,
            r#"stream_packets_total{packet_type="DIAL_RSP",segment="to_client"} 1"#,
        ]
    );
    assert_eq!(bench.readings.metrics.frontend_write.count(), 3, "the answer, the payload, the end");
    bench.ends().await;
}

#[tokio::test(start_paused = true)]
async fn a_close_without_payload_is_timed_as_its_answer_and_its_end() {
    let (mut bench, endpoint) = Bench::established().await;
    assert_eq!(bench.readings.metrics.frontend_write.count(), 1, "the answer");
    bench.client.send(Packet::CloseReq { id: ConnectId(1) });
    assert_eq!(bench.client.packet().await, close_rsp(""));
    assert_eq!(bench.readings.metrics.frontend_write.count(), 2, "the end");
    assert_eq!(endpoint.attached.await, Ok(Some(ReadEnd::Closed)));
    bench.ends().await;
}

#[tokio::test(start_paused = true)]
async fn the_target_is_passed_on_as_it_came() {
    let mut bench = Bench::new();
    let dial = bench.dial().await;
    assert_eq!((dial.target.protocol.as_str(), dial.target.address.as_str()), ("tcp", "node:10250"));
    drop(dial);
}

#[tokio::test(start_paused = true)]
async fn server_first_bytes_are_held_back_and_the_end_comes_later() {
    let mut bench = Bench::new();
    let mut endpoint = bench.dial().await.succeed();
    endpoint.stream.write_all(b"hello").await.unwrap();
    drop(endpoint.stream);
    bench.client.packet().await;
    let told = Instant::now();
    assert_eq!(bench.client.packet().await, data(1, b"hello"));
    assert_eq!(told.elapsed(), barrier::MAX_HOLD);
    assert_eq!(bench.client.packet().await, close_rsp(""));
    let closed = Instant::now();
    assert_eq!(bench.client.next().await, Some(Sent::Finished));
    assert!(closed.elapsed() >= LINGER);
}

#[tokio::test(start_paused = true)]
async fn payload_follows_the_clients_first_data_at_once() {
    let (mut bench, mut endpoint) = Bench::established().await;
    let told = Instant::now();
    endpoint.stream.write_all(b"greeting").await.unwrap();
    bench.client.send(data(1, b"ping"));
    assert_eq!(bench.client.packet().await, data(1, b"greeting"));
    assert_eq!(told.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn failures_have_their_texts() {
    let cases = [
        (DialFailure::NoAgent, "No agent available", 0),
        (DialFailure::TimedOut, "timed out waiting for backend dial", 0),
        (DialFailure::LinkLost, "Backend context error: context canceled", 0),
        (DialFailure::refused("dial tcp: no such host"), "dial tcp: no such host", 1),
    ];
    for (failure, text, writes) in cases {
        let mut bench = Bench::new();
        bench.dial().await.fail(failure);
        let answer = Packet::DialRsp { random: RANDOM, outcome: Err(text.into()) };
        assert_eq!(bench.client.packet().await, answer);
        assert_eq!(bench.readings.metrics.frontend_write.count(), writes, "{text}: as in Go");
        bench.ends().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_from_before_the_dial_until_the_clients_end() {
    let mut bench = Bench::new();
    assert!(bench.lifetimes.connections.is_empty(), "not for a stream that dials nothing");
    let dial = bench.dial().await;
    assert_eq!(bench.lifetimes.connections.len(), 1, "for a dial");
    let endpoint = dial.succeed();
    bench.client.packet().await;
    assert_eq!(bench.lifetimes.connections.len(), 1, "for a connection");
    drop(endpoint.stream);
    assert_eq!(bench.client.packet().await, close_rsp(""));
    assert_eq!(bench.lifetimes.connections.len(), 1, "for the end of its stream");
    bench.lifetimes.connections.close();
    timeout(SOON, bench.lifetimes.connections.wait()).await.expect("no longer");
    let mut bench = Bench::new();
    bench.dial().await.fail(DialFailure::NoAgent);
    bench.client.packet().await;
    bench.lifetimes.connections.close();
    timeout(SOON, bench.lifetimes.connections.wait()).await.expect("no longer");
}

#[tokio::test(start_paused = true)]
async fn before_any_dial() {
    let mut bench = Bench::new();
    bench.client.send(Packet::CloseReq { id: ConnectId(9) });
    let answer = Packet::CloseRsp { id: ConnectId(9), error: "backend uninitialized".into() };
    assert_eq!(bench.client.packet().await, answer);
    bench.client.send_raw(Incoming::Unknown(99));
    bench.client.send_raw(Incoming::Malformed("no payload"));
    bench.client.send(data(9, b"x"));
    let answer = Packet::CloseRsp { id: ConnectId(9), error: "backend not initialized".into() };
    assert_eq!(bench.client.packet().await, answer);
    let drops = bench.readings.samples("dropped_packets");
    assert!(drops.iter().all(|line| line.ends_with(" 1")) && drops.len() == 2, "{drops:?}");
    bench.ends().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_never_dials_ends() {
    let bench = Bench::new();
    let started = Instant::now();
    // The test awaits the task's end, because paused time advances only while every task waits.
    let task = bench.task;
    timeout(FIRST_DIAL * 2, task).await.expect("in time").expect("no panic");
    assert!(started.elapsed() >= FIRST_DIAL);
    assert_eq!(bench.readings.samples("grpc_connections"), [STREAM_DOWN]);
}

#[tokio::test(start_paused = true)]
async fn client_that_leaves_cancels_its_dial() {
    let leave: [fn(&TestClient); 3] = [
        |client| client.send(Packet::DialCls { random: RANDOM }),
        |client| client.end(),
        |client| client.reset(),
    ];
    for leave in leave {
        let mut bench = Bench::new();
        let dial = bench.dial().await;
        leave(&bench.client);
        dial.cancelled().await;
        timeout(SOON, bench.task).await.expect("in time").expect("no panic");
        assert_eq!(bench.readings.samples("grpc_connections"), [STREAM_DOWN]);
        assert!(!matches!(bench.client.try_next(), Some(Sent::Packet(_))));
    }
}

/// Replies to a client that grants no window queue in the server's memory.
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_no_answers_is_not_read_on() {
    let (mut bench, mut endpoint) = Bench::established().await;
    bench.client.grant(false);
    for id in 0..1000 {
        bench.client.send(Packet::CloseReq { id: ConnectId(1_000 + id) });
    }
    bench.client.send(data(1, b"behind them"));
    for _turn in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.client.drain(), 1);
    bench.client.grant(true);
    let mut bytes = [0; 11];
    endpoint.stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!((&bytes, bench.client.drain()), (b"behind them", 999), "late, but complete");
}

/// Before it has a connection, its unread data would not count under the memory limit.
#[tokio::test(start_paused = true)]
async fn client_that_takes_no_answers_before_its_connection_loses_its_stream() {
    let idle = Bench::new();
    idle.client.grant(false);
    idle.client.send(Packet::CloseReq { id: ConnectId(9) });
    let mut dialing = Bench::new();
    let dial = dialing.dial().await;
    dialing.client.grant(false);
    dialing.client.send(dial_req(DialId(5)));
    dial.cancelled().await;
    for mut bench in [idle, dialing] {
        bench.client.packet().await;
        bench.ends().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_dial_is_refused_and_the_first_goes_on() {
    let mut bench = Bench::new();
    let dial = bench.dial().await;
    let refused = Packet::DialRsp { random: DialId(5), outcome: Err("one connection per stream".into()) };
    bench.client.send(dial_req(DialId(5)));
    assert_eq!(bench.client.packet().await, refused);
    let mut endpoint = dial.succeed();
    bench.client.packet().await;
    bench.client.send(dial_req(DialId(5)));
    assert_eq!(bench.client.packet().await, refused);
    bench.client.send(data(1, b"still here"));
    let mut bytes = [0; 10];
    endpoint.stream.read_exact(&mut bytes).await.unwrap();
    assert!(bench.dials.try_recv().is_err(), "nothing else was dialed");
}

#[tokio::test(start_paused = true)]
async fn another_connect_id_ends_the_connection() {
    let (mut bench, endpoint) = Bench::established().await;
    bench.client.send(data(2, b"x"));
    for id in [2, 1] {
        let answer = Packet::CloseRsp { id: ConnectId(id), error: "mismatched connection IDs".into() };
        assert_eq!(bench.client.packet().await, answer);
    }
    assert_eq!(endpoint.attached.await, Ok(Some(ReadEnd::Closed)));
    bench.ends().await;
}

#[tokio::test(start_paused = true)]
async fn reset_delivers_earlier_data() {
    let (bench, mut endpoint) = Bench::established().await;
    bench.client.send(data(1, b"last words"));
    bench.client.reset();
    let mut words = [0; 10];
    endpoint.stream.read_exact(&mut words).await.unwrap();
    assert_eq!(endpoint.attached.await, Ok(Some(ReadEnd::Closed)));
    assert_eq!(bench.readings.samples("grpc_connections"), [STREAM_DOWN]);
    assert_eq!(bench.readings.metrics.frontend_write.count(), 1, "nobody was told of the end");
    let errors = r#"stream_errors_total{code="Canceled",packet_type="Unknown",segment="from_client"} 1"#;
    assert_eq!(bench.readings.samples("stream_errors").first().map(String::as_str), Some(errors));
}

#[tokio::test(start_paused = true)]
async fn a_lost_agent_is_a_close_with_its_text() {
    let (mut bench, endpoint) = Bench::established().await;
    endpoint.end.send(CloseReason::Broken(Cause::LinkLost)).expect("attached");
    let lost = Instant::now();
    assert_eq!(bench.client.packet().await, close_rsp(""));
    assert_eq!(lost.elapsed(), barrier::MAX_HOLD, "a CLOSE_RSP at once is lost in the Go client");
    assert_eq!(bench.readings.metrics.frontend_write.count(), 2, "the answer and the end");
    bench.ends().await;
}

#[tokio::test(start_paused = true)]
async fn an_undelivered_answer_closes_the_connection() {
    let mut bench = Bench::new();
    let dial = bench.dial().await;
    bench.client.stop_reading();
    let endpoint = dial.succeed();
    assert!(endpoint.attached.await.is_err(), "dropped, not attached");
    assert_eq!(bench.readings.failed_dials(), [r#"dial_failure_count{reason="send_rsp"} 1"#]);
    for of_success in ["dial_duration", "established_connections_closed", "connection_duration"] {
        assert_eq!(bench.readings.samples(of_success), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn large_packets_are_cut_both_ways() {
    static LARGE: [u8; 200_000] = [7; 200_000];
    let (mut bench, mut endpoint) = Bench::established().await;
    bench.client.send(data(1, &LARGE));
    let mut received = vec![0; LARGE.len()];
    endpoint.stream.read_exact(&mut received).await.unwrap();
    endpoint.stream.write_all(&LARGE).await.unwrap();
    let mut total = 0;
    while total < LARGE.len() {
        let Packet::Data { payload, .. } = bench.client.packet().await else { panic!("DATA") };
        assert!(!payload.is_empty() && payload.len() <= 64 * 1024);
        total += payload.len();
    }
    assert_eq!((total, received.as_slice()), (LARGE.len(), LARGE.as_slice()));
}

/// Sends one DATA of this length before any dial, over HTTP/2. Returns the answer.
async fn answer_to_first_message(length: usize) -> Result<Option<Incoming>, WireError> {
    let (client, server) = tokio::io::duplex(1 << 20);
    let readings = Readings::new();
    let frontend = frontend(dialer().0, &readings, &Lifetimes::default());
    tokio::spawn(async move {
        let on_stream = |request: Request| {
            let (stream, frontend) = (request.accept(HeaderMap::new()).unwrap(), frontend.clone());
            tokio::spawn(async move { frontend.serve_stream(stream, "test".into()).await });
        };
        serve_connection(server, &ServerSettings::for_frontends(), on_stream, pending()).await
    });
    let first = Packet::Data { id: ConnectId(7), payload: vec![7; length].into() };
    let target = ("server:8090", "/ProxyService/Proxy");
    let deadline = Instant::now() + SOON;
    let mut client =
        grpc::connect(client, Keepalive::DEFAULT, target, HeaderMap::new(), Some(first), deadline).await?;
    poll_fn(|cx| client.stream.poll_packet(cx)).await.transpose()
}

#[tokio::test(start_paused = true)]
async fn long_messages_before_the_dial_end_the_stream() {
    let refused = Packet::CloseRsp { id: ConnectId(7), error: "backend not initialized".into() };
    assert_eq!(answer_to_first_message(4_000).await, Ok(Some(Incoming::Packet(refused))));
    let ended = answer_to_first_message(17_000).await.map_err(|error| error.code);
    assert_eq!(ended, Err(Code::ResourceExhausted));
}
