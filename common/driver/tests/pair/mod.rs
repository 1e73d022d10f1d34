//! Two relays, a server's and an agent's, joined by a stream in memory.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use driver::{
    Bounds, Chunks, CloseReason, Conns, Driver, LinkEnd, LinkHandler, LiveConnection, LocalIo, MemoryLimiter,
    Meter, Read, Traffic,
};
use grpc::{Code, Incoming, Wire, WireError};
use mux::{
    Agent, Cause, ConnKey, ConnectId, DialError, Dropped, Limits, Negotiated, Packet, PacketKind, Server,
    Time, TraceContext,
};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// One direction of a stream: packets, limited in payload bytes.
#[derive(Default)]
struct Lane {
    packets: VecDeque<Packet<Bytes>>,
    bytes: usize,
    ended: bool,
    /// The bytes of a message that its writer has not finished.
    unfinished: usize,
    /// Its writer has gone.
    lost: bool,
    /// Accepts nothing; a sender gets an error.
    broken: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One end of a stream in memory.
pub(crate) struct MemoryWire {
    out: Arc<Mutex<Lane>>,
    inward: Arc<Mutex<Lane>>,
    window: usize,
    held: usize,
}

/// A stream whose directions hold `window` payload bytes each.
pub(crate) fn wires(window: usize) -> (MemoryWire, MemoryWire) {
    let (a, b) = (Arc::new(Mutex::new(Lane::default())), Arc::new(Mutex::new(Lane::default())));
    let one = MemoryWire { out: Arc::clone(&a), inward: Arc::clone(&b), window, held: 0 };
    (one, MemoryWire { out: b, inward: a, window, held: 0 })
}

/// The agent's end of a server's stream, controlled by the test.
pub(crate) struct ByHand {
    pub(crate) server: mpsc::UnboundedSender<ToServer>,
    to_server: Arc<Mutex<Lane>>,
    from_server: Arc<Mutex<Lane>>,
}

impl ByHand {
    /// A server whose agent the test plays.
    pub(crate) fn start(limits: Limits) -> (Self, JoinHandle<LinkEnd>, Counts) {
        Self::within(limits, 1 << 30)
    }

    /// The same under a memory limit, in bytes.
    pub(crate) fn within(limits: Limits, memory: usize) -> (Self, JoinHandle<LinkEnd>, Counts) {
        // A window of zero: nothing is ever sent.
        let (server_wire, agent_wire) = wires(0);
        let (to_server, from_server) = (Arc::clone(&agent_wire.out), Arc::clone(&agent_wire.inward));
        // Dropping it would report the stream's end.
        std::mem::forget(agent_wire);
        let (server, commands) = mpsc::unbounded_channel();
        let by_hand = ByHand { server, to_server, from_server };
        let handler = TestServer { commands, dials: HashMap::new(), stopping: false };
        let meter = CountingMeter::default();
        let counts = Arc::clone(&meter.0);
        let bounds = Bounds { limits, memory: MemoryLimiter::new(memory) };
        let driver =
            Driver::<Server, _, _, _>::new(&bounds, Negotiated::default(), server_wire, handler, meter);
        (by_hand, tokio::spawn(driver), counts)
    }

    /// Sends a packet to the server.
    pub(crate) fn send(&self, packet: Packet<Bytes>) {
        let mut lane = self.to_server.lock();
        if let Packet::Data { payload, .. } = &packet {
            lane.bytes += payload.len();
        }
        lane.packets.push_back(packet);
        wake(&mut lane.reader);
    }

    /// Sends these bytes of a message that does not end.
    pub(crate) fn begin_message(&self, bytes: usize) {
        let mut lane = self.to_server.lock();
        lane.unfinished += bytes;
        wake(&mut lane.reader);
    }

