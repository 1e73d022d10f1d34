//! Fakes for the frontends' tests: scripted dials, a link of one connection, a wire in memory.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use driver::{Chunks, CloseReason, LocalIo, MemoryLimiter, Read};
use grpc::{Code, Incoming, Wire, WireError};
use mux::{Cause, Packet};
use serve::logs::{ConnectionLogWriter, LogLimit};
use serve::metrics::{Exposition, Registry};
use tokio::io::{AsyncWrite, DuplexStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;
use tokio_util::task::TaskTracker;

use super::Frontend;
use super::connection_log::{ConnInfo, ConnectionLog};
use crate::accept::Lifetimes;
use crate::agent_stream::testing::{Command, DialReply};
use crate::agent_stream::{LinkFacts, LinkHandle, OpenConnection};
use crate::backends::{Backend, BackendManager, Identifiers, LaneTraffic, Strategy};
use crate::dial::{DialFailure, DialStages, Dialer, Target};
use crate::limits::Budget;
use crate::metrics::{Metrics, PREFIX};

/// Longer than any step of these tests takes.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// The metrics of a test's frontend.
pub(super) struct Readings {
    pub(super) metrics: Metrics,
    exposition: Exposition,
}

impl Readings {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        let metrics = crate::metrics::register(&mut registry);
        Readings { metrics, exposition: Exposition::new(registry) }
    }

    /// The failures that dials have counted, one sample per line.
    pub(super) fn failed_dials(&self) -> Vec<String> {
        let samples = self.samples("dial_failure_count").into_iter();
        samples.filter(|sample| !sample.ends_with(" 0")).collect()
    }

    /// The samples whose names begin with `name` (after the prefix), one per line.
    pub(super) fn samples(&self, name: &str) -> Vec<String> {
        let scrape = self.exposition.scrape();
        let lines = scrape.lines().filter_map(|line| line.strip_prefix(PREFIX)?.strip_prefix('_'));
        lines.filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }
}

/// The record of a connection whose log lines are not checked.
pub(super) fn connection_log(readings: &Readings) -> ConnectionLog {
    let metrics = readings.metrics.clone();
    let target = Target::new("tcp", "node:1");
    let identity = ConnInfo {
        id: 1,
        frontend: "http-connect",
        peer: "test".into(),
        target,
        connect_id: 0,
        stages: DialStages::default(),
        records: ConnectionLogWriter::default(),
        metrics: metrics.clone(),
    };
    let live = (metrics.http_connections.enter(), None);
    let slot = Budget::new(1, 1).connection(&Budget::new(1, 1)).expect("room for one");
    let lane = LaneTraffic::new(Instant::now()).enter();
    ConnectionLog::open(identity, live, (slot, lane), TaskTracker::new().token())
}

/// A dial that waits for the test's answer.
pub(super) struct ScriptedDial {
    pub(super) target: Target,
    answer: oneshot::Sender<DialReply>,
}

/// The only frontend of a server.
pub(super) fn frontend(dialer: Dialer, readings: &Readings, lifetimes: &Lifetimes) -> Frontend {
    let (metrics, lifetimes) = (readings.metrics.clone(), lifetimes.clone());
    let (records, logs) = (ConnectionLogWriter::default(), LogLimit::default());
    Frontend { dialer, metrics, lifetimes, records, name: None, streams: Arc::new(Semaphore::new(3)), logs }
}

/// A dialer through one agent, whose answers the test gives one by one.
pub(super) fn dialer() -> (Dialer, mpsc::UnboundedReceiver<ScriptedDial>) {
    let metrics = crate::metrics::register(&mut Registry::default());
    let backends = BackendManager::new(&[Strategy::Default], metrics.routes.clone());
    let (handle, mut commands) = LinkHandle::new(LinkFacts::default());
    let backend = Backend {
        agent_id: "agent".into(),
        identifiers: Identifiers::default(),
        process: None,
        owner: None,
        handle,
    };
    let registration = backends.register(backend).expect("the first agent");
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let _registration = registration;
        while let Some(command) = commands.recv().await {
            if let Command::Dial { protocol, address, reply, .. } = *command {
                let _gone =
                    sender.send(ScriptedDial { target: Target::new(protocol, address), answer: reply });
            }
        }
    });
    let (budget, memory) = (Budget::new(1_000, 1_000), MemoryLimiter::new(1 << 20));
    (Dialer::new(backends, budget, memory, Duration::from_secs(3_600), metrics.dials.clone()), receiver)
}

