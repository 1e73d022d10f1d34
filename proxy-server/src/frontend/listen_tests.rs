//! Whole listeners on real Unix sockets, with a scripted dialer behind them.

use std::future::poll_fn;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use grpc::{Code, Connected, Incoming, Keepalive, Wire, WireError, WireStream, connect};
use http::HeaderMap;
use mux::{ConnectId, DialId, Packet};
use net::listen::UnixSocket;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::Protocol;
use super::listen::{FrontendListener, serve_frontend};
use super::testing::{Readings, SOON, ScriptedDial, dialer, frontend};
use crate::accept::Lifetimes;
use crate::captured_log::CapturedLog;

struct Bench {
    dials: UnboundedReceiver<ScriptedDial>,
    readings: Readings,
    stop: CancellationToken,
    task: JoinHandle<()>,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Bench {
    fn new(mode: Protocol) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("frontend.sock");
        let listener = FrontendListener::Unix(UnixSocket::bind(&path, true).unwrap());
        let (dialer, dials) = dialer();
        let (readings, lifetimes) = (Readings::new(), Lifetimes::default());
        let keepalive = Duration::from_secs(3600);
        let frontend = frontend(dialer, &readings, &lifetimes);
        let task = serve_frontend(mode, listener, frontend, keepalive);
        Bench { dials, readings, stop: lifetimes.stop, task: tokio::spawn(task), path, _directory: directory }
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).await.unwrap()
    }

    /// Opens a stream as kube-apiserver does, except for the authority.
    async fn open(&self, path: &str) -> Result<Connected, WireError> {
        let deadline = Instant::now() + SOON;
        connect(
            self.connect().await,
            Keepalive::DEFAULT,
            ("localhost", path),
            HeaderMap::new(),
            None,
            deadline,
        )
        .await
    }

    async fn dial(&mut self) -> ScriptedDial {
        timeout(SOON, self.dials.recv()).await.expect("a dial").expect("a dial")
    }
}

async fn next(stream: &mut WireStream) -> Option<Result<Incoming, WireError>> {
    timeout(SOON, poll_fn(|cx| stream.poll_packet(cx))).await.expect("a packet, or an end")
}

async fn expect(stream: &mut WireStream, packet: Packet<Bytes>) {
    assert_eq!(next(stream).await, Some(Ok(Incoming::Packet(packet))));
}

fn dial_req() -> Packet<Bytes> {
    Packet::DialReq { random: DialId(9), protocol: "tcp".into(), address: "node:1".into(), trace: None }
}

fn data(payload: &'static [u8]) -> Packet<Bytes> {
    Packet::Data { id: ConnectId(1), payload: Bytes::from_static(payload) }
}

#[tokio::test]
async fn http_connect_over_a_unix_socket_outlives_its_listener() {
    let mut bench = Bench::new(Protocol::HttpConnect);
    let mut client = bench.connect().await;
    client.write_all(b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n").await.unwrap();
    let dial = bench.dial().await;
    assert_eq!(dial.target.host, "::1");
    let mut endpoint = dial.succeed();
    let mut head = [0; 39];
    client.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 Connection Established\r\n\r\n");

    bench.stop.cancel();
    timeout(SOON, bench.task).await.expect("the listener ends").expect("no panic");
    assert!(UnixStream::connect(&bench.path).await.is_err(), "closed");

    endpoint.stream.write_all(b"still here").await.unwrap();
    let mut bytes = [0; 10];
    client.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"still here");
}

#[tokio::test]
async fn grpc_over_a_unix_socket_outlives_its_listener() {
    let mut bench = Bench::new(Protocol::Grpc);
    let mut connected = bench.open("/ProxyService/Proxy").await.unwrap();
    let stream = &mut connected.stream;
    stream.send(dial_req()).unwrap();
    let mut endpoint = bench.dial().await.succeed();
    expect(stream, Packet::DialRsp { random: DialId(9), outcome: Ok(ConnectId(1)) }).await;
    stream.send(data(b"hi")).unwrap();
    endpoint.stream.read_exact(&mut [0; 2]).await.unwrap();
    endpoint.stream.write_all(b"hello").await.unwrap();
    expect(stream, data(b"hello")).await;

    bench.stop.cancel();
    stream.send(data(b"still here")).unwrap();
    let mut bytes = [0; 10];
    endpoint.stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"still here");
    assert!(UnixStream::connect(&bench.path).await.is_err(), "closed");

    stream.send(Packet::CloseReq { id: ConnectId(1) }).unwrap();
    expect(stream, Packet::CloseRsp { id: ConnectId(1), error: String::new() }).await;
    assert_eq!(next(stream).await, None, "ended with OK");
    drop(connected);
    timeout(SOON, bench.task).await.expect("the listener ends").expect("no panic");
    let gauge = r#"grpc_connections{service_method="Proxy"} 0"#;
    assert_eq!(bench.readings.samples("grpc_connections"), [gauge]);
}