    /// Breaks the stream: the server can send nothing, and reads the end after the bytes that were sent.
    pub(crate) fn break_off(&self) {
        self.from_server.lock().broken = true;
        wake(&mut self.from_server.lock().writer);
        let mut lane = self.to_server.lock();
        lane.ended = true;
        wake(&mut lane.reader);
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl Wire for MemoryWire {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, WireError>> {
        let mut lane = self.out.lock();
        if lane.broken {
            return Poll::Ready(Err(WireError::new(Code::Canceled, "stream error received: CANCEL")));
        }
        if lane.bytes < self.window {
            return Poll::Ready(Ok(self.window - lane.bytes));
        }
        lane.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn send(&mut self, packet: Packet<Bytes>) -> Result<(), WireError> {
        let mut lane = self.out.lock();
        if let Packet::Data { payload, .. } = &packet {
            assert!(!payload.is_empty(), "an empty DATA reads as end of file");
            lane.bytes += payload.len();
        }
        lane.packets.push_back(packet);
        wake(&mut lane.reader);
        Ok(())
    }

    fn poll_packet(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Incoming, WireError>>> {
        let mut lane = self.inward.lock();
        match lane.packets.pop_front() {
            Some(packet) => {
                if let Packet::Data { payload, .. } = &packet {
                    lane.bytes -= payload.len();
                    wake(&mut lane.writer);
                }
                Poll::Ready(Some(Ok(Incoming::Packet(packet))))
            }
            None if lane.ended => Poll::Ready(None),
            None => {
                lane.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Only this makes unread bytes count.
    fn poll_hold(&mut self, cx: &mut Context<'_>) {
        let mut lane = self.inward.lock();
        lane.reader = Some(cx.waker().clone());
        self.held = lane.bytes;
    }

    fn held(&self) -> usize {
        self.held + self.inward.lock().unfinished
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut lane = self.inward.lock();
        if lane.lost {
            return Poll::Ready(());
        }
        lane.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn finish(&mut self) {
        let mut lane = self.out.lock();
        lane.ended = true;
        wake(&mut lane.reader);
    }
}

impl Drop for MemoryWire {
    fn drop(&mut self) {
        self.out.lock().lost = true;
        self.finish();
    }
}

/// A local end over a pipe in memory, which reports how it ended.
pub(crate) struct PipeIo {
    io: DuplexStream,
    ended: Option<oneshot::Sender<CloseReason>>,
    /// How many bytes it discards at its end.
    to_discard: usize,
    /// Writes fail.
    broken: bool,
    /// The most bytes that a read returns, and what was read from the pipe and not returned.
    longest_read: usize,
    rest: Bytes,
    /// The bytes of a message that its client has not finished.
    pub(crate) unfinished: usize,
}

/// The other side of a [`PipeIo`].
pub(crate) struct Peer {
    pub(crate) io: DuplexStream,
    pub(crate) ended: oneshot::Receiver<CloseReason>,
}

pub(crate) fn pipe(capacity: usize) -> (PipeIo, Peer) {
    let (local, remote) = tokio::io::duplex(capacity);
    let (report, ended) = oneshot::channel();
    let (longest_read, rest) = (usize::MAX, Bytes::new());
    let local = PipeIo {
        io: local,
        ended: Some(report),
        to_discard: 0,
        broken: false,
        longest_read,
        rest,
        unfinished: 0,
    };
    (local, Peer { io: remote, ended })
}

impl PipeIo {
    /// The same, but writes fail.
    pub(crate) fn broken(self) -> Self {
        PipeIo { broken: true, ..self }
    }

    /// The same, but a read returns at most this many bytes.
    pub(crate) fn with_reads_of(self, longest_read: usize) -> Self {
        PipeIo { longest_read, ..self }
    }
}

impl LocalIo for PipeIo {
    fn poll_read(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Read>> {
        if self.rest.is_empty() {
            let mut buffer = vec![0; max];
            let mut buf = ReadBuf::new(&mut buffer);
            std::task::ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf))?;
            self.rest = Bytes::copy_from_slice(buf.filled());
        }
        let bytes = self.rest.split_to(self.rest.len().min(max).min(self.longest_read));
        Poll::Ready(Ok(if bytes.is_empty() { Read::Eof } else { Read::Data(bytes) }))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, chunks: &mut Chunks<'_>) -> Poll<io::Result<()>> {
        if self.broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        chunks.poll_write_to(Pin::new(&mut self.io), cx).map_ok(drop)
    }

    fn poll_closed(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn held(&mut self) -> usize {
        self.unfinished
    }

    fn poll_shut_down(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_end(
        &mut self,
        _cx: &mut Context<'_>,
        close_reason: &CloseReason,
        allowance: &mut usize,
    ) -> Poll<()> {
        let discarded = self.to_discard.min(*allowance);
        self.to_discard -= discarded;
        *allowance -= discarded;
        if self.to_discard > 0 {
            return Poll::Pending;
        }
        if let Some(report) = self.ended.take() {
            let _ = report.send(close_reason.clone());
        }
        Poll::Ready(())
    }
}

/// Counts by name.
pub(crate) type Counts = Arc<Mutex<HashMap<String, usize>>>;

#[derive(Clone, Default)]
pub(crate) struct CountingMeter(pub(crate) Counts);

impl CountingMeter {
    fn count(&self, what: impl Into<String>) {
        *self.0.lock().entry(what.into()).or_default() += 1;
    }
}

impl Meter for CountingMeter {
    fn sent(&self, kind: PacketKind) {
        self.count(format!("sent {}", kind.name()));
    }
    fn received(&self, kind: PacketKind) {
        self.count(format!("received {}", kind.name()));
    }
    fn dropped(&self, reason: Dropped) {
        self.count(format!("dropped {}", reason.label()));
    }
    fn broken(&self, cause: &Cause) {
        self.count(format!("broken {}", cause.label()));
    }
    fn queued(&mut self, charged: usize) {
        let mut counts = self.0.lock();
        let before = counts.insert("queued".into(), charged).unwrap_or(0);
        let most = counts.entry("most taken in a turn".into()).or_default();
        *most = before.saturating_sub(charged).max(*most);
    }
    fn carries(&mut self, traffic: Traffic) {
        let mut counts = self.0.lock();
        counts.insert("bytes sent".into(), traffic.sent as usize);
        counts.insert("bytes received".into(), traffic.received as usize);
    }
    fn paused(&mut self, paused: bool) {
        self.count(if paused { "paused" } else { "resumed" });
    }
    fn receive_error(&self, _error: &WireError) {
        self.count("receive error");
    }
    fn send_error(&self, _error: &WireError, _kind: PacketKind) {
        self.count("send error");
    }
}

pub(crate) enum ToServer {
    Dial(oneshot::Sender<Result<ConnKey, DialError>>),
    Attach(ConnKey, PipeIo),
    Abandon(ConnKey),
    Live(oneshot::Sender<(Traffic, Vec<LiveConnection>)>),
    Stop,
}

pub(crate) struct TestServer {
    commands: mpsc::UnboundedReceiver<ToServer>,
    dials: HashMap<ConnKey, oneshot::Sender<Result<ConnKey, DialError>>>,
    stopping: bool,
}

impl LinkHandler<Server> for TestServer {
    fn probe_wanted(&mut self, conns: &mut Conns<Server>) {
        let _ = conns.link().probe(0);
    }

    fn poll_commands(&mut self, cx: &mut Context<'_>, conns: &mut Conns<Server>, now: Time) -> Poll<()> {
        while let Poll::Ready(Some(command)) = self.commands.poll_recv(cx) {
            match command {
                ToServer::Dial(reply) => {
                    let key = conns.link().dial("tcp", "endpoint:1", None).expect("room for a dial");
                    self.dials.insert(key, reply);
                }
                ToServer::Attach(key, local) => conns.attach(key, Box::new(local)),
                ToServer::Abandon(key) => {
                    conns.link().abandon(now, key);
                    conns.discard(key);
                }
                ToServer::Live(reply) => {
                    let _ = reply.send((conns.traffic(), conns.live(now, 0, 10)));
                }
                ToServer::Stop => self.stopping = true,
            }
        }
        if self.stopping { Poll::Ready(()) } else { Poll::Pending }
    }

    fn opened(&mut self, conns: &mut Conns<Server>, _now: Time, key: ConnKey, _id: ConnectId) {
        conns.set_target(key, "endpoint:1");
        let _ = self.dials.remove(&key).expect("a dial for each opening").send(Ok(key));
    }

    fn dial_failed(&mut self, key: ConnKey, error: DialError) {
        let _ = self.dials.remove(&key).expect("a dial for each failure").send(Err(error));
    }
}

/// Accepts every dial with a pipe and passes the pipe's other end to the test.
pub(crate) struct TestAgent {
    peers: mpsc::UnboundedSender<Peer>,
    capacity: usize,
    /// How many bytes each endpoint discards at its end.
    to_discard: usize,
}

impl LinkHandler<Agent> for TestAgent {
    fn probe_wanted(&mut self, _conns: &mut Conns<Agent>) {}

    fn poll_commands(&mut self, _cx: &mut Context<'_>, _conns: &mut Conns<Agent>, _now: Time) -> Poll<()> {
        Poll::Pending
    }

    fn dial(
        &mut self,
        conns: &mut Conns<Agent>,
        key: ConnKey,
        _target: (String, String),
        _trace: Option<TraceContext>,
    ) {
        let (local, peer) = pipe(self.capacity);
        let local = PipeIo { to_discard: self.to_discard, ..local };
        assert!(conns.link().dialed(key, Ok(())), "nobody cancels");
        conns.open(key);
        conns.attach(key, Box::new(local));
        let _ = self.peers.send(peer);
    }
}

/// A connected server and agent.
pub(crate) struct Pair {
    pub(crate) server: mpsc::UnboundedSender<ToServer>,
    pub(crate) endpoints: mpsc::UnboundedReceiver<Peer>,
    pub(crate) server_counts: Counts,
    pub(crate) agent_counts: Counts,
    pub(crate) server_task: JoinHandle<LinkEnd>,
    pub(crate) agent_task: JoinHandle<LinkEnd>,
}

impl Pair {
    /// With the upstream protocol only, as with an upstream peer.
    pub(crate) fn start(limits: Limits, window: usize, endpoint_capacity: usize) -> Self {
        Self::with_negotiated(limits, Negotiated::default(), window, endpoint_capacity)
    }

    /// Both grant the same windows.
    pub(crate) fn with_negotiated(
        limits: Limits,
        negotiated: Negotiated,
        window: usize,
        endpoint_capacity: usize,
    ) -> Self {
        Self::within(
            &Bounds { limits, memory: MemoryLimiter::new(1 << 30) },
            negotiated,
            window,
            endpoint_capacity,
        )
    }

    /// Each endpoint discards this many bytes at its end.
    pub(crate) fn with_discarding_endpoints(to_discard: usize) -> Self {
        let bounds = Bounds { limits: Limits::default(), memory: MemoryLimiter::new(1 << 30) };
        Self::build(&bounds, Negotiated::default(), 64 << 10, 1_000, to_discard)
    }

    /// Both under the same memory limit.
    pub(crate) fn within(
        bounds: &Bounds,
        negotiated: Negotiated,
        window: usize,
        endpoint_capacity: usize,
    ) -> Self {
        Self::build(bounds, negotiated, window, endpoint_capacity, 0)
    }

    fn build(
        bounds: &Bounds,
        negotiated: Negotiated,
        window: usize,
        endpoint_capacity: usize,
        endpoint_discards: usize,
    ) -> Self {
        let (server_wire, agent_wire) = wires(window);
        let (server, commands) = mpsc::unbounded_channel();
        let (peers, endpoints) = mpsc::unbounded_channel();
        let handler = TestServer { commands, dials: HashMap::new(), stopping: false };
        let (server_meter, agent_meter) = (CountingMeter::default(), CountingMeter::default());
        let (server_counts, agent_counts) = (Arc::clone(&server_meter.0), Arc::clone(&agent_meter.0));
        let server_task = tokio::spawn(Driver::<Server, _, _, _>::new(
            bounds,
            negotiated,
            server_wire,
            handler,
            server_meter,
        ));
        let handler = TestAgent { peers, capacity: endpoint_capacity, to_discard: endpoint_discards };
        let agent_task =
            tokio::spawn(Driver::<Agent, _, _, _>::new(bounds, negotiated, agent_wire, handler, agent_meter));
        Pair { server, endpoints, server_counts, agent_counts, server_task, agent_task }
    }

    pub(crate) async fn dial(&mut self) -> ConnKey {
        let (reply, answer) = oneshot::channel();
        assert!(self.server.send(ToServer::Dial(reply)).is_ok(), "the server runs");
        answer.await.expect("an answer").expect("a connection")
    }

    /// What the server's link carries, and its connections.
    pub(crate) async fn live(&self) -> (Traffic, Vec<LiveConnection>) {
        let (reply, answer) = oneshot::channel();
        assert!(self.server.send(ToServer::Live(reply)).is_ok(), "the server runs");
        answer.await.expect("an answer")
    }

    /// A frontend and the endpoint that it is connected to.
    pub(crate) async fn connect(&mut self, frontend_capacity: usize) -> (Peer, Peer) {
        self.connect_wasting(frontend_capacity, 0).await
    }

    /// The same, with a frontend that discards this many bytes at its end.
    pub(crate) async fn connect_wasting(
        &mut self,
        frontend_capacity: usize,
        to_discard: usize,
    ) -> (Peer, Peer) {
        let key = self.dial().await;
        let (local, frontend) = pipe(frontend_capacity);
        let local = PipeIo { to_discard, ..local };
        assert!(self.server.send(ToServer::Attach(key, local)).is_ok(), "the server runs");
        (frontend, self.endpoints.recv().await.expect("the agent dialed"))
    }
}
