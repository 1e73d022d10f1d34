//! Dead peers, with paused time.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use mux::Packet;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Pair, data, dial, failure, next, packet, pair, pair_with, ready, serve, soon};
use crate::pinger::PeerLost;
use crate::raw::{ACK, PING, SETTINGS, frame, hello};
use crate::{
    Connected, ConnectionError, Keepalive, KeepaliveFlags, KeepaliveHandle, PeerKernel, ServerSettings,
    UNRESPONSIVE_AFTER, Wire, WireStream, connect,
};
use net::kernel::Acknowledgment;

const TEN_AND_FIVE: Keepalive = Keepalive {
    interval: Duration::from_secs(10),
    timeout: Duration::from_secs(5),
    half_open_timeout: Duration::from_secs(5),
};

fn settings(keepalive: Keepalive) -> ServerSettings {
    ServerSettings { keepalive, next_stream_timeout: None, ..ServerSettings::for_agents() }
}

#[tokio::test(start_paused = true)]
async fn the_server_finds_a_dead_client() {
    let mut pair = pair_with(settings(TEN_AND_FIVE)).await;
    let before = Instant::now();
    pair.frozen.store(true, Ordering::Relaxed);
    let end = soon(pair.served.serving).await.unwrap();
    assert!(matches!(end, Err(ConnectionError::Keepalive(PeerLost::Program))), "{end:?}");
    assert_eq!(before.elapsed().as_secs(), 15);
    let error = failure(&mut pair.server).await.to_string();
    assert_eq!(error, "Canceled: keepalive: no answer to a ping in time", "not h2's text");
}

#[tokio::test(start_paused = true)]
async fn the_client_finds_a_dead_server_by_the_period_of_the_day() {
    let mut pair = pair().await;
    sleep(Duration::from_secs(100)).await;
    pair.client.connection.keepalive.set_keepalive(TEN_AND_FIVE);
    // The idle time so far counts: a ping is sent at once.
    pair.frozen.store(true, Ordering::Relaxed);
    let before = Instant::now();
    let end = soon(pair.client.connection.closed()).await;
    assert!(matches!(end, Err(ConnectionError::Keepalive(PeerLost::Program))), "{end:?}");
    assert_eq!(before.elapsed().as_secs(), 5);
    let error = failure(&mut pair.client.stream).await.to_string();
    assert_eq!(error, "Unavailable: keepalive: no answer to a ping in time", "not h2's text");
}

#[tokio::test(start_paused = true)]
async fn living_peers_are_left_alone() {
    let mut pair = pair_with(settings(TEN_AND_FIVE)).await;
    pair.client.connection.keepalive.set_keepalive(TEN_AND_FIVE);
    sleep(Duration::from_secs(3600)).await;
    pair.client.stream.send(data("here")).unwrap();
    assert_eq!(packet(&mut pair.server).await, data("here"));
}