#[tokio::test]
async fn a_lost_grpc_connection_cancels_its_dial() {
    let mut bench = Bench::new(Protocol::Grpc);
    let mut connected = bench.open("/ProxyService/Proxy").await.unwrap();
    connected.stream.send(dial_req()).unwrap();
    let dial = bench.dial().await;
    drop(connected);
    dial.cancelled().await;
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() {
    let bench = Bench::new(Protocol::Grpc);
    for path in ["/ProxyService/Other", "/AgentService/Connect", "/"] {
        let error = match bench.open(path).await {
            Err(error) => error,
            Ok(mut connected) => match next(&mut connected.stream).await {
                Some(Err(error)) => error,
                other => panic!("{path}: an error was expected, not {other:?}"),
            },
        };
        assert_eq!(error.code, Code::Unimplemented, "{path}");
    }
}

/// An HTTP/2 frame of at most 255 bytes.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// The preface and these SETTINGS.
fn preface(settings: &[u8]) -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, settings)].concat()
}

/// The HEADERS of a request with `:authority: %2Fvar%2Frun%2Fx.sock` as a raw literal.
fn request(stream: u8) -> Vec<u8> {
    let authority = b"%2Fvar%2Frun%2Fx.sock";
    let mut block = vec![0x83, 0x86]; // :method POST, :scheme http
    for (index, value) in [(4_u8, b"/ProxyService/Proxy".as_slice()), (1, authority)] {
        block.extend([index, u8::try_from(value.len()).unwrap()]);
        block.extend_from_slice(value);
    }
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(1, 4, stream, &block)
}

/// A DATA frame with one packet.
fn message(flags: u8, stream: u8, packet: &[u8]) -> Vec<u8> {
    frame(0, flags, stream, &[&[0, 0, 0, 0, u8::try_from(packet.len()).unwrap()], packet].concat())
}

#[tokio::test]
async fn a_path_as_authority_is_served() {
    let mut bench = Bench::new(Protocol::Grpc);
    // Packet { dialRequest: { protocol: "tcp", address: "a:1", random: 1 } }
    let packet = b"\x12\x0c\x0a\x03tcp\x12\x03a:1\x18\x01";
    let mut client = bench.connect().await;
    client.write_all(&[preface(&[]), request(1), message(0, 1, packet)].concat()).await.unwrap();
    assert_eq!(bench.dial().await.target.address, "a:1");
}

/// The client grants no window for the answers to its packets.
#[tokio::test]
async fn streams_with_unsent_answers_count_under_the_limit() {
    let bench = Bench::new(Protocol::Grpc);
    let mut client = bench.connect().await;
    client.write_all(&preface(&[0, 4, 0, 0, 0, 0])).await.unwrap();
    for stream in [1, 3, 5] {
        // Packet { type: DATA, data: { connectID: 1, data: "x" } }, and the end of the stream.
        let packet = message(1, stream, b"\x08\x04\x22\x05\x08\x01\x1a\x01x");
        client.write_all(&[request(stream), packet].concat()).await.unwrap();
    }
    let finished = async {
        while bench.readings.samples("stream_packets")
            != [
                r#"stream_packets_total{packet_type="CLOSE_RSP",segment="to_client"} 3"#,
                r#"stream_packets_total{packet_type="DATA",segment="from_client"} 3"#,
            ]
            || bench.readings.samples("grpc_connections") != [r#"grpc_connections{service_method="Proxy"} 0"#]
        {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, finished).await.expect("the answers are queued");
    let error = bench.open("/ProxyService/Proxy").await.expect_err("the streams are still there");
    assert_eq!(error.code, Code::ResourceExhausted, "{error}");

    client.write_all(&frame(4, 0, 0, &[0, 4, 0, 0, 1, 0])).await.unwrap();
    let again = async { while bench.open("/ProxyService/Proxy").await.is_err() {} };
    timeout(SOON, again).await.expect("a stream has sent its answer");
}

#[tokio::test]
async fn dropping_the_listener_ends_its_grpc_connections_and_their_dials() {
    let mut bench = Bench::new(Protocol::Grpc);
    let mut connected = bench.open("/ProxyService/Proxy").await.unwrap();
    connected.stream.send(dial_req()).unwrap();
    let dial = bench.dial().await;
    bench.task.abort();
    assert!(matches!(next(&mut connected.stream).await, Some(Err(_))));
    dial.cancelled().await;
}

#[tokio::test]
async fn streams_above_the_limit_get_an_answer() {
    let bench = Bench::new(Protocol::Grpc);
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(bench.open("/ProxyService/Proxy").await.unwrap());
    }
    let log = CapturedLog::new();
    for _ in 0..2 {
        let error = bench.open("/ProxyService/Proxy").await.unwrap_err();
        assert_eq!(error.code, Code::ResourceExhausted, "{error}");
    }
    assert_eq!(bench.readings.failed_dials(), [r#"dial_failure_count{reason="no_agent"} 2"#]);
    let text = log.text();
    assert_eq!(text.matches("Proxy streams are refused").count(), 1, "{text}");
    drop(streams.pop());
    let again = async { while bench.open("/ProxyService/Proxy").await.is_err() {} };
    timeout(SOON, again).await.expect("a stream has ended");
}