impl ScriptedDial {
    /// Lets the dial succeed; returns the endpoint.
    pub(super) fn succeed(self) -> Endpoint {
        let (local, remote) = tokio::io::duplex(1 << 20);
        let (end, ended) = oneshot::channel();
        let (report, attached) = oneshot::channel();
        let (connection, mut commands) = OpenConnection::detached();
        tokio::spawn(async move {
            if let Some(Command::Attach { local: frontend, .. }) =
                commands.recv().await.map(|command| *command)
            {
                let mut pump = Pump::new(frontend, local, ended);
                poll_fn(|cx| pump.poll(cx)).await;
                let read_end = pump.read_end;
                drop(pump);
                let _nobody_asks = report.send(read_end);
            }
        });
        assert!(self.answer.send(Ok(connection)).is_ok(), "the frontend has given the dial up");
        Endpoint { stream: remote, end, attached }
    }

    pub(super) fn fail(self, failure: DialFailure) {
        assert!(self.answer.send(Err(failure)).is_ok(), "the frontend has given the dial up");
    }

    /// Waits until the frontend cancels the dial.
    pub(super) async fn cancelled(mut self) {
        tokio::time::timeout(SOON, self.answer.closed()).await.expect("the dial is cancelled");
    }
}

/// The endpoint's side of a connection.
pub(super) struct Endpoint {
    /// The endpoint's reads and writes. Its end of file ends the connection, flushed.
    pub(super) stream: DuplexStream,
    /// Ends the connection from the link's side.
    pub(super) end: oneshot::Sender<CloseReason>,
    /// How the frontend's reads ended, sent when the frontend's socket is dropped; an error if it was never attached.
    pub(super) attached: oneshot::Receiver<Option<ReadEnd>>,
}

/// How a frontend's reads ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadEnd {
    Eof,
    Closed,
    Error(io::ErrorKind),
}

/// A minimal driver, enough to test a [`LocalIo`].
struct Pump {
    local: Box<dyn LocalIo>,
    endpoint: DuplexStream,
    ended: oneshot::Receiver<CloseReason>,
    to_endpoint: Bytes,
    to_local: VecDeque<Bytes>,
    read_end: Option<ReadEnd>,
    close_reason: Option<CloseReason>,
}

impl Pump {
    fn new(local: Box<dyn LocalIo>, endpoint: DuplexStream, ended: oneshot::Receiver<CloseReason>) -> Self {
        let (to_endpoint, to_local) = (Bytes::new(), VecDeque::new());
        Pump { local, endpoint, ended, to_endpoint, to_local, read_end: None, close_reason: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.close_reason.is_none() {
            if let Poll::Ready(Ok(close_reason)) = Pin::new(&mut self.ended).poll(cx) {
                self.close_reason = Some(close_reason);
                break;
            }
            let up = self.poll_up(cx);
            let down = self.poll_down(cx);
            let _flushed = self.local.poll_flush(cx);
            if up.is_pending() && down.is_pending() {
                return Poll::Pending;
            }
        }
        match &self.close_reason {
            Some(close_reason) => {
                let mut allowance = usize::MAX;
                self.local.poll_end(cx, close_reason, &mut allowance)
            }
            None => Poll::Pending,
        }
    }

    /// Moves bytes to the endpoint; ready after progress.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.to_endpoint.is_empty() {
            let written = ready!(Pin::new(&mut self.endpoint).poll_write(cx, &self.to_endpoint));
            self.to_endpoint.advance(written.expect("the endpoint listens"));
            return Poll::Ready(());
        }
        if self.read_end.is_some() {
            return Poll::Pending;
        }
        match ready!(self.local.poll_read(cx, 64 * 1024)) {
            Ok(Read::Data(data)) => self.to_endpoint = data,
            Ok(Read::Eof) => {
                self.read_end = Some(ReadEnd::Eof);
                let _shut = Pin::new(&mut self.endpoint).poll_shutdown(cx);
            }
            Ok(Read::Closed) => {
                self.read_end = Some(ReadEnd::Closed);
                self.close_reason = Some(CloseReason::Flushed);
            }
            Err(error) => {
                self.read_end = Some(ReadEnd::Error(error.kind()));
                self.close_reason = Some(CloseReason::Broken(Cause::Local(error.to_string())));
            }
        }
        Poll::Ready(())
    }

    /// Moves bytes to the frontend; ready after progress.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.to_local.is_empty() {
            let mut buffer = BytesMut::with_capacity(64 * 1024);
            match ready!(poll_read_buf(Pin::new(&mut self.endpoint), cx, &mut buffer)) {
                Ok(read) if read > 0 => self.to_local.push_back(buffer.freeze()),
                _ => self.close_reason = Some(CloseReason::Flushed),
            }
            return Poll::Ready(());
        }
        let mut chunks = Chunks::new(&self.to_local, self.to_local.iter().map(Bytes::len).sum());
        let written = ready!(self.local.poll_write(cx, &mut chunks));
        let left = chunks.len();
        if let Some(slice) = self.to_local.pop_front().filter(|_| left > 0) {
            self.to_local.push_back(slice.slice(slice.len() - left..));
        }
        if let Err(error) = written {
            self.close_reason = Some(CloseReason::Broken(Cause::Local(error.to_string())));
        }
        Poll::Ready(())
    }
}