#[tokio::test(start_paused = true)]
async fn unread_data_does_not_delay_pings() {
    let mut pair = pair_with(settings(TEN_AND_FIVE)).await;
    pair.client.connection.keepalive.set_keepalive(TEN_AND_FIVE);
    for _ in 0..100 {
        pair.client.stream.send(data(vec![1; 60_000])).unwrap();
        pair.server.send(data(vec![1; 60_000])).unwrap();
    }
    sleep(Duration::from_secs(3600)).await;
    for _ in 0..100 {
        assert_eq!(packet(&mut pair.server).await, data(vec![1; 60_000]));
        assert_eq!(packet(&mut pair.client.stream).await, data(vec![1; 60_000]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_stream_is_pinged() {
    let (mut client_io, server_io) = duplex(1 << 20);
    let served = serve(server_io, settings(TEN_AND_FIVE));
    // A preface and SETTINGS, nothing more.
    client_io.write_all(&hello(&[])).await.unwrap();
    let end = timeout(Duration::from_secs(3000), served.serving).await.unwrap().unwrap();
    assert!(matches!(end, Err(ConnectionError::Keepalive(PeerLost::Program))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn stream_to_a_server_that_never_answers_tells_the_cause() {
    let (client_io, _server_io) = duplex(1 << 20);
    let deadline = Instant::now() + Duration::from_secs(60);
    let error = connect(client_io, TEN_AND_FIVE, ("server", "/"), HeaderMap::new(), None, deadline).await;
    assert_eq!(error.unwrap_err().to_string(), "Unavailable: keepalive: no answer to a ping in time");
}

/// grpc-go's clients ping every 10 s if so configured, even without a stream; kube-apiserver's HTTP/2 health checks every 30 s.
#[tokio::test(start_paused = true)]
async fn pings_of_an_idle_client_are_answered_and_never_too_many() {
    for every in [1, 10, 30] {
        let (mut client_io, server_io) = duplex(1 << 20);
        let served = serve(server_io, ServerSettings::for_frontends());
        client_io.write_all(&hello(&[])).await.unwrap();
        sleep(Duration::from_secs(3600)).await;
        while timeout(Duration::ZERO, client_io.read(&mut [0; 1024])).await.is_ok() {}
        client_io.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
        for number in 0..3600_u64 / every {
            client_io.write_all(&frame(PING, 0, 0, &number.to_be_bytes())).await.unwrap();
            let mut answer = [0; 17];
            soon(client_io.read_exact(&mut answer)).await.unwrap();
            assert_eq!(answer[..], frame(PING, ACK, 0, &number.to_be_bytes())[..]);
            sleep(Duration::from_secs(every)).await;
        }
        assert!(!served.serving.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_answer_is_unresponsive_and_keeps_its_connection() {
    let mut pair = pair().await;
    let five_minutes = Duration::from_secs(300);
    pair.client.connection.keepalive.set_keepalive(Keepalive { timeout: five_minutes, ..TEN_AND_FIVE });
    let mut unresponsive = pair.client.connection.keepalive.unresponsive();
    pair.client.connection.keepalive.probe();
    assert!(timeout(Duration::from_secs(5), unresponsive.changed()).await.is_err(), "answered");
    pair.frozen.store(true, Ordering::Relaxed);
    let before = Instant::now();
    pair.client.connection.keepalive.probe();
    soon(unresponsive.changed()).await.unwrap();
    assert_eq!((before.elapsed(), *unresponsive.borrow_and_update()), (UNRESPONSIVE_AFTER, true));
    sleep(five_minutes - Duration::from_secs(10)).await;
    pair.frozen.store(false, Ordering::Relaxed);
    // A frozen transport does not wake its reader.
    pair.server.send(data("awake")).unwrap();
    pair.client.connection.keepalive.probe();
    soon(unresponsive.changed()).await.unwrap();
    assert!(!*unresponsive.borrow());
    pair.client.stream.send(data("here")).unwrap();
    assert_eq!(packet(&mut pair.server).await, data("here"));
}

/// A kernel that always reports the same.
#[derive(Debug)]
struct Says(Acknowledgment);

impl PeerKernel for Says {
    fn acknowledgment(&self) -> Option<Acknowledgment> {
        Some(self.0)
    }
}

/// After how many seconds a connection of the client ends, and how, while its kernel reports `outstanding`.
async fn silent_with_kernel(outstanding: bool) -> (u64, Result<(), ConnectionError>) {
    let mut pair = pair().await;
    let keepalive = Keepalive { timeout: Duration::from_secs(300), ..TEN_AND_FIVE };
    pair.client.connection.keepalive.set_keepalive(keepalive);
    pair.frozen.store(true, Ordering::Relaxed);
    let (last_sent, last_received) = (Duration::from_secs(5), Duration::from_secs(60));
    let seen = Acknowledgment { outstanding, last_sent, last_received, probes: 0, min_rtt: None };
    pair.client.connection.keepalive.watch_kernel(Arc::new(Says(seen)));
    let before = Instant::now();
    let end = soon(pair.client.connection.closed()).await;
    (before.elapsed().as_secs(), end)
}

/// How long a ping is unanswered until the server counts as unresponsive.
async fn unresponsive_with_kernel(outstanding: bool, last_received: Duration) -> Duration {
    let pair = patient_pair().await;
    pair.frozen.store(true, Ordering::Relaxed);
    let seen =
        Acknowledgment { outstanding, last_sent: Duration::ZERO, last_received, probes: 0, min_rtt: None };
    let keepalive = &pair.client.connection.keepalive;
    keepalive.watch_kernel(Arc::new(Says(seen)));
    let mut unresponsive = keepalive.unresponsive();
    let before = Instant::now();
    keepalive.probe();
    soon(unresponsive.wait_for(|unresponsive| *unresponsive)).await.unwrap();
    before.elapsed()
}

#[tokio::test(start_paused = true)]
async fn peer_whose_kernel_does_not_acknowledge_a_ping_is_unresponsive_sooner() {
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    assert_eq!(unresponsive_with_kernel(true, minute).await, second);
    assert_eq!(unresponsive_with_kernel(false, minute).await, UNRESPONSIVE_AFTER, "the program stands still");
    let lossy = unresponsive_with_kernel(true, second / 2).await;
    assert_eq!(lossy, UNRESPONSIVE_AFTER, "something was acknowledged since the ping");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_program_is_given_five_minutes_and_a_silent_host_thirty_seconds() {
    let (after, end) = silent_with_kernel(false).await;
    assert!(matches!(end, Err(ConnectionError::Keepalive(PeerLost::Program))), "{end:?}");
    assert_eq!(after, 310);
    let (after, end) = silent_with_kernel(true).await;
    assert!(matches!(end, Err(ConnectionError::Keepalive(PeerLost::Host))), "{end:?}");
    assert_eq!(after, 34, "the first look is after 4 s");
}

#[tokio::test(start_paused = true)]
async fn zero_interval_does_not_spin() {
    let pair = pair().await;
    pair.client.connection.keepalive.set_keepalive(Keepalive {
        interval: Duration::ZERO,
        timeout: Duration::MAX,
        half_open_timeout: Duration::MAX,
    });
    sleep(Duration::from_millis(200)).await;
    pair.client.connection.keepalive.set_keepalive(Keepalive { interval: Duration::MAX, ..TEN_AND_FIVE });
    sleep(Duration::from_secs(3600)).await;
    assert!(!pair.served.serving.is_finished());
}

/// A transport that delays all bytes.
fn delayed_pair(delay: Duration) -> (DuplexStream, DuplexStream) {
    delayed_pair_by(move || delay)
}

/// A transport that delays all bytes until `end`.
fn delayed_pair_until(delay: Duration, end: Instant) -> (DuplexStream, DuplexStream) {
    delayed_pair_by(move || if Instant::now() < end { delay } else { Duration::ZERO })
}

/// A transport that delays bytes by what `delay` says when they are sent.
fn delayed_pair_by(delay: impl Fn() -> Duration + Send + Sync + 'static) -> (DuplexStream, DuplexStream) {
    let ((client_io, a), (b, server_io)) = (duplex(64 << 20), duplex(64 << 20));
    let ((mut a_in, mut a_out), (mut b_in, mut b_out)) = (tokio::io::split(a), tokio::io::split(b));
    tokio::spawn(async move {
        tokio::join!(late(&mut a_in, &mut b_out, &delay), late(&mut b_in, &mut a_out, &delay))
    });
    (client_io, server_io)
}

async fn late(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    delay: &impl Fn() -> Duration,
) {
    let mut piece = vec![0; 16 << 20];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        sleep(delay()).await;
        if to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}

/// How many bytes the client may send while the server reads nothing, and the RTT that the server knows. The server
/// measures it only if `asked`, but sends pings in any case.
async fn sent_unread(delay: Duration, asked: bool) -> (usize, Option<Duration>) {
    let (client_io, server_io) = delayed_pair(delay);
    let mut served = serve(server_io, settings(TEN_AND_FIVE));
    let accept = async {
        let request = served.requests.recv().await.unwrap();
        if asked {
            request.keepalive.measure(4, None);
        }
        (Arc::clone(&request.keepalive), request.accept(HeaderMap::new()).unwrap())
    };
    let (client, (keepalive, _server)) = tokio::join!(dial(client_io, HeaderMap::new()), accept);
    let mut client = client.unwrap();
    sleep(Duration::from_secs(30)).await;
    let mut sent = 0;
    // The last piece is sent in part: HTTP/2 holds no more for a stream.
    while let Ok(Ok(room)) =
        timeout(Duration::from_secs(10), poll_fn(|cx| client.stream.poll_ready(cx))).await
    {
        client.stream.send(data(vec![1; room.min(60_000)])).unwrap();
        sent += room.min(60_000);
    }
    (sent, keepalive.rtt())
}

#[tokio::test(start_paused = true)]
async fn high_bdp_path_gets_a_wide_window_and_a_short_path_does_not() {
    const KIB: usize = 1 << 10;
    for (delay, window) in [(0, 256 * KIB), (1, 4_096 * KIB), (25, 16_384 * KIB)] {
        let (sent, rtt) = sent_unread(Duration::from_millis(delay), true).await;
        assert_eq!(rtt.map(|rtt| rtt.as_millis()), Some(2 * u128::from(delay)));
        // Frame heads take a part of the window.
        assert!((window - window / 16..window + window / 4).contains(&sent), "{delay} ms: {sent}");
    }
}

/// Sends this many bytes, which the server reads.
async fn transfer(client: &mut WireStream, server: &mut WireStream, bytes: usize) {
    let send = async {
        let mut sent = 0;
        while sent < bytes {
            let room = ready(client).await.unwrap().min(60_000);
            client.send(data(vec![1; room])).unwrap();
            sent += room;
        }
        sent
    };
    let receive = async {
        let mut received = 0;
        while received < bytes {
            let Packet::Data { payload, .. } = packet(server).await else { panic!("only DATA was sent") };
            received += payload.len();
        }
    };
    tokio::join!(send, receive);
}

/// The server's measurement over a path that has 20 ms RTT for `busy`, then none, while the kernels measure `between_kernels`: how
/// long it took, and the result.
async fn measured(busy: Duration, between_kernels: Option<Duration>) -> (Duration, Duration) {
    let (client_io, server_io) = delayed_pair_until(Duration::from_millis(10), Instant::now() + busy);
    let mut served = serve(server_io, settings(TEN_AND_FIVE));
    let accept = async {
        let request = served.requests.recv().await.unwrap();
        let (last_sent, last_received) = Default::default();
        let seen = Acknowledgment {
            outstanding: false,
            last_sent,
            last_received,
            probes: 0,
            min_rtt: between_kernels,
        };
        request.keepalive.watch_kernel(Arc::new(Says(seen)));
        request.keepalive.measure(crate::capabilities::RTT_PROBES, None);
        (Arc::clone(&request.keepalive), request.accept(HeaderMap::new()).unwrap())
    };
    let (client, (keepalive, _server)) = tokio::join!(dial(client_io, HeaderMap::new()), accept);
    let (_client, before) = (client.unwrap(), Instant::now());
    soon(async {
        while keepalive.rtt().is_none() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    (before.elapsed(), keepalive.rtt().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_busy_start_is_no_high_rtt() {
    const MS: Duration = Duration::from_millis(1);
    let (took, rtt) = measured(600 * MS, Some(MS / 20)).await;
    assert!(took < 900 * MS && rtt < MS, "{took:?}, {rtt:?}");
    let (took, rtt) = measured(600 * MS, Some(19 * MS)).await;
    assert!(took < 100 * MS && rtt >= 20 * MS, "the kernels agree: {took:?}, {rtt:?}");
    for proxied in [None, Some(MS / 20)] {
        let (took, rtt) = measured(60_000 * MS, proxied).await;
        assert!((800 * MS..1_100 * MS).contains(&took) && rtt == 20 * MS, "{took:?}, {rtt:?}");
    }
}

/// The first RTT was measured on a busy machine.
#[tokio::test(start_paused = true)]
async fn bytes_flow_after_the_measured_round_trip_falls() {
    let slow_until = Instant::now() + Duration::from_secs(60);
    let (client_io, server_io) = delayed_pair_until(Duration::from_millis(10), slow_until);
    let mut served = serve(server_io, settings(TEN_AND_FIVE));
    let accept = async {
        let request = served.requests.recv().await.unwrap();
        (Arc::clone(&request.keepalive), request.accept(HeaderMap::new()).unwrap())
    };
    let (client, (keepalive, mut server)) = tokio::join!(dial(client_io, HeaderMap::new()), accept);
    let mut client = client.unwrap();
    for (rtt_ms, mib) in [(20, 3), (0, 40)] {
        keepalive.measure(1, None);
        sleep(Duration::from_secs(30)).await;
        assert_eq!(keepalive.rtt().map(|rtt| rtt.as_millis()), Some(rtt_ms));
        transfer(&mut client.stream, &mut server, mib << 20).await;
        sleep(Duration::from_secs(30)).await;
    }
}

/// As after a change of the route: the path of an open stream becomes longer.
#[tokio::test(start_paused = true)]
async fn a_round_trip_that_rises_on_a_quiet_stream_is_measured_again() {
    let ms = Arc::new(AtomicU64::new(0));
    let path = Arc::clone(&ms);
    let (client_io, server_io) = delayed_pair_by(move || Duration::from_millis(path.load(Ordering::Relaxed)));
    let mut served = serve(server_io, settings(TEN_AND_FIVE));
    let accept = async {
        let request = served.requests.recv().await.unwrap();
        request.keepalive.measure(crate::capabilities::RTT_PROBES, None);
        (Arc::clone(&request.keepalive), request.accept(HeaderMap::new()).unwrap())
    };
    let (client, (keepalive, _server)) = tokio::join!(dial(client_io, HeaderMap::new()), accept);
    let _client = client.unwrap();
    for (one_way, rtt) in [(0, 0), (3, 0), (40, 80), (150, 80), (1, 2), (150, 300)] {
        ms.store(one_way, Ordering::Relaxed);
        sleep(Duration::from_secs(90)).await;
        assert_eq!(keepalive.rtt().map(|rtt| rtt.as_millis()), Some(rtt), "{one_way} ms");
    }
}

/// A path for several connections. It takes [`RATE`] in each direction, behind which bytes travel for some time, or are lost.
struct Path {
    /// When the bottlenecks, of the servers' and of the clients' bytes, have sent their queues.
    free: [Mutex<Instant>; 2],
    one_way_ms: AtomicU64,
    /// Bytes of clients are lost from now on.
    lost: AtomicBool,
}

/// Bytes in a second.
const RATE: f64 = 5e6;

impl Path {
    fn new() -> Arc<Self> {
        let free = [Instant::now(); 2].map(Mutex::new);
        Arc::new(Path { free, one_way_ms: AtomicU64::new(0), lost: AtomicBool::new(false) })
    }

    async fn carry(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        from_client: bool,
    ) {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let enter = async {
            let mut piece = vec![0; 64 << 10];
            while let Ok(count @ 1..) = from.read(&mut piece).await {
                let sent = {
                    let mut free = self.free[usize::from(from_client)].lock();
                    *free = free.max(Instant::now()) + Duration::from_secs_f64(count as f64 / RATE);
                    *free
                };
                let due = sent + Duration::from_millis(self.one_way_ms.load(Ordering::Relaxed));
                if !from_client || !self.lost.load(Ordering::Relaxed) {
                    sender.send((due, piece[..count].to_vec())).unwrap();
                }
            }
            drop(sender);
        };
        let arrive = async {
            while let Some((due, bytes)) = receiver.recv().await {
                // Tokio's timers round up to a millisecond.
                if due > Instant::now() + Duration::from_millis(1) {
                    sleep_until(due).await;
                }
                let _gone = to.write_all(&bytes).await;
            }
            let _gone = to.shutdown().await;
        };
        tokio::join!(enter, arrive);
    }
}

/// A stream over a [`Path`] that is short first. Its server measures the RTT.
struct OverPath {
    path: Arc<Path>,
    client: Connected,
    server: WireStream,
    keepalive: Arc<KeepaliveHandle>,
    began: Instant,
}

impl OverPath {
    async fn new() -> Self {
        Self::over(Path::new(), None).await
    }

    async fn over(path: Arc<Path>, lanes: Option<u64>) -> Self {
        let ((client_io, a), (b, server_io)) = (duplex(64 << 20), duplex(64 << 20));
        let ((a_in, a_out), (b_in, b_out)) = (tokio::io::split(a), tokio::io::split(b));
        let carrying = Arc::clone(&path);
        tokio::spawn(async move {
            tokio::join!(carrying.carry(a_in, b_out, true), carrying.carry(b_in, a_out, false))
        });
        let mut served = serve(server_io, settings(TEN_AND_FIVE));
        let began = Instant::now();
        let accept = async {
            let request = served.requests.recv().await.unwrap();
            request.keepalive.measure(crate::capabilities::RTT_PROBES, lanes);
            (Arc::clone(&request.keepalive), request.accept(HeaderMap::new()).unwrap())
        };
        let (client, (keepalive, server)) = tokio::join!(dial(client_io, HeaderMap::new()), accept);
        // As to a Go server.
        client.as_ref().unwrap().connection.keepalive.measure(1, None);
        sleep(Duration::from_secs(5)).await;
        OverPath { path, client: client.unwrap(), server, keepalive, began }
    }

    /// Runs `load` between the two ends, while the path becomes longer after 100 s. Returns the time until the server knows.
    async fn noticed<T>(
        &mut self,
        load: impl AsyncFnOnce(&mut WireStream, &mut WireStream) -> T,
    ) -> Duration {
        let short = Duration::from_millis(1);
        let (path, keepalive, began) = (&self.path, &self.keepalive, self.began);
        let jump = async {
            sleep_until(began + Duration::from_secs(100)).await;
            assert!(keepalive.rtt().unwrap() < short, "a queue is no path: {:?}", keepalive.rtt());
            path.one_way_ms.store(40, Ordering::Relaxed);
            let before = Instant::now();
            while keepalive.rtt().unwrap() < short {
                sleep(short).await;
            }
            before.elapsed()
        };
        let noticed = tokio::select! {
            noticed = soon(jump) => noticed,
            _ = load(&mut self.client.stream, &mut self.server) => panic!("the load ended"),
        };
        let rtt = self.keepalive.rtt().unwrap().as_millis();
        assert!((80..85).contains(&rtt), "{rtt} ms");
        assert!(self.client.connection.keepalive.rtt().unwrap() < short, "it may not ping a Go server");
        noticed
    }
}

/// Sends without end, with a pause after each burst, which is larger than a window.
async fn send_bursts(stream: &mut WireStream, pause: Duration) {
    loop {
        for _ in 0..8 {
            let room = ready(stream).await.unwrap();
            stream.send(data(vec![1; room.min(60_000)])).unwrap();
        }
        sleep(pause).await;
    }
}

/// Sends without end, as much as the window allows, and counts the bytes.
async fn send_counted(stream: &mut WireStream, sent: &AtomicU64) {
    loop {
        let room = ready(stream).await.unwrap().min(60_000);
        stream.send(data(vec![1; room])).unwrap();
        sent.fetch_add(room as u64, Ordering::Relaxed);
    }
}

async fn receive_all(stream: &mut WireStream) {
    loop {
        packet(stream).await;
    }
}

#[tokio::test(start_paused = true)]
async fn longer_path_is_noticed_beside_downloads_uploads_and_bursts_but_a_queue_is_not() {
    for pause in [Duration::ZERO, Duration::from_millis(500)] {
        let mut up = OverPath::new().await;
        let load = async |client: &mut WireStream, server: &mut WireStream| {
            tokio::join!(send_bursts(client, pause), receive_all(server))
        };
        let noticed = up.noticed(load).await;
        assert!(noticed < Duration::from_secs(31), "up, {pause:?}: {noticed:?}");
        let mut down = OverPath::new().await;
        let load = async |client: &mut WireStream, server: &mut WireStream| {
            tokio::join!(send_bursts(server, pause), receive_all(client))
        };
        let noticed = down.noticed(load).await;
        assert!(noticed < Duration::from_secs(31), "down, {pause:?}: {noticed:?}");
    }
}

/// The client's pings are answered no more while the server drains the path: nothing arrives that wakes the server's stream.
#[tokio::test(start_paused = true)]
async fn window_is_returned_after_a_drain_without_an_answer() {
    let OverPath { path, mut client, mut server, began, .. } = OverPath::new().await;
    let sent = AtomicU64::new(0);
    let at = |millis| sleep_until(began + Duration::from_millis(millis));
    let load = async { tokio::join!(send_counted(&mut client.stream, &sent), receive_all(&mut server)) };
    let watch = async {
        at(10_000).await;
        path.one_way_ms.store(40, Ordering::Relaxed);
        // The check is at 30 s.
        at(30_250).await;
        path.lost.store(true, Ordering::Relaxed);
        let before = sent.load(Ordering::Relaxed);
        at(30_450).await;
        assert_eq!(sent.load(Ordering::Relaxed), before, "no window is returned");
        at(31_250).await;
        let returned = sent.load(Ordering::Relaxed) - before;
        assert!(returned > 128 << 10, "{returned} bytes");
    };
    tokio::select! {
        () = soon(watch) => {}
        _ = load => panic!("the load ended"),
    }
}

/// The RTT is too high for a drain: what is under way arrives until its end.
#[tokio::test(start_paused = true)]
async fn path_that_is_too_long_for_a_drain_is_measured_once_it_is_idle() {
    let OverPath { path, mut client, mut server, keepalive, began } = OverPath::new().await;
    path.one_way_ms.store(250, Ordering::Relaxed);
    let sent = AtomicU64::new(0);
    let load = async { tokio::join!(send_counted(&mut client.stream, &sent), receive_all(&mut server)) };
    let watch = async {
        let (mut before, mut still) = (0, 0);
        for second in 10..310 {
            sleep_until(began + Duration::from_secs(second)).await;
            let now = sent.load(Ordering::Relaxed);
            still += u32::from(std::mem::replace(&mut before, now) == now);
        }
        still
    };
    tokio::select! {
        still = soon(watch) => assert_eq!(still, 0, "seconds without progress"),
        _ = load => panic!("the load ended"),
    }
    assert!(keepalive.rtt().unwrap() < Duration::from_millis(1));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(keepalive.rtt().map(|rtt| rtt.as_millis() / 10), Some(50));
}

#[tokio::test(start_paused = true)]
async fn stream_that_ends_during_a_drain_is_reported() {
    let OverPath { path, mut client, mut server, began, .. } = OverPath::new().await;
    let at = |millis| sleep_until(began + Duration::from_millis(millis));
    at(10_000).await;
    path.one_way_ms.store(40, Ordering::Relaxed);
    tokio::select! {
        () = at(30_250) => {}
        _ = async { tokio::join!(send_bursts(&mut client.stream, Duration::ZERO), receive_all(&mut server)) } => {}
    }
    drop(client);
    soon(async { while let Some(Ok(_)) = next(&mut server).await {} }).await;
    assert!(began.elapsed() < Duration::from_millis(30_400), "{:?}", began.elapsed());
}

/// Lanes are drained at the same time, whenever they were opened.
#[tokio::test(start_paused = true)]
async fn queue_of_another_lane_is_no_path() {
    let path = Path::new();
    let mut first = OverPath::over(Arc::clone(&path), Some(7)).await;
    sleep(Duration::from_secs(7)).await;
    let mut second = OverPath::over(path, Some(7)).await;
    let load = async {
        tokio::join!(
            send_bursts(&mut first.client.stream, Duration::ZERO),
            receive_all(&mut first.server),
            send_bursts(&mut second.client.stream, Duration::ZERO),
            receive_all(&mut second.server),
        )
    };
    assert!(timeout(Duration::from_secs(100), load).await.is_err());
    for lane in [first, second] {
        assert!(lane.keepalive.rtt().unwrap() < Duration::from_millis(1), "{:?}", lane.keepalive.rtt());
    }
}

#[tokio::test(start_paused = true)]
async fn window_stays_without_rtt_probes() {
    let (sent, rtt) = sent_unread(Duration::from_millis(25), false).await;
    assert_eq!(rtt, None, "pings of the keepalive say nothing");
    assert!(sent < 2 << 20, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_client_measures_the_round_trip_when_it_is_asked_to() {
    let (client_io, server_io) = delayed_pair(Duration::from_millis(25));
    let mut served = serve(server_io, settings(TEN_AND_FIVE));
    let accept = async { served.requests.recv().await.unwrap().accept(HeaderMap::new()).unwrap() };
    let (client, _server) = tokio::join!(dial(client_io, HeaderMap::new()), accept);
    let client = client.unwrap();
    let keepalive = &client.connection.keepalive;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(keepalive.rtt(), None, "its keepalive says nothing");
    keepalive.measure(1, None);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(keepalive.rtt(), Some(Duration::from_millis(50)));

    for (took, shown) in [(900, 50), (60, 60), (60, 60)] {
        keepalive.sampled(Duration::from_millis(took));
        assert_eq!(keepalive.last_rtt(), Some(Duration::from_millis(shown)));
    }
}

/// A connection of the client with a timeout of five minutes, and 20 s if it is half-open.
async fn patient_pair() -> Pair {
    let pair = pair().await;
    let (timeout, half_open_timeout) = (Duration::from_secs(300), Duration::from_secs(20));
    pair.client.connection.keepalive.set_keepalive(Keepalive { timeout, half_open_timeout, ..TEN_AND_FIVE });
    pair
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_ends_early_once_its_peer_answers_on_another() {
    let mut pair = patient_pair().await;
    pair.frozen.store(true, Ordering::Relaxed);
    let keepalive = Arc::clone(&pair.client.connection.keepalive);
    keepalive.probe();
    sleep(Duration::from_secs(60)).await;
    let before = Instant::now();
    keepalive.supersede();
    sleep(Duration::from_secs(10)).await;
    keepalive.supersede();
    let end = soon(pair.client.connection.closed()).await;
    assert!(matches!(end, Err(ConnectionError::Keepalive(PeerLost::HalfOpen))), "{end:?}");
    assert_eq!(before.elapsed().as_secs(), 20, "the second call starts nothing anew");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_its_peer_has_lost_ends_at_once() {
    let mut pair = patient_pair().await;
    pair.frozen.store(true, Ordering::Relaxed);
    let before = Instant::now();
    pair.client.connection.keepalive.lost_by_peer();
    let end = soon(pair.client.connection.closed()).await;
    assert!(matches!(end, Err(ConnectionError::Keepalive(PeerLost::HalfOpen))), "{end:?}");
    assert_eq!(before.elapsed(), Duration::ZERO);
    let error = failure(&mut pair.client.stream).await.message;
    assert_eq!(error, "keepalive: the connection is half-open, its peer answers on another one");
}

#[tokio::test(start_paused = true)]
async fn a_superseded_connection_that_answers_is_like_any_other() {
    let mut pair = patient_pair().await;
    let keepalive = Arc::clone(&pair.client.connection.keepalive);
    for _ in 0..3 {
        keepalive.probe();
        keepalive.supersede();
        sleep(Duration::from_secs(60)).await;
    }
    pair.frozen.store(true, Ordering::Relaxed);
    let before = Instant::now();
    let end = soon(pair.client.connection.closed()).await;
    assert!(matches!(end, Err(ConnectionError::Keepalive(PeerLost::Program))), "{end:?}");
    assert!(before.elapsed() > Duration::from_secs(299), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_superseded_connection_is_unresponsive_sooner() {
    let pair = patient_pair().await;
    pair.frozen.store(true, Ordering::Relaxed);
    let keepalive = &pair.client.connection.keepalive;
    let mut unresponsive = keepalive.unresponsive();
    let before = Instant::now();
    keepalive.probe();
    keepalive.supersede();
    soon(unresponsive.wait_for(|unresponsive| *unresponsive)).await.unwrap();
    assert_eq!(before.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn supersede_alone_sends_no_ping() {
    let mut pair = patient_pair().await;
    pair.client
        .connection
        .keepalive
        .set_keepalive(Keepalive { interval: Duration::from_secs(3600), ..TEN_AND_FIVE });
    pair.frozen.store(true, Ordering::Relaxed);
    pair.client.connection.keepalive.supersede();
    assert!(timeout(Duration::from_secs(3000), pair.client.connection.closed()).await.is_err());
}

#[test]
fn flags_set_the_keepalive_by_the_kind_of_peer() {
    let flags = |time| KeepaliveFlags {
        time: Duration::from_secs(time),
        half_open_timeout: Duration::from_secs(20),
        unresponsive_timeout: Duration::from_secs(300),
    };
    let intervals = |time| {
        let flags = flags(time);
        [flags.to_agent(), flags.to_native_server(), flags.to_upstream_server(), flags.connecting()]
            .map(|keepalive| keepalive.interval.as_secs())
    };
    assert_eq!((intervals(3600), intervals(1)), ([10, 2, 35, 35], [1, 2, 35, 35]));
    let timeouts = |keepalive: Keepalive| [keepalive.timeout, keepalive.half_open_timeout];
    let (native, upstream) = (flags(1).to_native_server(), flags(1).to_upstream_server());
    assert_eq!(timeouts(native).map(|timeout| timeout.as_secs()), [300, 20]);
    assert_eq!(timeouts(upstream), timeouts(native), "upstream peers are kept as long");
    assert_eq!(flags(1).connecting().timeout.as_secs(), 20, "no stream depends on it");
}
