//! Streams between an agent and a server on a path in memory, with paused time.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

use driver::Bounds;
use grpc::{Incoming, Keepalive, Request, ServerSettings, Wire, connect, serve_connection};
use http::HeaderMap;
use mux::{DialId, Packet};
use serve::metrics::Registry;
use tokio::io::{copy_bidirectional, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::endpoint::{Dialer, LookupError, Network};
use crate::metrics::{DialFailureReason, register};

struct Panics;

impl Resolve for Panics {
    async fn lookup(&self, _host: &str, _network: Network) -> Result<Vec<IpAddr>, LookupError> {
        panic!("injected")
    }
}

/// The path between agent and server. It holds a few bytes, and carries bytes only while it is polled.
type Path = Pin<Box<dyn Future<Output = io::Result<(u64, u64)>>>>;

/// A stream without connections.
struct Stream {
    path: Path,
    /// The server's end.
    wire: WireStream,
    control: LinkControl,
    metrics: Metrics,
    run: JoinHandle<LinkEnd>,
}

impl Stream {
    async fn replaced() -> Self {
        let stream = Self::new().await;
        stream.control.retire.cancel();
        stream.control.drain.cancel();
        stream
    }

    async fn new() -> Self {
        let (agent_io, mut near) = duplex(16);
        let (mut far, server_io) = duplex(16);
        let mut path: Path = Box::pin(async move { copy_bidirectional(&mut near, &mut far).await });
        let (sender, mut requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let on_stream = |request: Request| drop(sender.send(request));
            serve_connection(server_io, &ServerSettings::for_agents(), on_stream, pending()).await
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let opening = connect(
            agent_io,
            Keepalive::DEFAULT,
            ("server", "/AgentService/Connect"),
            HeaderMap::new(),
            None,
            deadline,
        );
        let accepting = async { requests.recv().await.unwrap().accept(HeaderMap::new()).unwrap() };
        let (connected, wire) = tokio::select! {
            opened = async { tokio::join!(opening, accepting) } => opened,
            end = &mut path => panic!("the path has ended: {end:?}"),
        };
        let connected = connected.unwrap();
        let control = LinkControl {
            drain: CancellationToken::new(),
            retire: CancellationToken::new(),
            stop: CancellationToken::new(),
            observer: Arc::new(|_| ()),
        };
        let stream = GrpcStream {
            wire: connected.stream,
            native: true,
            address: String::new(),
            negotiated: Negotiated::default(),
            connection: connected.connection,
        };
        let dialer = Dialer::to_servers(Arc::new(Panics), Duration::from_secs(10));
        let metrics = register(&mut Registry::default());
        let bounds = Bounds::new(1 << 20, None);
        let links = Arc::new(Links::new("agent", dialer, bounds, metrics.clone(), Default::default()));
        let controlled = control.clone();
        let run = tokio::spawn(LinkRunner::run(links, "s".into(), stream, controlled));
        Stream { path, wire, control, metrics, run }
    }

    async fn packet(&mut self) -> Option<Incoming> {
        tokio::select! {
            packet = poll_fn(|cx| self.wire.poll_packet(cx)) => packet.transpose().expect("no error"),
            end = &mut self.path => panic!("the path has ended: {end:?}"),
        }
    }
}

/// Meanwhile the set names it as one that it has, because its task runs.
#[tokio::test(start_paused = true)]
async fn replaced_stream_lives_until_the_server_has_its_last_bytes() {
    let mut stream = Stream::replaced().await;
    assert!(timeout(Duration::from_secs(9), &mut stream.run).await.is_err(), "its last bytes are under way");
    assert_eq!(stream.packet().await, Some(Incoming::Packet(Packet::Drain)));
    assert_eq!(stream.packet().await, None, "an end in order");
    stream.wire.finish();
    drop(stream.wire);
    let began = Instant::now();
    tokio::select! {
        end = &mut stream.run => assert_eq!(end.unwrap(), LinkEnd::Stopped),
        end = &mut stream.path => panic!("the path has ended: {end:?}"),
    }
    assert!(began.elapsed() < CLOSE_TIMEOUT, "the server's end is seen, not waited out");
}

#[tokio::test(start_paused = true)]
async fn last_bytes_of_a_replaced_stream_have_a_time_limit_and_a_shorter_one_after_a_stop() {
    for (stops, limit) in [(false, REPLACED_CLOSE_TIMEOUT), (true, CLOSE_TIMEOUT)] {
        let stream = Stream::replaced().await;
        let began = Instant::now();
        if stops {
            stream.control.stop.cancel();
        }
        assert_eq!(stream.run.await.unwrap(), LinkEnd::Stopped);
        let took = began.elapsed();
        // A stream ends after a second without connections.
        assert!(took >= limit && took <= limit + Duration::from_millis(1_100), "{took:?}, stops: {stops}");
    }
}

#[tokio::test(start_paused = true)]
async fn dial_that_panics_is_answered_and_leaves_the_stream_open() {
    let mut stream = Stream::new().await;
    for random in [1, 2].map(DialId) {
        let (protocol, address) = ("tcp".into(), "node.example:80".into());
        stream.wire.send(Packet::DialReq { random, protocol, address, trace: None }).unwrap();
        let outcome = Err("dial: the dial has panicked".into());
        let answer = timeout(Duration::from_secs(5), stream.packet()).await.expect("an answer at once");
        assert_eq!(answer, Some(Incoming::Packet(Packet::DialRsp { random, outcome })));
    }
}

#[tokio::test(start_paused = true)]
async fn dial_whose_target_is_too_long_is_answered_and_counted() {
    let mut stream = Stream::new().await;
    let targets = [
        (17, 9, "dial: protocol of more than 16 bytes"),
        (3, 1_025, "dial: address of more than 1024 bytes"),
        (16, 1_024, "dial pppppppppppppppp: unknown network"),
    ];
    for (number, (protocol, address, text)) in (1..).zip(targets) {
        let (random, protocol) = (DialId(number), "p".repeat(protocol));
        let address = format!("{}:80", "a".repeat(address - 3));
        stream.wire.send(Packet::DialReq { random, protocol, address, trace: None }).unwrap();
        let answer = timeout(Duration::from_secs(5), stream.packet()).await.expect("an answer at once");
        let Some(Incoming::Packet(Packet::DialRsp { random: answered, outcome: Err(error) })) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((answered, error.starts_with(text)), (random, true), "{error}");
        assert_eq!(stream.metrics.dial_failures.counter(DialFailureReason::Unknown).get(), number as u64);
    }
}