/// The server's end of a Proxy stream in memory.
pub(super) struct TestWire {
    incoming: mpsc::UnboundedReceiver<Option<Result<Incoming, WireError>>>,
    outgoing: mpsc::UnboundedSender<Sent>,
    ended: bool,
    window: watch::Receiver<bool>,
}

/// The server's actions on its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sent {
    Packet(Packet<Bytes>),
    Finished,
}

/// The client's end.
pub(super) struct TestClient {
    incoming: mpsc::UnboundedSender<Option<Result<Incoming, WireError>>>,
    outgoing: mpsc::UnboundedReceiver<Sent>,
    window: watch::Sender<bool>,
}

pub(super) fn wire() -> (TestWire, TestClient) {
    let (to_server, incoming) = mpsc::unbounded_channel();
    let (outgoing, from_server) = mpsc::unbounded_channel();
    let (open, window) = watch::channel(true);
    let client = TestClient { incoming: to_server, outgoing: from_server, window: open };
    (TestWire { incoming, outgoing, ended: false, window }, client)
}

impl Wire for TestWire {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, WireError>> {
        if !*self.window.borrow() {
            // A busy loop, which is acceptable for the few turns of a test.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(100_000))
    }

    fn send(&mut self, packet: Packet<Bytes>) -> Result<(), WireError> {
        self.outgoing.send(Sent::Packet(packet)).map_err(|_| lost())
    }

    fn poll_packet(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Incoming, WireError>>> {
        assert!(!self.ended, "polled after its end");
        let item = match ready!(self.incoming.poll_recv(cx)) {
            Some(item) => item,
            None => Some(Err(lost())),
        };
        self.ended = !matches!(item, Some(Ok(_)));
        Poll::Ready(item)
    }

    fn finish(&mut self) {
        let _gone = self.outgoing.send(Sent::Finished);
    }
}

fn lost() -> WireError {
    WireError { code: Code::Canceled, message: "stream reset".to_owned() }
}

impl TestClient {
    pub(super) fn send(&self, packet: Packet<Bytes>) {
        self.send_raw(Incoming::Packet(packet));
    }

    pub(super) fn send_raw(&self, incoming: Incoming) {
        self.incoming.send(Some(Ok(incoming))).expect("the server reads");
    }

    /// Ends the client's direction.
    pub(super) fn end(&self) {
        self.incoming.send(None).expect("the server reads");
    }

    /// The server's next action; `None` when it has dropped the stream.
    pub(super) async fn next(&mut self) -> Option<Sent> {
        tokio::time::timeout(SOON, self.outgoing.recv()).await.expect("an answer")
    }

    pub(super) async fn packet(&mut self) -> Packet<Bytes> {
        match self.next().await {
            Some(Sent::Packet(packet)) => packet,
            other => panic!("a packet was expected, not {other:?}"),
        }
    }

    /// Resets the stream.
    pub(super) fn reset(&self) {
        self.incoming.send(Some(Err(lost()))).expect("the server reads");
    }

    /// Sets whether the client grants the server window to send.
    pub(super) fn grant(&self, open: bool) {
        self.window.send_replace(open);
    }

    /// From now on the server cannot send.
    pub(super) fn stop_reading(&mut self) {
        self.outgoing.close();
    }

    /// The next packet that was already sent, if any.
    pub(super) fn try_next(&mut self) -> Option<Sent> {
        self.outgoing.try_recv().ok()
    }

    /// Takes all packets sent so far, and returns their number.
    pub(super) fn drain(&mut self) -> usize {
        std::iter::from_fn(|| self.try_next()).count()
    }
}
